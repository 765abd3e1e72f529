//! Texts that are `&'static str` in the core types: they travel as text, and the reader finds its own copy.

use super::std_types::{put_text, take_text};
use crate::wire::codec::{DecodeError, Decoder, EncodeError, Encoder};

/// Why a plan chose its worker (`policies::placement`).
pub(super) const WHY: [&str; 8] = [
    "least-cost",
    "least-loaded",
    "only-free-worker",
    "only-worker",
    "pinned",
    "power-of-two",
    "random",
    "round-robin",
];

/// What a word is read as that this build does not know.
pub(super) const OTHER_WHY: &str = "remote";

/// Why a worker calls a request malformed (`policies::batch` and the engines).
pub(super) const MALFORMED: [&str; 6] = [
    "a token is outside of the model's vocabulary",
    "no choice is asked for",
    "no choices are asked for",
    "the prompt has no tokens",
    "this attempt is here already",
    "this attempt of the request is here already",
];

/// What a text is read as that this build does not know.
pub(super) const OTHER_MALFORMED: &str = "the worker does not accept it; its log says why";

pub(super) fn put<E: Encoder>(word: &str, to: &mut E) -> Result<(), EncodeError> {
    put_text(word, to)
}

pub(super) fn take<D: Decoder>(
    known: &[&'static str],
    other: &'static str,
    from: &mut D,
) -> Result<&'static str, DecodeError> {
    take_text(from, |word| known.iter().find(|k| **k == word).copied().unwrap_or(other))
}
