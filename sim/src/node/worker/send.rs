//! The end of a transfer that gives pages out.

use config::ids::{Attempt, PageId, WorkerId};
use policies::kv::handoff::{Asked, HandoffConfig, Sender, TransferKey};
use policies::request::RequestSpec;
use policies::step::Drawn;
use policies::time::Time;

use super::transfers::Id;
use crate::event::PageBlock;

mod driver;
mod effects;
mod mail;
mod start;

/// A prompt that was computed for another worker.
#[derive(Debug)]
pub(super) struct Prefilled {
    pub(super) tokens: u32,
    /// Of those, found in the cache.
    pub(super) cached: u32,
    pub(super) drawn: Vec<Drawn>,
}

#[derive(Debug)]
pub(super) struct Sending {
    end: Sender,
    id: Id,
    key: TransferKey,
    /// What the other worker takes over is this attempt here.
    takes: Option<Attempt>,
    asked: Asked,
    /// Until it is submitted.
    spec: Option<Box<RequestSpec>>,
    peer: WorkerId,
    /// The pages that are computed.
    table: Vec<PageId>,
    /// Pages that are out of the engine.
    here: Option<PageBlock>,
    prefilled: Option<Prefilled>,
    timer: Option<Time>,
}

impl Sending {
    pub(super) fn new(
        limits: HandoffConfig,
        (key, takes): (TransferKey, Option<Attempt>),
        asked: Asked,
        spec: Box<RequestSpec>,
        peer: WorkerId,
    ) -> Self {
        Self {
            end: Sender::new(limits, key, asked),
            id: (spec.id, spec.attempt),
            key,
            takes,
            asked,
            spec: Some(spec),
            peer,
            table: Vec::new(),
            here: None,
            prefilled: None,
            timer: None,
        }
    }

    /// What was asked for, until it is submitted.
    pub(super) fn spec(&self) -> Option<&RequestSpec> {
        self.spec.as_deref()
    }

    pub(super) const fn takes(&self) -> Option<Attempt> {
        self.takes
    }

    pub(super) const fn peer(&self) -> &WorkerId {
        &self.peer
    }
}
