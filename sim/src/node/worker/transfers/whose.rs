//! Whose the requests of a worker are: its gateway's, or another worker's.

use policies::batch::BatchEffect;

use super::{Entry, Id, Transfers};

impl Transfers {
    /// Whether a request is here for another worker, so that its gateway knows nothing of it.
    pub(in crate::node::worker) fn is_for_another(&self, effect: &BatchEffect) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let id = match effect {
            BatchEffect::Token(event) => (event.seq.request, event.seq.attempt),
            BatchEffect::Preempted { seq, .. } => (seq.request, seq.attempt),
            BatchEffect::PromptLogprobs { request, attempt, .. }
            | BatchEffect::Done { request, attempt, .. }
            | BatchEffect::Failed { request, attempt, .. }
            | BatchEffect::Late { request, attempt, .. }
            | BatchEffect::TakenOver { request, attempt } => (*request, *attempt),
        };
        self.sends(id)
    }

    /// Whether a request is computed here for another worker.
    pub(in crate::node::worker) fn sends(&self, id: Id) -> bool {
        matches!(self.entries.get(&id), Some(Entry::Sending(_)))
    }

    /// The requests whose prompts another worker computes, or is to, and those that another one is taking over.
    pub(in crate::node::worker) fn awaited(&self) -> impl Iterator<Item = Id> {
        self.entries.iter().filter_map(|(id, entry)| match entry {
            Entry::Sending(end) => end.takes().map(|attempt| (id.0, attempt)),
            Entry::Waiting { .. } | Entry::Receiving(_) => match id.1.fetched_for() {
                Some(attempt) => Some((id.0, attempt)).filter(|id| !self.sends(*id)),
                None => Some(*id),
            },
        })
    }
}
