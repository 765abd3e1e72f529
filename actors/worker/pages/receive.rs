//! The end that takes pages in.

use std::collections::VecDeque;
use std::sync::Arc;

use cluster::kv::{self, ArchivedKvHeader, Inbound, KvHeader, PageBuf, WirePrefix};
use config::ids::{Attempt, RequestId};
use policies::kv::handoff::{HandoffConfig, Receiver, ReceiverEffect, ReceiverEvent, TransferKey, Wanted};
use policies::kv::{Fingerprint, PageHash, PageLayout};
use policies::request::RequestSpec;
use policies::step::Drawn;
use ractor::ActorRef;
use tracing::{debug, warn};

use super::report::{End, report};
use super::{HeldAt, Keeper, KvMsg, PageSetMsg, are_of, from_wire, plain};
use crate::clock;
use crate::kv::{KvPortMsg, Seat};

/// What the receiving end is started with.
#[derive(Debug)]
pub struct ReceiveArgs {
    pub(crate) key: TransferKey,
    pub(crate) wanted: Wanted,
    /// What is asked for runs at the other worker as this attempt, and goes on here.
    pub(crate) takes: Option<Attempt>,
    /// A third worker holds the start of what is asked for.
    pub(crate) prefix: Option<HeldAt>,
    /// The request has its pages.
    pub(crate) reserved: bool,
    pub(crate) limits: HandoffConfig,
    pub(crate) spec: Box<RequestSpec>,
    /// Where the other worker takes questions.
    pub(crate) address: String,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) layout: PageLayout,
    pub(crate) port: ActorRef<KvPortMsg>,
    pub(crate) keeper: Keeper,
}

/// The receiving end of one transfer.
#[derive(Debug)]
pub(crate) struct Receiving {
    core: Receiver,
    args: ReceiveArgs,
    id: (RequestId, Attempt),
    hashes: Arc<[PageHash]>,
    seat: Option<Seat>,
    /// What the sender is asked for as soon as there is a link.
    ask: Option<KvHeader>,
    /// Pages that have come and are not imported yet, by the number of the first.
    here: VecDeque<(u32, Vec<PageBuf>)>,
    /// What the last message brought.
    last: Option<(u32, Vec<Drawn>)>,
}

impl Receiving {
    pub(super) fn new(args: ReceiveArgs) -> Self {
        let begin = if args.reserved { Receiver::new } else { Receiver::unreserved };
        let mut core = begin(args.limits, args.key, args.wanted);
        if args.takes.is_some() {
            let most = args.spec.prompt.len().saturating_add(args.spec.max_tokens as usize);
            core = core.up_to(u32::try_from(most).unwrap_or(u32::MAX));
        }
        let (id, hashes) = ((args.spec.id, args.spec.attempt), args.spec.hashes.clone());
        Self { core, args, id, hashes, seat: None, ask: None, here: VecDeque::new(), last: None }
    }

    pub(super) async fn start(&mut self, myself: &ActorRef<PageSetMsg>) {
        let mut fx = Vec::new();
        self.core.start(clock::now(), &mut fx);
        self.carry_out(fx, myself).await;
    }

    /// Says whether it is over.
    pub(super) async fn handle(&mut self, message: PageSetMsg, myself: &ActorRef<PageSetMsg>) -> bool {
        let (now, key) = (clock::now(), self.args.key);
        let mut fx = Vec::new();
        match message {
            PageSetMsg::Linked(Ok(seat)) => {
                self.seat = Some(seat);
                if let Some(ask) = self.ask.take() {
                    self.send(ask, &mut fx).await;
                }
            }
            PageSetMsg::Linked(Err(why)) | PageSetMsg::LinkLost(why) => {
                debug!(request = %self.id.0, why, "no link to the worker that computes the prompt");
                self.core.link_lost(now, &mut fx);
            }
            PageSetMsg::Message(message) => self.message(*message, &mut fx),
            PageSetMsg::Imported { first, count, done } => {
                let event = if done {
                    ReceiverEvent::Imported { first, count }
                } else {
                    ReceiverEvent::ImportFailed { first, count }
                };
                self.core.on(now, key, event, &mut fx);
            }
            PageSetMsg::Reserved { cached } => {
                self.core.on(now, key, ReceiverEvent::Reserved { cached_pages: cached }, &mut fx);
            }
            PageSetMsg::Dropped(_) => self.core.cancel(now, &mut fx),
            PageSetMsg::Tick => {
                self.core.tick(now, &mut fx);
                crate::metrics::enforce("handoff", self.core.check());
            }
            // Of the other end.
            PageSetMsg::Receive(_) | PageSetMsg::Over => {}
            #[cfg(test)]
            PageSetMsg::Crash => {}
            PageSetMsg::Submitted(_)
            | PageSetMsg::Begun
            | PageSetMsg::Computed { .. }
            | PageSetMsg::Prefilled(_)
            | PageSetMsg::Exported { .. } => {}
        }
        self.carry_out(fx, myself).await;
        self.core.has_ended()
    }

    #[cfg(test)]
    pub(super) const fn key(&self) -> TransferKey {
        self.args.key
    }

    fn message(&mut self, message: Inbound, fx: &mut Vec<ReceiverEffect>) {
        let now = clock::now();
        let (header, pages) = message.into_parts();
        let bytes = pages.iter().map(|page| page.len() as u64).sum();
        let count = pages.len() as u32;
        let header = header.read();
        let (transfer, generation) = header.transfer();
        let key = TransferKey { transfer, generation };
        let event = match header {
            ArchivedKvHeader::Accepted { .. } => ReceiverEvent::Accepted,
            ArchivedKvHeader::Begun { .. } => ReceiverEvent::Begun,
            ArchivedKvHeader::Refused { code, why, .. } => {
                let code = kv::RefusalCode::from(code);
                let (request, name, why) = (self.id.0, code.as_str(), why.as_str());
                if self.args.keeper.computes() {
                    warn!(%request, code = name, why, "a worker turned a prompt away");
                } else {
                    debug!(%request, code = name, why, "a worker does not give what the pool is to store");
                }
                ReceiverEvent::Refused(from_wire(code))
            }
            ArchivedKvHeader::Pages { first, hashes, .. } => {
                let first = first.to_native();
                if are_of(&self.hashes, first, hashes.as_slice()) {
                    self.here.push_back((first, pages));
                    ReceiverEvent::Pages { first, count, bytes }
                } else {
                    ReceiverEvent::BadChecksum { first }
                }
            }
            ArchivedKvHeader::Last { tokens, cached, result, first, hashes, .. } => {
                let first = first.to_native();
                let drawn = kv::decode_drawn(result.as_slice()).unwrap_or_default();
                let ran = self.args.takes.is_some();
                if are_of(&self.hashes, first, hashes.as_slice()) {
                    let last = ReceiverEvent::Last {
                        tokens: tokens.to_native(),
                        first,
                        count,
                        bytes,
                        drawn: self.args.wanted.fits(ran, tokens.to_native(), &drawn),
                        ends: self.args.spec.ends_with(ran, &drawn),
                    };
                    self.here.push_back((first, pages));
                    self.last.get_or_insert((cached.to_native(), drawn));
                    last
                } else {
                    ReceiverEvent::BadChecksum { first }
                }
            }
            ArchivedKvHeader::Cancel { why, .. } => {
                debug!(request = %self.id.0, why = why.as_str(), "the other worker has given a transfer up");
                ReceiverEvent::PeerCancelled
            }
            ArchivedKvHeader::Ask { .. }
            | ArchivedKvHeader::Credit { .. }
            | ArchivedKvHeader::Ack { .. }
            | ArchivedKvHeader::Open { .. }
            | ArchivedKvHeader::Released { .. } => return,
        };
        self.core.on(now, key, event, fx);
        // Pages that the core did not want.
        let wanted: Vec<u32> = fx
            .iter()
            .filter_map(|effect| match effect {
                ReceiverEffect::Import { first, .. } => Some(*first),
                _ => None,
            })
            .collect();
        self.here.retain(|(first, _)| wanted.contains(first));
    }

    async fn carry_out(&mut self, fx: Vec<ReceiverEffect>, myself: &ActorRef<PageSetMsg>) {
        let mut work = VecDeque::from(fx);
        while let Some(effect) = work.pop_front() {
            let mut more = Vec::new();
            self.effect(effect, &mut more, myself).await;
            work.extend(more);
        }
    }

    async fn effect(
        &mut self,
        effect: ReceiverEffect,
        more: &mut Vec<ReceiverEffect>,
        myself: &ActorRef<PageSetMsg>,
    ) {
        let TransferKey { transfer, generation } = self.args.key;
        let id = self.id;
        match effect {
            ReceiverEffect::Ask { first_page, want_pages, window, reserved } => {
                let now = clock::now();
                let spec = match kv::encode_spec(now, &self.args.spec) {
                    Ok(spec) => spec,
                    Err(e) => {
                        warn!(request = %id.0, error = %e, "a request cannot be sent to another worker");
                        return self.core.link_lost(now, more);
                    }
                };
                self.ask = Some(KvHeader::Ask {
                    transfer,
                    generation,
                    fingerprint: self.args.fingerprint.0,
                    layout: self.args.layout.into(),
                    first_page,
                    want_pages,
                    reserved,
                    window,
                    spec,
                    takes: self.args.takes.map(|attempt| attempt.0),
                    held: self.args.wanted.held,
                    prefix: self
                        .args
                        .prefix
                        .take()
                        .map(|at| WirePrefix { address: at.address, tokens: at.tokens }),
                });
                let (to, layout, set) = (self.args.address.clone(), self.args.layout, myself.clone());
                if self.args.port.cast(KvPortMsg::Open { to, layout, transfer, set }).is_err() {
                    self.core.link_lost(now, more);
                }
            }
            ReceiverEffect::Reserve => self.args.keeper.tell(myself, KvMsg::Reserve(id)),
            ReceiverEffect::Open { first_page, window } => {
                self.send(KvHeader::Open { transfer, generation, first_page, window }, more).await;
            }
            ReceiverEffect::Import { first, count } => {
                let at = self
                    .here
                    .iter()
                    .position(|(begins, pages)| *begins == first && pages.len() as u32 == count);
                match at.and_then(|at| self.here.remove(at)) {
                    Some((_, pages)) => {
                        self.args
                            .keeper
                            .tell(myself, KvMsg::Import { id, first, pages, set: myself.clone() });
                    }
                    None => {
                        let event = ReceiverEvent::ImportFailed { first, count };
                        self.core.on(clock::now(), self.args.key, event, more);
                    }
                }
            }
            ReceiverEffect::GrantCredit(pages) => {
                self.send(KvHeader::Credit { transfer, generation, pages }, more).await;
            }
            ReceiverEffect::Commit { tokens, ends, .. } => {
                let (cached, drawn) = self.last.take().unwrap_or_default();
                let commit = KvMsg::Commit { id, tokens, pages: !ends, cached, drawn };
                self.args.keeper.tell(myself, commit);
            }
            ReceiverEffect::Fallback { valid_pages, why } => {
                if self.args.keeper.computes() {
                    warn!(request = %id.0, why = why.as_str(), valid_pages, "computing a prompt here after all");
                    metrics::counter!(crate::metrics::PD_FALLBACKS, "reason" => why.as_str()).increment(1);
                }
                let tokens = valid_pages * self.args.layout.page_tokens;
                self.args.keeper.tell(myself, KvMsg::ComputeHere { id, tokens, why: why.as_str() });
            }
            // The scheduler has dropped the request already: that is how this end hears of it.
            ReceiverEffect::Free => {}
            ReceiverEffect::Ack => self.send(KvHeader::Ack { transfer, generation }, more).await,
            ReceiverEffect::CancelPeer(why) => {
                let why = why.as_str().to_owned();
                self.send(KvHeader::Cancel { transfer, generation, why }, more).await;
            }
            ReceiverEffect::Done(done) => {
                let peer =
                    self.seat.as_ref().map_or(self.args.address.clone(), |s| s.peer().worker.to_string());
                report(End::Receiver, &id.0.to_string(), &peer, !self.args.wanted.held, &done);
            }
        }
    }

    async fn send(&mut self, header: KvHeader, more: &mut Vec<ReceiverEffect>) {
        let sent = match &self.seat {
            Some(seat) => seat.send(plain(header)).await,
            // There was none yet, so that the other end has nothing to hear.
            None => return,
        };
        if !sent {
            self.core.link_lost(clock::now(), more);
        }
    }
}

/// The other end has nothing more to do for a page set that ends in the middle.
impl Drop for Receiving {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.as_ref().filter(|_| !self.core.has_ended()) {
            seat.abandon(self.args.key.generation);
        }
    }
}
