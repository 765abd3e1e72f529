//! The end that gives pages out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use cluster::kv::{self, ArchivedKvHeader, Inbound, KvHeader, Outbound, PageBuf};
use config::ids::{Attempt, RequestId};
use policies::kv::handoff::{Asked as AskedPages, Outcome, Sender, SenderEffect, SenderEvent, TransferKey};
use policies::kv::{Fingerprint, PageHash, PageLayout};
use policies::request::RequestSpec;
use ractor::ActorRef;
use tracing::warn;

use super::report::{End, report};
use super::{
    Asker, HeldAt, Keeper, KvMsg, PageSetMsg, Prefilled, Provider, hashes, of_refusal, plain, to_wire,
};
use crate::clock;
use crate::kv::{Asked, Lane, Seat};

/// The sending end of one transfer.
#[derive(Debug)]
pub(crate) struct Sending {
    core: Sender,
    key: TransferKey,
    id: (RequestId, Attempt),
    /// Until it is submitted.
    spec: Option<Box<RequestSpec>>,
    /// The first page that is wanted; none where no page is.
    first_page: Option<u32>,
    /// What the other worker takes over is this attempt here.
    takes: Option<Attempt>,
    /// Only what is here of the prompt is given.
    held: bool,
    asker: Asker,
    /// A third worker holds the prompt's start.
    prefix: Option<HeldAt>,
    /// The other worker had pages when it asked.
    reserved: bool,
    hashes: Arc<[PageHash]>,
    lane: Lane,
    /// From the start.
    seat: Option<Seat>,
    keeper: Keeper,
    /// Pages that are out of the engine, by number.
    here: BTreeMap<u32, PageBuf>,
    prefilled: Option<Box<Prefilled>>,
}

impl Sending {
    /// What a question asks for, or why it cannot be answered.
    pub(super) fn of(provider: &Provider, asked: &Asked) -> Result<Self, (kv::RefusalCode, String)> {
        let ArchivedKvHeader::Ask {
            transfer,
            generation,
            fingerprint,
            layout,
            first_page,
            want_pages,
            reserved,
            window,
            spec,
            takes,
            held,
            prefix,
            ..
        } = asked.ask.header()
        else {
            return Err((kv::RefusalCode::Malformed, "it is no question".to_owned()));
        };
        if provider.fingerprint.is_none() && !(*held && *reserved && takes.is_none()) {
            let why = "it is a pool: it gives what it holds, and computes nothing".to_owned();
            return Err((kv::RefusalCode::Unavailable, why));
        }
        if provider.fingerprint.is_some_and(|ours| ours.0 != *fingerprint) {
            let why = "its model, quantisation or page settings differ".to_owned();
            return Err((kv::RefusalCode::Fingerprint, why));
        }
        let spec = match kv::decode_spec(clock::now(), spec.as_slice()) {
            Ok(spec) => Box::new(spec),
            Err(e) => return Err((kv::RefusalCode::Malformed, e.to_string())),
        };
        let key = TransferKey { transfer: transfer.to_native(), generation: generation.to_native() };
        let (first_page, layout) = (first_page.to_native(), PageLayout::from(layout));
        let worker = asked.lane.peer().worker.clone();
        let asker = Asker { worker, fingerprint: Fingerprint(*fingerprint), layout, first_page };
        let wanted = AskedPages {
            first_page,
            want_pages: *want_pages,
            window: window.to_native(),
            page_tokens: layout.page_tokens,
            page_bytes: layout.page_bytes() as u64,
            reserved: *reserved,
        };
        Ok(Self {
            core: Sender::new(provider.limits, key, wanted),
            key,
            id: (spec.id, spec.attempt),
            hashes: spec.hashes.clone(),
            spec: Some(spec),
            first_page: want_pages.then_some(first_page),
            takes: takes.as_ref().map(|attempt| Attempt(attempt.to_native())),
            held: *held,
            asker,
            prefix: prefix
                .as_ref()
                .map(|at| HeldAt { address: at.address.as_str().to_owned(), tokens: at.tokens.to_native() }),
            reserved: *reserved,
            lane: asked.lane.clone(),
            seat: None,
            keeper: provider.keeper.clone(),
            here: BTreeMap::new(),
            prefilled: None,
        })
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane.clone()
    }

    pub(super) const fn key(&self) -> TransferKey {
        self.key
    }

    pub(super) async fn start(&mut self, myself: &ActorRef<PageSetMsg>) {
        let mut fx = Vec::new();
        // Where the link has ended meanwhile this is found out by the answer.
        self.seat = self.lane.join(self.key.transfer, myself);
        self.core.asked(clock::now(), &mut fx);
        self.carry_out(fx, myself).await;
    }

    /// Says whether it is over.
    pub(super) async fn handle(&mut self, message: PageSetMsg, myself: &ActorRef<PageSetMsg>) -> bool {
        let (now, key) = (clock::now(), self.key);
        let mut fx = Vec::new();
        match message {
            PageSetMsg::Submitted(result) => {
                let event = match &result {
                    Ok(pace) => {
                        self.core.pace(pace.least, pace.most);
                        SenderEvent::Submitted
                    }
                    Err(refusal) => SenderEvent::RefusedLocally(of_refusal(refusal)),
                };
                self.core.on(now, key, event, &mut fx);
            }
            PageSetMsg::Begun => self.core.on(now, key, SenderEvent::Begun, &mut fx),
            PageSetMsg::Computed { full, pages } => {
                self.here.extend(pages);
                self.core.on(now, key, SenderEvent::Computed { pages: full }, &mut fx);
            }
            PageSetMsg::Prefilled(mut prefilled) => {
                self.here.extend(std::mem::take(&mut prefilled.pages));
                let event = SenderEvent::Prefilled { tokens: prefilled.tokens, ends: prefilled.ends };
                self.prefilled = Some(prefilled);
                self.core.on(now, key, event, &mut fx);
            }
            PageSetMsg::Exported { first, count, pages } => {
                let event = match pages {
                    Some(pages) => {
                        self.here.extend((first..).zip(pages));
                        SenderEvent::Exported { first, count }
                    }
                    None => SenderEvent::ExportFailed { first, count },
                };
                self.core.on(now, key, event, &mut fx);
            }
            PageSetMsg::Message(message) => self.message(&message, &mut fx),
            PageSetMsg::Linked(_) => {}
            PageSetMsg::LinkLost(_) => self.core.link_lost(&mut fx),
            PageSetMsg::Dropped(reason) => {
                if let Some(reason) = reason {
                    warn!(request = %self.id.0, reason, "a prompt for another worker failed");
                    let event = SenderEvent::RefusedLocally(policies::kv::handoff::RefusalCode::Failed);
                    self.core.on(now, key, event, &mut fx);
                } else {
                    self.core.cancel(&mut fx);
                }
            }
            PageSetMsg::Tick => {
                self.core.tick(now, &mut fx);
                crate::metrics::enforce("handoff", self.core.check());
            }
            // Of the other end.
            PageSetMsg::Imported { .. }
            | PageSetMsg::Reserved { .. }
            | PageSetMsg::Receive(_)
            | PageSetMsg::Over => {}
            #[cfg(test)]
            PageSetMsg::Crash => {}
        }
        self.carry_out(fx, myself).await;
        self.core.has_ended()
    }

    fn message(&mut self, message: &Inbound, fx: &mut Vec<SenderEffect>) {
        let header = message.header();
        let (transfer, generation) = header.transfer();
        let event = match header {
            ArchivedKvHeader::Open { first_page, window, .. } => {
                SenderEvent::Opened { first_page: first_page.to_native(), window: window.to_native() }
            }
            ArchivedKvHeader::Credit { pages, .. } => SenderEvent::Credit { pages: pages.to_native() },
            ArchivedKvHeader::Ack { .. } => SenderEvent::Ack,
            ArchivedKvHeader::Cancel { .. } => SenderEvent::PeerCancelled,
            ArchivedKvHeader::Ask { .. }
            | ArchivedKvHeader::Accepted { .. }
            | ArchivedKvHeader::Begun { .. }
            | ArchivedKvHeader::Refused { .. }
            | ArchivedKvHeader::Pages { .. }
            | ArchivedKvHeader::Last { .. }
            | ArchivedKvHeader::Released { .. } => return,
        };
        self.core.on(clock::now(), TransferKey { transfer, generation }, event, fx);
    }

    async fn carry_out(&mut self, fx: Vec<SenderEffect>, myself: &ActorRef<PageSetMsg>) {
        let mut work = VecDeque::from(fx);
        while let Some(effect) = work.pop_front() {
            let mut more = Vec::new();
            self.effect(effect, &mut more, myself).await;
            work.extend(more);
        }
    }

    async fn effect(
        &mut self,
        effect: SenderEffect,
        more: &mut Vec<SenderEffect>,
        myself: &ActorRef<PageSetMsg>,
    ) {
        let TransferKey { transfer, generation } = self.key;
        let (now, id) = (clock::now(), self.id);
        match effect {
            SenderEffect::Submit => {
                let Some(spec) = self.spec.take() else { return };
                if self.held {
                    let (asker, set) = (self.asker.clone(), myself.clone());
                    return self.keeper.tell(myself, KvMsg::Hold { spec, asker, set });
                }
                let prefix = self.prefix.take();
                let (reserved, takes, set) = (self.reserved, self.takes, myself.clone());
                let first_page = self.first_page.filter(|_| reserved);
                self.keeper.tell(myself, KvMsg::Prefill { spec, first_page, reserved, takes, prefix, set });
            }
            SenderEffect::Accept => self.send(plain(KvHeader::Accepted { transfer, generation }), more).await,
            SenderEffect::Announce => self.send(plain(KvHeader::Begun { transfer, generation }), more).await,
            SenderEffect::Open { first_page } => {
                let first_page = self.first_page.map(|_| first_page);
                self.keeper.tell(myself, KvMsg::Opened { id, first_page });
            }
            SenderEffect::Refuse(code) => {
                let (code, why) = (to_wire(code), code.as_str().to_owned());
                self.send(plain(KvHeader::Refused { transfer, generation, code, why }), more).await;
            }
            SenderEffect::Export { first, count } => {
                if (first..first + count).all(|page| self.here.contains_key(&page)) {
                    self.core.on(now, self.key, SenderEvent::Exported { first, count }, more);
                } else {
                    self.keeper.tell(myself, KvMsg::Export { id, first, count, set: myself.clone() });
                }
            }
            SenderEffect::SendPages { first, count } => {
                let pages = self.take(first, count);
                let hashes = hashes(&self.hashes, first, count);
                let checksums = Vec::new();
                let header = KvHeader::Pages { transfer, generation, first, checksums, hashes };
                self.send_pages(Outbound { header, pages }, (first, count), more, myself).await;
            }
            SenderEffect::SendLast { first, count, tokens } => {
                let pages = self.take(first, count);
                let Some(prefilled) = self.prefilled.take() else { return };
                let result = match kv::encode_drawn(&prefilled.drawn) {
                    Ok(result) => result,
                    Err(e) => {
                        warn!(request = %id.0, error = %e, "first tokens cannot be sent");
                        return self.core.cancel(more);
                    }
                };
                let header = KvHeader::Last {
                    transfer,
                    generation,
                    tokens,
                    cached: prefilled.cached,
                    result,
                    first,
                    checksums: Vec::new(),
                    hashes: hashes(&self.hashes, first, count),
                };
                self.send_pages(Outbound { header, pages }, (first, count), more, myself).await;
            }
            // How it has ended says what becomes of the request: the report comes next.
            SenderEffect::Release => self.here.clear(),
            SenderEffect::CancelPeer(why) => {
                let why = why.as_str().to_owned();
                self.send(plain(KvHeader::Cancel { transfer, generation, why }), more).await;
            }
            SenderEffect::Done(done) => {
                let taken = done.outcome == Outcome::Committed;
                self.keeper.tell(myself, KvMsg::Release { id, taken });
                let peer = self.lane.peer().worker.to_string();
                report(End::Sender, &id.0.to_string(), &peer, !self.held, &done);
            }
        }
    }

    /// Takes pages to send, and forgets those before.
    fn take(&mut self, first: u32, count: u32) -> Vec<PageBuf> {
        let mut pages = self.here.split_off(&first);
        self.here = pages.split_off(&(first + count));
        pages.into_values().collect()
    }

    async fn send_pages(
        &mut self,
        message: Outbound,
        (first, count): (u32, u32),
        more: &mut Vec<SenderEffect>,
        myself: &ActorRef<PageSetMsg>,
    ) {
        let (bytes, begun) = (message.body_bytes() as u64, Instant::now());
        self.send(message, more).await;
        self.keeper.tell(myself, KvMsg::Sent { bytes, took: begun.elapsed() });
        self.core.on(clock::now(), self.key, SenderEvent::Sent { first, count }, more);
    }

    async fn send(&mut self, message: Outbound, more: &mut Vec<SenderEffect>) {
        if !self.lane.send(message).await {
            self.core.link_lost(more);
        }
    }
}

/// The other end waits for nothing more from a page set that ends in the middle.
impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.as_ref().filter(|_| !self.core.has_ended()) {
            seat.abandon(self.key.generation);
        }
    }
}
