//! How a prompt that another worker asks for is taken.

use policies::batch::{Held, Refusal};
use policies::invariant::Broken;
use policies::kv::handoff::chunking::Chunking;
use policies::kv::handoff::{RefusalCode, SenderEvent};

use super::Sending;
use crate::node::worker::transfers::Side;

/// As the live worker's: pages of a stream that goes on that are read between two of its steps.
const BESIDE_STEPS: u32 = 4;

impl Sending {
    /// Submits the prompt; says whether the transfer is over, as the others do.
    pub(in crate::node::worker) fn start(
        &mut self,
        chunking: &Chunking,
        held: Held,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let Some(spec) = self.spec.take() else { return Ok(true) };
        let tokens = spec.prompt.len() as u32;
        side.core.set_transfer_chunk(chunking.next_tokens(tokens));
        // What does not run here (any more), or not as it was told, is computed like a prompt.
        let lent = self.takes.is_some_and(|from| side.core.lend(side.now, &spec, from));
        // Its stream goes on, so that the engine is not to be busy with all its pages at once.
        let under_way = !lent && spec.resumed.iter().any(|choice| !choice.tokens.is_empty());
        let taken =
            if lent { Ok(()) } else { side.core.submit_prefill(side.now, *spec, self.asked.reserved, held) };
        self.taken(taken, tokens, under_way, chunking, side)
    }

    /// Gives what is here of a prompt's start; says whether the transfer is over.
    pub(in crate::node::worker) fn give(
        &mut self,
        chunking: &Chunking,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let Some(spec) = self.spec.take() else { return Ok(true) };
        let tokens = spec.prompt.len() as u32;
        let taken = side.core.hold_cached(side.now, *spec).map(drop);
        // The streams that run here are not to wait for all of it.
        self.taken(taken, tokens, true, chunking, side)
    }

    fn taken(
        &mut self,
        taken: Result<(), Refusal>,
        tokens: u32,
        beside: bool,
        chunking: &Chunking,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let event = match taken {
            Ok(()) => {
                let most = chunking.message_pages(tokens);
                self.end.pace(chunking.flush_pages(), if beside { most.min(BESIDE_STEPS) } else { most });
                SenderEvent::Submitted
            }
            Err(refusal) => SenderEvent::RefusedLocally(code(&refusal)),
        };
        let key = self.key;
        self.act(side, |end, now, fx| {
            end.asked(now, fx);
            end.on(now, key, event, fx);
        })
    }
}

/// As the live worker says it.
const fn code(refusal: &Refusal) -> RefusalCode {
    match refusal {
        Refusal::NeverFits { .. } | Refusal::TooLong { .. } => RefusalCode::TooLong,
        Refusal::QueueFull { .. } | Refusal::Hopeless { .. } => RefusalCode::QueueFull,
        Refusal::Malformed(_) => RefusalCode::NotThere,
        Refusal::Draining => RefusalCode::Draining,
    }
}
