//! What the controller is told and what it says.

use policies::placement::{PlaceRequest, PlacementEffect, Plan, Rejection, WorkerInfo};
use policies::time::Time;

use super::{Form, form_enum, form_struct, words};
use crate::wire::codec::{DecodeError, Decoder, EncodeError, Encoder};

form_struct!(WorkerInfo { id, models, max_context, max_requests });

form_struct!(PlaceRequest {
    request,
    attempt,
    model,
    prompt_tokens,
    context_tokens,
    max_tokens,
    choices,
    avoid,
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

impl Form for Plan {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        let Self { worker, why } = self;
        worker.put(to)?;
        words::put(why, to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Ok(Self { worker: Form::take(from)?, why: words::take(&words::WHY, words::OTHER_WHY, from)? })
    }
}
