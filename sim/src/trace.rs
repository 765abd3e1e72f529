//! The hash of everything that happened.

use config::ids::{Attempt, RequestId, WorkerId};
use policies::batch::BatchEffect;
use policies::placement::PlacementEffect;
use policies::request::RequestSpec;
use policies::rng::mix64;
use policies::step::SeqKey;
use policies::time::Time;

use crate::event::{
    ControllerMsg, Event, GatewayMsg, KvMail, KvMessage, PageBlock, PoolEvent, PoolMsg, PoolNews, WorkerMsg,
};
use crate::network::Addr;

/// A running hash of events: their times, their kinds, and whom and what they are about. Two runs with the same hash
/// took the same course.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    hash: u64,
    events: u64,
}

impl Trace {
    /// The hash so far.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        mix64(self.hash)
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Takes in an event.
    pub fn record(&mut self, at: Time, event: &Event) {
        self.events += 1;
        self.add(at.0);
        match event {
            Event::Crash(worker) => self.all([1, (*worker).into()]),
            Event::Start(worker) => self.all([2, (*worker).into()]),
            Event::FalseAlarm(worker) => self.all([8, (*worker).into()]),
            Event::Rejoin(worker) => self.all([9, (*worker).into()]),
            Event::Gateway(message) => self.gateway(message),
            Event::Controller(message) => self.controller(message),
            Event::Worker(worker, message) => {
                self.worker(worker);
                match message {
                    WorkerMsg::Submit(spec, prefill, prefix) => {
                        self.request(10, spec.id, spec.attempt);
                        if let Some(worker) = prefill {
                            self.worker(worker);
                        }
                        if let Some(prefix) = prefix {
                            self.worker(&prefix.from);
                            self.add(prefix.tokens.into());
                        }
                        self.prompt(spec);
                        let resumed = spec.resumed.iter().flat_map(|r| &r.tokens);
                        resumed.for_each(|&t| self.add(t.into()));
                    }
                    WorkerMsg::Cancel(request, attempt) => self.request(11, *request, *attempt),
                    WorkerMsg::CancelChoice(request, attempt, choice) => {
                        self.request(12, *request, *attempt);
                        self.add((*choice).into());
                    }
                    WorkerMsg::Grant(request, attempt, choice, upto) => {
                        self.request(13, *request, *attempt);
                        self.all([(*choice).into(), (*upto).into()]);
                    }
                    WorkerMsg::Resync => self.add(15),
                    WorkerMsg::Kv(mail) => self.mail(mail),
                    WorkerMsg::SetRole(role) => self.all([17, *role as u64]),
                    WorkerMsg::GatewayLeft => self.add(16),
                    WorkerMsg::PeerLost(node) => {
                        self.add(19);
                        self.text(node.as_str());
                    }
                    WorkerMsg::Beat(ad) => {
                        self.add(80);
                        self.worker(&ad.info.id);
                        let levels = [ad.load.requests, ad.load.pages_used, ad.draining.into()];
                        levels.into_iter().for_each(|n| self.add(n.into()));
                        self.add(ad.load.queued_prefill_tokens);
                    }
                    WorkerMsg::BeatDue => self.add(81),
                    WorkerMsg::Look => self.add(82),
                    WorkerMsg::Fetch(spec, from) => {
                        self.request(83, spec.id, spec.attempt);
                        self.worker(from);
                    }
                    WorkerMsg::Take(spec, from, takes) => {
                        self.request(84, spec.id, spec.attempt);
                        self.request(85, spec.id, *takes);
                        self.worker(from);
                    }
                    WorkerMsg::Drain => self.add(86),
                }
            }
            Event::StepDone(worker, outcome) => {
                self.worker(worker);
                self.all([3, outcome.step, outcome.took.0, outcome.drawn.len() as u64]);
                // Whose they are and where they stand is recorded where they are told.
                outcome.drawn.iter().for_each(|drawn| self.add(drawn.token.into()));
            }
            Event::Arrive(arrival, _) => self.request(4, arrival.spec.id, Attempt(0)),
            Event::Leave(request) => self.request(5, *request, Attempt(0)),
            Event::Timer(request) => self.request(6, *request, Attempt(0)),
            Event::ControllerTick => self.add(7),
            Event::Read(request) => self.request(14, *request, Attempt(0)),
            Event::KvTimer(worker, request, attempt) => {
                self.worker(worker);
                self.request(18, *request, *attempt);
            }
            Event::StandIn(message) => {
                self.add(70);
                self.controller(message);
            }
            Event::StandInTick => self.add(71),
            // What is on a wire is recorded when it arrives.
            Event::Wire(wire) => self.all([72, wire.epoch.into()]),
            Event::Notice { who, whom, why: _ } => {
                self.add(73);
                self.addr(*who);
                self.addr(*whom);
            }
            Event::Relink(a, b) => {
                self.add(74);
                self.addr(*a);
                self.addr(*b);
            }
            Event::Flow(generation) => self.all([75, *generation]),
            Event::Fault(index) => self.all([76, (*index).into()]),
            Event::FaultOver(index) => self.all([77, (*index).into()]),
            Event::Move(index) => self.all([78, (*index).into()]),
            Event::Drained(worker) => {
                self.add(79);
                self.worker(worker);
            }
            Event::Pool(event) => self.pool(event),
        }
    }

    /// What happens at pools.
    fn pool(&mut self, event: &PoolEvent) {
        match event {
            PoolEvent::Start(pool) => self.all([88, (*pool).into()]),
            PoolEvent::Message(pool, message) => {
                self.worker(pool);
                match message {
                    PoolMsg::Store(from, spec) => {
                        self.request(89, spec.id, spec.attempt);
                        self.worker(from);
                    }
                    PoolMsg::Resync => self.add(90),
                    PoolMsg::Kv(mail) => self.mail(mail),
                    PoolMsg::PeerLost(peer) => {
                        self.add(91);
                        self.worker(peer);
                    }
                }
            }
            PoolEvent::DiskDone(pool) => {
                self.add(92);
                self.worker(pool);
            }
            PoolEvent::Timer(pool) => {
                self.add(93);
                self.worker(pool);
            }
        }
    }

    fn mail(&mut self, mail: &KvMail) {
        self.request(50, mail.id.0, mail.id.1);
        self.worker(&mail.from);
        self.all([mail.key.transfer, mail.key.generation]);
        let mut pages = |kind: u64, block: &PageBlock| {
            self.all([kind, block.first.into(), block.count.into()]);
            block.slots.iter().for_each(|slot| self.add(*slot));
        };
        match &mail.message {
            KvMessage::Pages(block) => pages(51, block),
            KvMessage::Last { tokens, cached, drawn, block } => {
                pages(52, block);
                self.all([(*tokens).into(), (*cached).into(), drawn.len() as u64]);
            }
            KvMessage::Ask { asked, .. } => self.all([53, asked.first_page.into(), asked.window.into()]),
            KvMessage::Accepted => self.add(54),
            KvMessage::Refused(code) => self.all([55, *code as u64]),
            KvMessage::Credit(pages) => self.all([56, (*pages).into()]),
            KvMessage::Ack => self.add(57),
            KvMessage::Cancel => self.add(58),
            KvMessage::Sent { first, count, took } => {
                self.all([59, (*first).into(), (*count).into(), took.0]);
            }
            KvMessage::LinkLost => self.add(60),
            KvMessage::Begun => self.add(61),
            KvMessage::Open { first_page, window } => {
                self.all([62, (*first_page).into(), (*window).into()]);
            }
        }
    }

    fn gateway(&mut self, message: &GatewayMsg) {
        match message {
            GatewayMsg::Placement(PlacementEffect::Placed { request, attempt, plan }) => {
                self.request(20, *request, *attempt);
                self.worker(&plan.worker);
                self.text(plan.why);
            }
            GatewayMsg::Placement(PlacementEffect::Rejected { request, attempt, reason }) => {
                self.request(21, *request, *attempt);
                self.text(&reason.to_string());
            }
            GatewayMsg::Placement(PlacementEffect::Lost { request, attempt, worker }) => {
                self.request(22, *request, *attempt);
                self.worker(worker);
            }
            GatewayMsg::Accepted(request, attempt) => self.request(23, *request, *attempt),
            GatewayMsg::Refused(request, attempt, refusal) => {
                self.request(24, *request, *attempt);
                self.text(&refusal.to_string());
            }
            GatewayMsg::Produced(effects) => {
                self.all([25, effects.len() as u64]);
                effects.iter().for_each(|effect| self.produced(effect));
            }
            GatewayMsg::Unreachable(request, worker) => {
                self.request(26, *request, Attempt(0));
                self.worker(worker);
            }
            GatewayMsg::NodeLost(node, _) => {
                self.add(27);
                self.text(node.as_str());
            }
            GatewayMsg::NodeFound(node) => {
                self.add(28);
                self.text(node.as_str());
            }
            GatewayMsg::ControllerLost => self.add(29),
            GatewayMsg::ControllerFound => self.add(34),
            GatewayMsg::Fetched(request, attempt, result) => {
                self.request(35, *request, *attempt);
                self.text(result.as_ref().err().map_or("", String::as_str));
            }
        }
    }

    fn produced(&mut self, effect: &BatchEffect) {
        match effect {
            BatchEffect::Token(event) => {
                self.seq(event.token.into(), event.seq);
                let finish = event.finish.map_or(0, |f| 1 + f as u64);
                self.add((finish << 56) ^ (u64::from(event.index) << 28) ^ u64::from(event.cached_tokens));
            }
            BatchEffect::PromptLogprobs { request, attempt, first, tokens } => {
                self.request(30, *request, *attempt);
                self.all([(*first).into(), tokens.len() as u64]);
            }
            BatchEffect::Done { request, attempt, usage } => {
                self.request(31, *request, *attempt);
                self.all([
                    usage.prefilled_tokens.into(),
                    usage.drawn_tokens.into(),
                    usage.preemptions.into(),
                ]);
            }
            BatchEffect::Failed { request, attempt, reason } => {
                self.request(32, *request, *attempt);
                self.text(reason);
            }
            BatchEffect::Late { request, attempt, reason } => {
                self.request(33, *request, *attempt);
                self.text(reason);
            }
            BatchEffect::TakenOver { request, attempt } => self.request(34, *request, *attempt),
            BatchEffect::Preempted { seq, dropped } => {
                self.seq(0, *seq);
                self.add((*dropped).into());
            }
        }
    }

    fn controller(&mut self, message: &ControllerMsg) {
        match message {
            ControllerMsg::Joined(info) => {
                self.add(40);
                self.worker(&info.id);
            }
            ControllerMsg::Left(worker) => {
                self.add(41);
                self.worker(worker);
            }
            ControllerMsg::Load(worker, load) => {
                self.worker(worker);
                let levels = [
                    load.requests,
                    load.running,
                    load.waiting,
                    load.paused,
                    load.pages_used,
                    load.pages_cached,
                ];
                levels.into_iter().for_each(|n| self.add(n.into()));
                self.all([42, load.outstanding_tokens, load.drawn_tokens]);
            }
            ControllerMsg::Place(ask) => {
                self.request(43, ask.request, ask.attempt);
                self.all([ask.prompt_tokens.into(), ask.max_tokens.into(), ask.avoid.len() as u64]);
            }
            ControllerMsg::Release(request, attempt) => self.request(44, *request, *attempt),
            ControllerMsg::Accepted(request, attempt) => self.request(45, *request, *attempt),
            ControllerMsg::Prefilled(request, attempt) => self.request(48, *request, *attempt),
            ControllerMsg::KvEvents(worker, seq, events) => {
                self.worker(worker);
                self.all([46, *seq, events.iter().map(|e| e.pages() as u64).sum()]);
            }
            ControllerMsg::KvSnapshot(worker, seq, pages) => {
                self.worker(worker);
                self.all([47, *seq, pages.len() as u64]);
            }
            ControllerMsg::GatewayLeft(life) => self.all([49, *life]),
            ControllerMsg::Draining(worker) => {
                self.add(87);
                self.worker(worker);
            }
            ControllerMsg::Pool(news) => self.pool_news(news),
        }
    }

    fn pool_news(&mut self, news: &PoolNews) {
        match news {
            PoolNews::Joined(info) => {
                self.add(94);
                self.worker(&info.id);
            }
            PoolNews::Left(pool) => {
                self.add(95);
                self.worker(pool);
            }
            PoolNews::Events(pool, seq, events) => {
                self.worker(pool);
                self.all([96, *seq, events.iter().map(|e| e.pages() as u64).sum()]);
            }
            PoolNews::Snapshot(pool, seq, pages) => {
                self.worker(pool);
                self.all([97, *seq, pages.len() as u64]);
            }
        }
    }

    fn add(&mut self, word: u64) {
        // Multiply and rotate, once a word: there are some twenty words an event.
        let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    fn addr(&mut self, node: Addr) {
        self.add(match node {
            Addr::Gateway => 0,
            Addr::Controller => 1,
            Addr::Worker(n) => 2 + u64::from(n),
            Addr::Pool(n) => (1 << 32) + u64::from(n),
        });
    }

    fn all<const N: usize>(&mut self, words: [u64; N]) {
        words.into_iter().for_each(|word| self.add(word));
    }

    fn text(&mut self, text: &str) {
        self.add(text.len() as u64);
        // The name of a worker, mostly.
        if let &[a, b, c, d, e, f] = text.as_bytes() {
            return self.add(u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
        }
        let bytes = |chunk: &[u8]| chunk.iter().fold(0, |word, &byte| (word << 8) | u64::from(byte));
        text.as_bytes().chunks(8).for_each(|chunk| self.add(bytes(chunk)));
    }

    fn worker(&mut self, worker: &WorkerId) {
        self.text(worker.node.as_str());
        self.add(worker.incarnation);
    }

    /// Full pages by their hashes, and as many tokens from the end as are not in one, or a few more.
    fn prompt(&mut self, spec: &RequestSpec) {
        self.all([spec.prompt.len() as u64, spec.hashes.len() as u64]);
        for hash in spec.hashes.iter() {
            self.add(hash.0.first_chunk().map_or(0, |half| u64::from_le_bytes(*half)));
        }
        let page = spec.prompt.len().checked_div(spec.hashes.len()).unwrap_or(spec.prompt.len());
        let rest = &spec.prompt[spec.prompt.len() - page..];
        rest.iter().for_each(|&token| self.add(token.into()));
    }

    fn request(&mut self, kind: u64, request: RequestId, attempt: Attempt) {
        self.all([kind, request.gateway ^ (u64::from(attempt.0) << 32), request.number]);
    }

    /// `what` is below 2³².
    fn seq(&mut self, what: u64, seq: SeqKey) {
        self.request((u64::from(seq.choice) << 32) ^ what, seq.request, seq.attempt);
    }
}
