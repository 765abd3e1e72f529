//! What a worker has to show, to whoever looks at it.

use policies::batch::Batch;
use policies::placement::WorkerInfo;

use super::transfers::Id;
use super::{Handoffs, Worker};

impl Worker {
    /// Lets go of what is kept for conversations whose next turn does not come any more.
    pub fn end(&mut self) {
        self.core.keep_sessions(None);
    }

    /// What it offers.
    #[must_use]
    pub const fn info(&self) -> &WorkerInfo {
        &self.info
    }

    /// Time of its steps over what is said of them, where its machine has a recorded speed.
    #[must_use]
    pub fn slowed(&self) -> Option<f64> {
        self.engine.slowed()
    }

    /// How its transfers ended, as far as it was their receiver.
    #[must_use]
    pub fn handoffs(&self) -> Handoffs {
        Handoffs { offloaded: self.offloads.ended.clone(), ..self.transfers.ended.clone() }
    }

    /// Prompts that others compute for it of its own accord.
    #[must_use]
    pub fn offloads_left(&self) -> usize {
        self.offloads.outstanding()
    }

    /// Transfers under way.
    #[must_use]
    pub fn transfers_left(&self) -> usize {
        self.transfers.len()
    }

    /// Whether it is an end of the transfer of a request.
    #[must_use]
    pub fn has_transfer(&self, id: Id) -> bool {
        self.transfers.has(id)
    }

    /// The core, to look at.
    #[must_use]
    pub const fn core(&self) -> &Batch {
        &self.core
    }
}
