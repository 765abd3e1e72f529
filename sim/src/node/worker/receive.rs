//! The end of a transfer that takes pages in.

use std::collections::VecDeque;

use config::ids::{Attempt, PageId, WorkerId};
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
    /// What is asked for runs at the other worker as this attempt, and goes on here.
    takes: Option<Attempt>,
    /// Tokens that have to be there in the end.
    wanted: u32,
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
        (key, takes): (TransferKey, Option<Attempt>),
        wanted: Wanted,
        spec: Box<RequestSpec>,
        peer: WorkerId,
        pages: Option<Vec<PageId>>,
    ) -> Self {
        let mut end = match pages {
            Some(_) => Receiver::new(limits, key, wanted),
            None => Receiver::unreserved(limits, key, wanted),
        };
        if takes.is_some() {
            end = end.up_to((spec.prompt.len() as u32).saturating_add(spec.max_tokens));
        }
        let (id, table) = ((spec.id, spec.attempt), pages.unwrap_or_default());
        let wanted = wanted.tokens;
        let (here, last, timer, report) = (None, None, None, None);
        Self { end, id, key, takes, wanted, spec, peer, layout, table, here, last, timer, report }
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
                let (bytes, some, ends) = (self.bytes(count), self.fits(tokens, &drawn), self.ends(&drawn));
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
                KvMessage::Ask { asked, spec: self.spec.clone(), takes: self.takes }
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
                if side.fetches.has(id) {
                    let result = if ends { Err("the request is about to end".to_owned()) } else { Ok(()) };
                    return side.end_fetch(id, if ends { 0 } else { tokens }, result);
                }
                let (cached, drawn) = self.last.take().unwrap_or_default();
                let taken = side.core.received(side.now, id.0, id.1, !ends, cached, &drawn);
                side.offloads.end(side.now, id, if taken { End::Computed } else { End::Failed });
                if !taken {
                    side.core.compute_here(side.now, id.0, id.1, if ends { 0 } else { tokens });
                }
                return;
            }
            ReceiverEffect::Fallback { valid_pages, why } => {
                let tokens = valid_pages * self.layout.page_tokens;
                if side.fetches.has(id) {
                    return side.end_fetch(id, tokens, Err(why.as_str().to_owned()));
                }
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
        // A request that ran on elsewhere may come with more pages than it had when it was given its own here.
        let more = (first + count).saturating_sub(self.table.len() as u32);
        if more > 0
            && let Some(grown) = side.core.grow_received(self.id.0, self.id.1, more)
        {
            self.table.extend(grown);
        }
        let Some(table) = self.table.get(first as usize..(first + count) as usize) else { return false };
        let bodies = block.slots.chunks(self.layout.page_tokens as usize);
        table.iter().zip(bodies).all(|(page, body)| {
            side.pages.page_mut(page.index()).map(|slots| slots.copy_from_slice(body)).is_some()
        })
    }

    fn bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.layout.page_bytes() as u64
    }

    /// Whether there is a token to go on from; and, of what ran elsewhere, all that were computed.
    fn fits(&self, tokens: u32, drawn: &[Drawn]) -> bool {
        let ahead = tokens.saturating_sub(self.wanted) as usize;
        !drawn.is_empty() && (self.takes.is_none() || drawn.len() == ahead + 1)
    }

    /// Whether the request is over with these tokens: by this end's limits, whatever the other one thinks.
    fn ends(&self, drawn: &[Drawn]) -> bool {
        let spec = &self.spec;
        if self.takes.is_some() && drawn.len() > 1 {
            // It went on, so that none but the last can have ended it, and that would not be here.
            return false;
        }
        !drawn.is_empty()
            && drawn.iter().all(|d| {
                let ended = !spec.ignore_end && spec.end_tokens.contains(&d.token);
                let before = spec.resumed.get(d.seq.choice as usize).map_or(0, |c| c.tokens.len());
                ended || before + 1 >= spec.max_tokens as usize
            })
    }
}
