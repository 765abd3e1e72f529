//! The end of a transfer at which pages of a prompt come in, to be kept.

use std::collections::{BTreeMap, VecDeque};

use config::ids::WorkerId;
use policies::invariant::Broken;
use policies::kv::handoff::{Asked, Receiver, ReceiverEffect, ReceiverEvent, TransferKey};
use policies::pool::PutId;
use policies::request::RequestSpec;
use policies::time::Time;

use super::{Id, Page, Side};
use crate::event::PageBlock;

mod effects;
mod mail;

#[derive(Debug)]
pub(super) struct Taking {
    pub(super) end: Receiver,
    pub(super) id: Id,
    pub(super) key: TransferKey,
    /// Until it is over.
    pub(super) put: Option<PutId>,
    /// Who has computed the prompt.
    pub(super) from: WorkerId,
    pub(super) spec: Box<RequestSpec>,
    /// Pages that have just come.
    pub(super) here: Option<PageBlock>,
    /// Pages that the store has not kept yet, by their place in the prompt.
    pub(super) came: BTreeMap<usize, Page>,
    /// Messages with such pages: the first, and how many.
    pub(super) imports: VecDeque<(u32, u32)>,
}

impl Taking {
    pub(super) fn start(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Receiver::start)
    }

    pub(super) fn tick(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Receiver::tick)
    }

    pub(super) fn link_lost(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Receiver::link_lost)
    }

    /// Takes out a page that came.
    pub(super) fn came(&mut self, index: usize) -> Option<Page> {
        self.came.remove(&index)
    }

    /// The store has kept this page.
    pub(super) fn stored(&mut self, index: usize, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.landed(index + 1, side)
    }

    /// Nothing more is kept; the first `pages` of the prompt are here.
    pub(super) fn put_ended(&mut self, pages: usize, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.put = None;
        self.came.clear();
        let mut over = self.landed(pages, side)?;
        let key = self.key;
        while let Some((first, count)) = self.imports.pop_front() {
            let event = ReceiverEvent::ImportFailed { first, count };
            over = self.act(side, |end, now, fx| end.on(now, key, event, fx))?;
        }
        // Where all that was wanted is here the worker has a last word to say. Else nobody waits for what it still sends.
        if !over && pages < self.spec.hashes.len() {
            over = self.act(side, Receiver::cancel)?;
        }
        Ok(over)
    }

    fn landed(&mut self, pages: usize, side: &mut Side<'_>) -> Result<bool, Broken> {
        let key = self.key;
        while let Some((first, count)) =
            self.imports.front().copied().filter(|(f, c)| (f + c) as usize <= pages)
        {
            self.imports.pop_front();
            self.act(side, |end, now, fx| end.on(now, key, ReceiverEvent::Imported { first, count }, fx))?;
        }
        Ok(self.end.has_ended())
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
            if let Some(event) = self.effect(effect, side) {
                let mut more = Vec::new();
                self.end.on(side.now, self.key, event, &mut more);
                work.extend(more);
            }
        }
        self.end.check()?;
        Ok(self.end.has_ended())
    }

    pub(super) fn asks(first_page: u32, want_pages: bool, window: u32, side: &Side<'_>) -> Asked {
        let (page_tokens, page_bytes) = (side.layout.page_tokens, side.bytes(1));
        Asked { first_page, want_pages, window, page_tokens, page_bytes, reserved: true }
    }
}
