//! The end of a transfer that gives pages out.

use std::collections::VecDeque;

use config::ids::{Attempt, PageId, WorkerId};
use policies::batch::Refusal;
use policies::invariant::Broken;
use policies::kv::handoff::chunking::Chunking;
use policies::kv::handoff::{
    Asked, HandoffConfig, Outcome, RefusalCode, Sender, SenderEffect, SenderEvent, TransferKey,
};
use policies::request::RequestSpec;
use policies::step::Drawn;
use policies::time::Time;

use super::transfers::{Id, Side};
use crate::event::{KvMessage, PageBlock};

/// As the live worker's: pages of a stream that goes on that are read between two of its steps.
const BESIDE_STEPS: u32 = 4;

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

    /// Submits the prompt; says whether the transfer is over, as the others do.
    pub(super) fn start(&mut self, chunking: &Chunking, side: &mut Side<'_>) -> Result<bool, Broken> {
        let Some(spec) = self.spec.take() else { return Ok(true) };
        let tokens = spec.prompt.len() as u32;
        side.core.set_transfer_chunk(chunking.next_tokens(tokens));
        // What does not run here (any more), or not as it was told, is computed like a prompt.
        let lent = self.takes.is_some_and(|from| side.core.lend(side.now, &spec, from));
        // Its stream goes on, so that the engine is not to be busy with all its pages at once.
        let under_way = !lent && spec.resumed.iter().any(|choice| !choice.tokens.is_empty());
        let taken =
            if lent { Ok(()) } else { side.core.submit_prefill(side.now, *spec, self.asked.reserved) };
        let event = match taken {
            Ok(()) => {
                let most = chunking.message_pages(tokens);
                let most = if under_way { most.min(BESIDE_STEPS) } else { most };
                self.end.pace(chunking.flush_pages(), most);
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

    /// It is the prompt's turn.
    pub(super) fn begun(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        let key = self.key;
        self.act(side, |end, now, fx| end.on(now, key, SenderEvent::Begun, fx))
    }

    /// Pages are full; where they are the last ones, more is said of them at once.
    pub(super) fn computed(
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

    pub(super) fn prefilled(
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

    pub(super) fn hear(
        &mut self,
        key: TransferKey,
        message: &KvMessage,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        let event = match message {
            KvMessage::Open { first_page, window } => {
                SenderEvent::Opened { first_page: *first_page, window: *window }
            }
            KvMessage::Credit(pages) => SenderEvent::Credit { pages: *pages },
            KvMessage::Ack => SenderEvent::Ack,
            KvMessage::Cancel => SenderEvent::PeerCancelled,
            KvMessage::LinkLost => return self.link_lost(side),
            // Of the other end.
            KvMessage::Ask { .. }
            | KvMessage::Accepted
            | KvMessage::Begun
            | KvMessage::Refused(_)
            | KvMessage::Pages(_)
            | KvMessage::Last { .. }
            | KvMessage::Sent { .. } => return Ok(false),
        };
        self.act(side, |end, now, fx| end.on(now, key, event, fx))
    }

    /// The link has carried a message of pages.
    pub(super) fn sent(
        &mut self,
        key: TransferKey,
        first: u32,
        count: u32,
        side: &mut Side<'_>,
    ) -> Result<bool, Broken> {
        self.act(side, |end, now, fx| end.on(now, key, SenderEvent::Sent { first, count }, fx))
    }

    /// The scheduler has the request no more.
    pub(super) fn dropped(&mut self, failed: bool, side: &mut Side<'_>) -> Result<(), Broken> {
        let key = self.key;
        self.act(side, |end, now, fx| match failed {
            true => end.on(now, key, SenderEvent::RefusedLocally(RefusalCode::Failed), fx),
            false => end.cancel(fx),
        })
        .map(drop)
    }

    pub(super) fn link_lost(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.act(side, |end, _, fx| end.link_lost(fx))
    }

    pub(super) fn tick(&mut self, side: &mut Side<'_>) -> Result<bool, Broken> {
        self.timer = None;
        self.act(side, Sender::tick)
    }

    pub(super) const fn takes(&self) -> Option<Attempt> {
        self.takes
    }

    pub(super) const fn peer(&self) -> &WorkerId {
        &self.peer
    }

    fn act(
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

    fn effect(&mut self, effect: SenderEffect, side: &mut Side<'_>) {
        let (id, key) = (self.id, self.key);
        let message = match effect {
            SenderEffect::Accept => KvMessage::Accepted,
            SenderEffect::Announce => KvMessage::Begun,
            SenderEffect::Open { .. } => {
                side.core.open(id.0, id.1);
                return;
            }
            SenderEffect::Refuse(code) => KvMessage::Refused(code),
            SenderEffect::CancelPeer(_) => KvMessage::Cancel,
            SenderEffect::SendPages { first, count } => {
                let message = KvMessage::Pages(self.take(first, count));
                return side.send_pages(&self.peer, id, key, self.bytes(count), message);
            }
            SenderEffect::SendLast { first, count, tokens } => {
                let block = self.take(first, count);
                let Some(Prefilled { cached, drawn, .. }) = self.prefilled.take() else { return };
                let message = KvMessage::Last { tokens, cached, drawn, block };
                return side.send_pages(&self.peer, id, key, self.bytes(count), message);
            }
            // What runs here goes on, unless it was taken over; what was computed for the other one is not needed any more.
            SenderEffect::Done(report) => {
                let taken = report.outcome == Outcome::Committed;
                if !side.core.end_lending(side.now, id.0, id.1, taken) {
                    side.core.cancel(side.now, id.0, id.1);
                }
                return;
            }
            // How it has ended says what becomes of the request, and comes next.
            SenderEffect::Release => return,
            // It was submitted when it came, and exports are done above.
            SenderEffect::Submit | SenderEffect::Export { .. } => return,
        };
        side.send(&self.peer, id, key, message);
    }

    /// Copies pages out, as far as they are (still) there.
    fn export(&self, first: u32, count: u32, side: &Side<'_>) -> Option<PageBlock> {
        let table = self.table.get(first as usize..(first + count) as usize)?;
        let mut slots = Vec::with_capacity(count as usize * self.asked.page_tokens as usize);
        for page in table {
            slots.extend_from_slice(side.pages.page(page.index())?);
        }
        Some(PageBlock { first, count, slots })
    }

    fn take(&mut self, first: u32, count: u32) -> PageBlock {
        let here = self.here.take_if(|block| block.first == first && block.count == count);
        here.unwrap_or(PageBlock { first, count, slots: Vec::new() })
    }

    fn bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.asked.page_bytes
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
