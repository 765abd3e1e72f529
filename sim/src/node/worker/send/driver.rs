//! Calls the core of an end that gives pages out.

use std::collections::VecDeque;

use config::ids::PageId;
use policies::invariant::Broken;
use policies::kv::handoff::{RefusalCode, Sender, SenderEffect, SenderEvent};
use policies::time::Time;

use super::{Prefilled, Sending};
use crate::node::worker::transfers::Side;

impl Sending {
    /// It is the prompt's turn.
    pub(in crate::node::worker) fn begun(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        let key = self.key;
        self.act(side, |end, now, fx| end.on(now, key, SenderEvent::Begun, fx))
    }

    /// Pages are full; where they are the last ones, more is said of them at once.
    pub(in crate::node::worker) fn computed(
        &mut self,
        first: u32,
        pages: &[PageId],
        ends: bool,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        self.table.truncate(first as usize);
        self.table.extend(pages);
        if ends {
            return Ok(false);
        }
        let (key, pages) = (self.key, self.table.len() as u32);
        self.act(side, |end, now, fx| end.on(now, key, SenderEvent::Computed { pages }, fx))
    }

    pub(in crate::node::worker) fn prefilled(
        &mut self,
        prefilled: Prefilled,
        tail: Option<PageId>,
        ends: bool,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        self.table.extend(tail);
        let (key, event) = (self.key, SenderEvent::Prefilled { tokens: prefilled.tokens, ends });
        self.prefilled = Some(prefilled);
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }

    /// The scheduler has the request no more.
    pub(in crate::node::worker) fn dropped(
        &mut self,
        failed: bool,
        side: &mut Side<'_>,
    ) -> Result<(), Broken> {
        let key = self.key;
        self.act(side, |end, now, fx| match failed {
            true => end.on(now, key, SenderEvent::RefusedLocally(RefusalCode::Failed), fx),
            false => end.cancel(fx),
        })
        .map(drop)
    }

    pub(in crate::node::worker) fn tick(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.timer = None;
        self.act(side, Sender::tick)
    }

    pub(super) fn act(
        &mut self,
        side: &mut Side<'_>,
        call: impl FnOnce(&mut Sender, Time, &mut Vec<SenderEffect>),
    ) -> Result<bool, Broken> {
        let mut fx = Vec::new();
        call(&mut self.end, side.now, &mut fx);
        let mut work = VecDeque::from(fx);
        while let Some(effect) = work.pop_front() {
            if let SenderEffect::Export { first, count } = effect {
                self.here = self.export(first, count, side);
                let event = match self.here {
                    Some(_) => SenderEvent::Exported { first, count },
                    None => SenderEvent::ExportFailed { first, count },
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
