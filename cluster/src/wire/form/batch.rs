//! What a worker's scheduler says.

use policies::batch::{BatchEffect, BatchLoad, Refusal, TokenEvent, Usage};
use policies::request::{Finish, Logprobs};
use policies::step::Drawn;

use super::{Form, form_enum, form_struct, no_such, words};
use crate::wire::codec::{DecodeError, Decoder, EncodeError, Encoder};

form_enum!(BatchEffect {
    0 => Token(event),
    1 => PromptLogprobs { request, attempt, first, tokens },
    2 => Done { request, attempt, usage },
    3 => Failed { request, attempt, reason },
    4 => Preempted { seq, dropped },
    5 => Late { request, attempt, reason },
    6 => TakenOver { request, attempt },
});

form_struct!(TokenEvent { seq, index, token, logprobs, finish, cached_tokens });
form_struct!(Logprobs { own, top });
form_struct!(Drawn { seq, token, logprobs });
form_enum!(Finish { 0 => EndToken, 1 => Length, 2 => StopString });
form_struct!(Usage { cached_tokens, prefilled_tokens, drawn_tokens, preemptions });

form_struct!(BatchLoad {
    requests,
    running,
    waiting,
    paused,
    queued_prefill_tokens,
    outstanding_tokens,
    pages_used,
    pages_cached,
    pages_total,
    prefix_queries,
    prefix_hits,
    prefilled_tokens,
    drawn_tokens,
    preemptions,
});

impl Form for Refusal {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        match self {
            Self::NeverFits { needed, pages, page_tokens } => {
                0_u8.put(to)?;
                needed.put(to)?;
                pages.put(to)?;
                page_tokens.put(to)
            }
            Self::TooLong { prompt, window } => {
                1_u8.put(to)?;
                prompt.put(to)?;
                window.put(to)
            }
            Self::QueueFull { waiting } => {
                2_u8.put(to)?;
                waiting.put(to)
            }
            Self::Malformed(why) => {
                3_u8.put(to)?;
                words::put(why, to)
            }
            Self::Draining => 4_u8.put(to),
            Self::Hopeless { needed, left } => {
                5_u8.put(to)?;
                needed.put(to)?;
                left.put(to)
            }
        }
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::NeverFits {
                needed: Form::take(from)?,
                pages: Form::take(from)?,
                page_tokens: Form::take(from)?,
            },
            1 => Self::TooLong { prompt: Form::take(from)?, window: Form::take(from)? },
            2 => Self::QueueFull { waiting: Form::take(from)? },
            3 => Self::Malformed(words::take(&words::MALFORMED, words::OTHER_MALFORMED, from)?),
            4 => Self::Draining,
            5 => Self::Hopeless { needed: Form::take(from)?, left: Form::take(from)? },
            tag => return Err(no_such("Refusal", tag)),
        })
    }
}
