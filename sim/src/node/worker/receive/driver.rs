//! Calls the core of an end that takes pages in.

use std::collections::VecDeque;

use config::ids::PageId;
use policies::invariant::Broken;
use policies::kv::handoff::{Receiver, ReceiverEffect, ReceiverEvent};
use policies::time::Time;

use super::Receiving;
use crate::node::worker::transfers::Side;

impl Receiving {
    pub(in crate::node::worker) fn start(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Receiver::start)
    }

    /// The scheduler has reserved pages, of which the first `cached` are there.
    pub(in crate::node::worker) fn reserved(
        &mut self,
        pages: Vec<PageId>,
        cached: u32,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        self.table = pages;
        let key = self.key;
        let event = ReceiverEvent::Reserved { cached_pages: cached };
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }

    /// The scheduler has the request no more.
    pub(in crate::node::worker) fn dropped(&mut self, side: &mut Side<'_>) -> Result<(), Broken> {
        self.act(side, Receiver::cancel).map(drop)
    }

    pub(in crate::node::worker) fn tick(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.timer = None;
        self.act(side, Receiver::tick)
    }

    pub(super) fn act(
        &mut self,
        side: &mut Side<'_>,
        call: impl FnOnce(&mut Receiver, Time, &mut Vec<ReceiverEffect>),
    ) -> Result<bool, Broken> {
        let mut fx = Vec::new();
        call(&mut self.end, side.now, &mut fx);
        let mut work = VecDeque::from(fx);
        while let Some(effect) = work.pop_front() {
            if let ReceiverEffect::Import { first, count } = effect {
                let event = match self.import(first, count, side) {
                    true => ReceiverEvent::Imported { first, count },
                    false => ReceiverEvent::ImportFailed { first, count },
                };
                let mut more = Vec::new();
                self.end.on(side.now, self.key, event, &mut more);
                work.extend(more);
            } else {
                self.effect(effect, side);
            }
        }
        self.end.check()?;
        side.wake(&mut self.timer, self.end.next_deadline(), self.id);
        Ok(self.end.has_ended())
    }
}
