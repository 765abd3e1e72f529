//! Opening a KV link to another worker.

use config::ids::WorkerId;
use policies::membership::DialError;

use super::proof::KvTerms;
use super::tcp::TcpLink;
use crate::handshake::Failed;
use crate::link::reach;

/// No link to a worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no KV link to `{address}`: {why}")]
pub struct KvDialError {
    /// The address dialled.
    pub address: String,
    /// Why not.
    pub why: String,
    /// Trying again is no use until somebody changes the configuration of a node.
    pub is_final: bool,
}

/// Dials `address`, `HOST:PORT` with or without `tcp://` in front, and proves this worker to the one there, which has to be
/// `expected` in that very life where one is given.
///
/// # Errors
/// Nobody answers in time, an end refuses the other, or another worker answers; the other end hears why.
pub async fn dial(
    address: &str,
    terms: &KvTerms,
    expected: Option<&WorkerId>,
) -> Result<TcpLink, KvDialError> {
    let failed = |error: DialError| {
        let (why, is_final) = match error {
            DialError::Unreachable(why) | DialError::Refused(why) => (why, false),
            DialError::Final(why) => (why, true),
            DialError::AlreadyLinked(name) => (format!("already linked to `{name}`"), false),
            DialError::Itself => ("this is the node itself".to_owned(), true),
        };
        KvDialError { address: address.to_owned(), why, is_final }
    };
    let mut budget = terms.budget();
    let (stream, _) = reach(address, terms.tls(), &mut budget).await.map_err(failed)?;
    terms.dial(stream, expected, &mut budget).await.map_err(Failed::into_dial_error).map_err(failed)
}
