//! The end of a transfer at which a worker fetches pages.

use std::collections::VecDeque;

use config::ids::WorkerId;
use policies::invariant::Broken;
use policies::kv::handoff::{Sender, SenderEffect, SenderEvent, TransferKey};
use policies::pool::ReaderId;
use policies::time::Time;

use super::{Id, Page, Side};
use crate::event::PageBlock;

mod effects;
mod mail;

#[derive(Debug)]
pub(super) struct Giving {
    pub(super) end: Sender,
    pub(super) id: Id,
    pub(super) key: TransferKey,
    /// Keeps the pages here, until it is over.
    pub(super) reader: Option<ReaderId>,
    /// Who fetches them.
    pub(super) to: WorkerId,
    /// Pages that there are, from the first of the prompt.
    pub(super) pages: u32,
    /// Those that go out next: the first, and how many.
    pub(super) wants: Option<(u32, u32)>,
    /// Of those, what is at hand.
    pub(super) got: Vec<u64>,
    /// Pages that are at hand.
    pub(super) here: Option<PageBlock>,
}

impl Giving {
    /// Answers the question, with `event`, and where there are pages with those.
    pub(super) fn start(&mut self, event: SenderEvent, side: &mut Side<'_>) -> Result<bool, Broken> {
        let (key, pages) = (self.key, self.pages);
        let tokens = pages * side.layout.page_tokens;
        self.act(side, |end, now, fx| {
            end.asked(now, fx);
            end.on(now, key, event, fx);
            if event == SenderEvent::Submitted {
                end.on(now, key, SenderEvent::Computed { pages }, fx);
                end.on(now, key, SenderEvent::Prefilled { tokens, ends: false }, fx);
            }
        })
    }

    pub(super) fn tick(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Sender::tick)
    }

    pub(super) fn link_lost(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, |end, _, fx| end.link_lost(fx))
    }

    /// The store gives this page of the prompt.
    pub(super) fn given(&mut self, index: usize, page: &Page, side: &mut Side<'_>) -> Result<bool, Broken> {
        let Some((first, count)) = self.wants else { return Ok(false) };
        self.got.extend_from_slice(page);
        if index + 1 < (first + count) as usize {
            return Ok(false);
        }
        self.wants = None;
        self.here = Some(PageBlock { first, count, slots: std::mem::take(&mut self.got) });
        let key = self.key;
        self.act(side, |end, now, fx| end.on(now, key, SenderEvent::Exported { first, count }, fx))
    }

    /// Only so many pages are left of those that there were.
    pub(super) fn cut(&mut self, pages: usize, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.pages = self.pages.min(pages as u32);
        let Some((first, count)) = self.wants.take_if(|(first, count)| *first + *count > self.pages) else {
            return Ok(false);
        };
        self.got.clear();
        let key = self.key;
        self.act(side, |end, now, fx| end.on(now, key, SenderEvent::ExportFailed { first, count }, fx))
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
            if let Some(event) = self.effect(effect, side) {
                let mut more = Vec::new();
                self.end.on(side.now, self.key, event, &mut more);
                work.extend(more);
            }
        }
        self.end.check()?;
        Ok(self.end.has_ended())
    }
}
