//! The end of a transfer that takes pages in.

use std::collections::VecDeque;

use config::ids::{PageId, WorkerId};
use policies::invariant::Broken;
use policies::kv::PageLayout;
use policies::kv::handoff::{
    Asked, HandoffConfig, Receiver, ReceiverEffect, ReceiverEvent, TransferKey, TransferReport, Wanted,
};
use policies::order::offload::End;
use policies::request::RequestSpec;
use policies::step::Drawn;
use policies::time::Time;

use super::transfers::{Id, Side};
use crate::event::{KvMessage, PageBlock};

#[derive(Debug)]
pub(super) struct Receiving {
    end: Receiver,
    id: Id,
    key: TransferKey,
    spec: Box<RequestSpec>,
    peer: WorkerId,
    layout: PageLayout,
    /// The pages that are reserved.
    table: Vec<PageId>,
    /// Pages that have just come.
    here: Option<PageBlock>,
    /// What the last message brought: tokens that the other worker had cached, and the first tokens.
    last: Option<(u32, Vec<Drawn>)>,
    /// When it is called.
    timer: Option<Time>,
    report: Option<TransferReport>,
}

impl Receiving {
    pub(super) fn new(
        limits: HandoffConfig,
        layout: PageLayout,
        key: TransferKey,
        wanted: Wanted,
        spec: Box<RequestSpec>,
        peer: WorkerId,
        pages: Option<Vec<PageId>>,
    ) -> Self {
        let end = match pages {
            Some(_) => Receiver::new(limits, key, wanted),
            None => Receiver::unreserved(limits, key, wanted),
        };
        let (id, table) = ((spec.id, spec.attempt), pages.unwrap_or_default());
        Self { end, id, key, spec, peer, layout, table, here: None, last: None, timer: None, report: None }
    }

    pub(super) fn start(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Receiver::start)
    }

    /// The scheduler has reserved pages, of which the first `cached` are there.
    pub(super) fn reserved(
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

    /// A message of the sender; says whether the transfer is over, as the others do.
    pub(super) fn hear(
        &mut self,
        key: TransferKey,
        message: KvMessage,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let event = match message {
            KvMessage::Accepted => ReceiverEvent::Accepted,
            KvMessage::Refused(code) => ReceiverEvent::Refused(code),
            KvMessage::Begun => ReceiverEvent::Begun,
            KvMessage::Pages(block) => {
                let PageBlock { first, count, .. } = block;
                let bytes = self.bytes(count);
                self.here = Some(block);
                ReceiverEvent::Pages { first, count, bytes }
            }
            KvMessage::Last { tokens, cached, drawn, block } => {
                let PageBlock { first, count, .. } = block;
                let (bytes, some, ends) = (self.bytes(count), !drawn.is_empty(), self.ends(&drawn));
                self.here = Some(block);
                self.last.get_or_insert((cached, drawn));
                ReceiverEvent::Last { tokens, first, count, bytes, drawn: some, ends }
            }
            KvMessage::Cancel => ReceiverEvent::PeerCancelled,
            KvMessage::LinkLost => return self.link_lost(side),
            // Of the other end.
            KvMessage::Ask { .. }
            | KvMessage::Open { .. }
            | KvMessage::Credit(_)
            | KvMessage::Ack
            | KvMessage::Sent { .. } => return Ok(false),
        };
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }

    /// The scheduler has the request no more.
    pub(super) fn dropped(&mut self, side: &mut Side<'_>) -> Result<(), Broken> {
        self.act(side, Receiver::cancel).map(drop)
    }

    pub(super) fn link_lost(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, Receiver::link_lost)
    }

    pub(super) fn tick(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.timer = None;
        self.act(side, Receiver::tick)
    }

    pub(super) const fn peer(&self) -> &WorkerId {
        &self.peer
    }

    /// Once it is over.
    pub(super) const fn report(&self) -> Option<TransferReport> {
        self.report
    }

    fn act(
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

    fn effect(&mut self, effect: ReceiverEffect, side: &mut Side<'_>) {
        let (id, key) = (self.id, self.key);
        let message = match effect {
            ReceiverEffect::Ask { first_page, want_pages, window, reserved } => {
                let page_bytes = self.layout.page_bytes() as u64;
                let page_tokens = self.layout.page_tokens;
                let asked = Asked { first_page, want_pages, window, page_tokens, page_bytes, reserved };
                KvMessage::Ask { asked, spec: self.spec.clone() }
            }
            ReceiverEffect::Reserve => {
                // One that is gone has been dropped, which this end hears next.
                side.core.begun(side.now, id.0, id.1);
                return;
            }
            ReceiverEffect::Open { first_page, window } => KvMessage::Open { first_page, window },
            ReceiverEffect::GrantCredit(pages) => KvMessage::Credit(pages),
            ReceiverEffect::Ack => KvMessage::Ack,
            ReceiverEffect::CancelPeer(_) => KvMessage::Cancel,
            ReceiverEffect::Commit { tokens, ends, .. } => {
                let (cached, drawn) = self.last.take().unwrap_or_default();
                let taken = side.core.received(side.now, id.0, id.1, !ends, cached, &drawn);
                side.offloads.end(side.now, id, if taken { End::Computed } else { End::Failed });
                if !taken {
                    side.core.compute_here(side.now, id.0, id.1, if ends { 0 } else { tokens });
                }
                return;
            }
            ReceiverEffect::Fallback { valid_pages, .. } => {
                let tokens = valid_pages * self.layout.page_tokens;
                side.offloads.end(side.now, id, End::Failed);
                side.core.compute_here(side.now, id.0, id.1, tokens);
                return;
            }
            ReceiverEffect::Done(report) => {
                self.report = Some(report);
                return;
            }
            // The scheduler has dropped the request already: that is how this end hears of it. Imports are done above.
            ReceiverEffect::Free | ReceiverEffect::Import { .. } => return,
        };
        side.send(&self.peer, id, key, message);
    }

    /// Writes what came into the reserved pages; false where it is not what was asked for.
    fn import(&mut self, first: u32, count: u32, side: &mut Side<'_>) -> bool {
        let Some(block) = self.here.take_if(|b| b.first == first && b.count == count) else { return false };
        let Some(table) = self.table.get(first as usize..(first + count) as usize) else { return false };
        let bodies = block.slots.chunks(self.layout.page_tokens as usize);
        table.iter().zip(bodies).all(|(page, body)| {
            side.pages.page_mut(page.index()).map(|slots| slots.copy_from_slice(body)).is_some()
        })
    }

    fn bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.layout.page_bytes() as u64
    }

    /// Whether the request is over with these tokens: by this end's limits, whatever the other one thinks.
    fn ends(&self, drawn: &[Drawn]) -> bool {
        let spec = &self.spec;
        !drawn.is_empty()
            && drawn.iter().all(|d| {
                let ended = !spec.ignore_end && spec.end_tokens.contains(&d.token);
                let before = spec.resumed.get(d.seq.choice as usize).map_or(0, |c| c.tokens.len());
                ended || before + 1 >= spec.max_tokens as usize
            })
    }
}
