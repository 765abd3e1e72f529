//! What the controller is told and what it says.

use policies::placement::{PlaceRequest, PlacementEffect, Plan, Rejection, WorkerInfo};
use policies::policy::{PolicyMode, Stage};
use policies::time::Time;

use super::{Form, form_enum, form_struct, words};
use crate::wire::codec::{DecodeError, Decoder, EncodeError, Encoder};

form_struct!(WorkerInfo { id, models, max_context, max_requests, page_tokens });

form_struct!(PlaceRequest {
    request,
    attempt,
    model,
    prompt_tokens,
    context_tokens,
    max_tokens,
    choices,
    avoid,
    hashes,
    session,
    props,
} not sent {
    // The envelope carries it.
    deadline: Time::NEVER
});

form_enum!(PlacementEffect {
    0 => Placed { request, attempt, plan },
    1 => Rejected { request, attempt, reason },
    2 => Lost { request, attempt, worker },
});

form_enum!(Rejection {
    0 => UnknownModel(model),
    1 => NoWorker(model),
    2 => QueueFull { queued },
    3 => Timeout(waited),
    4 => TooLong { tokens, window },
});

form_struct!(Stage { policy, mode, action, why, numbers, saved, took });

form_enum!(PolicyMode { 0 => Off, 1 => Shadow, 2 => Prod });

impl Form for Plan {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        let Self { worker, why, stages } = self;
        worker.put(to)?;
        words::put(why, to)?;
        stages.put(to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Ok(Self {
            worker: Form::take(from)?,
            why: words::take(&words::WHY, words::OTHER_WHY, from)?,
            stages: Form::take(from)?,
        })
    }
}
