//! A worker: [`policies::batch`] over the fake engine's pages, a step at a time.

use std::collections::BTreeSet;

use config::WorkerRole;
use config::ids::{Attempt, WorkerId};
use policies::batch::{Batch, BatchConfig, BatchEffect};
use policies::cost::fake::{FakeModel, FakePages};
use policies::cost::{CostModel, KvUse};
use policies::invariant::Broken;
use policies::kv::PageLayout;
use policies::kv::handoff::HandoffConfig;
use policies::placement::WorkerInfo;
use policies::request::RequestSpec;
use policies::step::StepOutcome;
use policies::time::{Span, Time};

use crate::event::{ControllerMsg, Event, GatewayMsg, KvMail, KvMessage, Outbox, WorkerMsg};
use crate::pages::page_hash;
use crate::watch::{Checks, Watch};

mod beats;
mod drain;
mod fetches;
mod offloads;
mod orderer;
mod receive;
mod send;
mod transfers;

pub use beats::{Beats, WorkerAd};
pub use offloads::Offloaded;
pub use orderer::Orders;
pub use transfers::Handoffs;

use beats::Heart;
use fetches::Fetches;
use offloads::{LOOK, Offloads};
use orderer::Orderer;
use transfers::{Id, Side, Transfers};

/// What a worker is started with.
#[derive(Clone, Debug)]
pub struct WorkerArgs {
    /// What it tells the controller.
    pub info: WorkerInfo,
    /// Limits of its scheduler.
    pub batch: BatchConfig,
    /// What it computes.
    pub model: FakeModel,
    /// How long that takes.
    pub cost: CostModel,
    /// Shape of its pages.
    pub layout: PageLayout,
    /// Limits of its transfers.
    pub handoff: HandoffConfig,
    /// Who runs next, what is kept, and what others compute.
    pub orders: Orders,
    /// What it tells other workers of itself.
    pub beats: Beats,
}

/// One life of a simulated worker.
#[derive(Debug)]
pub struct Worker {
    info: WorkerInfo,
    core: Batch,
    pages: FakePages,
    cost: CostModel,
    /// Messages about pages so far.
    kv_messages: u64,
    transfers: Transfers,
    orderer: Orderer,
    offloads: Offloads,
    fetches: Fetches,
    heart: Heart,
    /// It takes nothing new; and whether it has said that nothing is left.
    draining: Option<bool>,
    /// Tokens of the step under way.
    step_tokens: usize,
    watch: Watch,
    /// The outcome of the last step, for its memory.
    spare: Option<Box<StepOutcome>>,
    /// Names that it had before, in this life of its process.
    former: Vec<WorkerId>,
}

impl Worker {
    /// A worker with nothing in its pages.
    #[must_use]
    pub fn new(args: WorkerArgs) -> Self {
        let WorkerArgs { info, batch, model, cost, layout, handoff, orders, beats } = args;
        let (budget, link) = (batch.max_batch_tokens, info.hardware.figures.link);
        let pages = FakePages::new(model, batch.pages, batch.page_tokens);
        let mut core = Batch::with_hasher(batch, page_hash);
        let orderer = Orderer::new(&orders, &mut core);
        let offloads = Offloads::new(orders.offloading(budget));
        let transfers = Transfers::new(handoff, layout, budget, link);
        Self {
            info,
            core,
            pages,
            cost,
            kv_messages: 0,
            transfers,
            orderer,
            offloads,
            fetches: Fetches::default(),
            heart: Heart::new(beats),
            draining: None,
            step_tokens: 0,
            watch: Watch::default(),
            spare: None,
            former: Vec::new(),
        }
    }

    /// From now on it is checked so often.
    #[must_use]
    pub fn checked(mut self, checks: Checks) -> Self {
        self.watch = Watch::new(checks);
        self
    }

    /// It was cut off from all others, who have given up what it did: it goes on as a new one, with the pages that it has.
    pub fn renew(&mut self, id: WorkerId) {
        if let Some(kv) = &mut self.info.kv {
            kv.address = id.to_string();
        }
        self.former.push(std::mem::replace(&mut self.info.id, id));
    }

    /// Whether this process has, or had, that name.
    #[must_use]
    pub fn was(&self, id: &WorkerId) -> bool {
        self.info.id == *id || self.former.contains(id)
    }

    /// A message came.
    ///
    /// # Errors
    /// A broken invariant of the core.
    pub fn handle(&mut self, now: Time, message: WorkerMsg, out: &mut Outbox) -> Result<(), Broken> {
        let requests = self.core.requests();
        // As live: all else changes little about what waits.
        let offloads = matches!(
            message,
            WorkerMsg::Submit(..) | WorkerMsg::Take(..) | WorkerMsg::Kv(_) | WorkerMsg::Look
        );
        match message {
            WorkerMsg::Submit(spec, prefill) => self.submit(now, *spec, prefill, None, out),
            WorkerMsg::Take(spec, from, takes) => self.submit(now, *spec, Some(from), Some(takes), out),
            WorkerMsg::Fetch(spec, from) => {
                self.transfers.fetch(now, &mut self.core, &mut self.fetches, *spec, from);
            }
            // What is not here any more needs no stopping. Or nobody takes over what runs here.
            WorkerMsg::Cancel(request, attempt) => {
                self.fetches.call_off((request, attempt));
                if !self.core.end_lending(now, request, attempt, false) {
                    self.core.cancel(now, request, attempt);
                }
            }
            WorkerMsg::CancelChoice(request, attempt, choice) => {
                self.core.cancel_choice(now, request, attempt, choice);
            }
            WorkerMsg::Grant(request, attempt, choice, upto) => {
                self.core.grant(now, request, attempt, choice, upto);
            }
            WorkerMsg::Resync => {
                self.tell_pages(out);
                let (id, pages) = (self.info.id.clone(), self.core.kv_snapshot());
                out.send(Event::Controller(ControllerMsg::KvSnapshot(id, self.kv_messages, pages)));
            }
            WorkerMsg::Kv(mail) => self.mail(now, *mail, out)?,
            WorkerMsg::SetRole(role) => self.set_role(now, role, out),
            WorkerMsg::GatewayLeft => {
                let core = &self.core;
                let theirs = core.running().chain(core.waiting()).chain(core.paused());
                let theirs = theirs.map(|view| (view.seq.request, view.seq.attempt));
                // What is computed for another worker is that one's, who hears of it from its own link to the gateway.
                let own = theirs.filter(|id| !self.transfers.sends(*id));
                let all: BTreeSet<Id> = own.chain(self.transfers.awaited()).collect();
                self.fetches.clear();
                for (request, attempt) in all {
                    self.core.cancel(now, request, attempt);
                }
            }
            WorkerMsg::PeerLost(node) => {
                self.offloads.lost(&node);
                let (transfers, mut side) = self.transfers(now, out);
                transfers.lost(&node, &mut side)?;
            }
            WorkerMsg::Beat(ad) => self.offloads.heard(ad),
            WorkerMsg::BeatDue => self.beat(now, out),
            WorkerMsg::Look => self.offloads.looked(),
            WorkerMsg::Drain => self.drain(now, out),
        }
        self.go_on(now, Vec::new(), offloads, out)?;
        // No step may follow to report that there is room.
        if self.core.requests() < requests {
            out.send(Event::Controller(ControllerMsg::Load(self.info.id.clone(), self.core.load())));
        }
        Ok(())
    }

    /// The engine has run the step.
    ///
    /// # Errors
    /// As [`Worker::handle`].
    pub fn step_done(
        &mut self,
        now: Time,
        outcome: Box<StepOutcome>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let mut fx = out.effects();
        self.transfers.stepped(self.step_tokens, outcome.took);
        self.core.complete(now, &outcome, &mut fx);
        self.spare = Some(outcome);
        self.go_on(now, fx, true, out)?;
        out.send(Event::Controller(ControllerMsg::Load(self.info.id.clone(), self.core.load())));
        Ok(())
    }

    /// A transfer asked to be called.
    ///
    /// # Errors
    /// As [`Worker::handle`].
    pub fn kv_timer(&mut self, now: Time, id: Id, out: &mut Outbox) -> Result<(), Broken> {
        let (transfers, mut side) = self.transfers(now, out);
        transfers.timer(id, &mut side)?;
        self.go_on(now, Vec::new(), true, out)
    }

    fn mail(&mut self, now: Time, mail: KvMail, out: &mut Outbox) -> Result<(), Broken> {
        // The link carries one message of pages of a transfer at a time, so that it is free again when this one is here.
        if let KvMessage::Pages(block) | KvMessage::Last { block, .. } = &mail.message {
            let message =
                KvMessage::Sent { first: block.first, count: block.count, took: now.since(mail.at) };
            let sent = KvMail { id: mail.id, key: mail.key, from: self.info.id.clone(), at: now, message };
            out.after(Span::ZERO, Event::Worker(mail.from.clone(), WorkerMsg::Kv(Box::new(sent))));
        }
        let (transfers, mut side) = self.transfers(now, out);
        transfers.mail(mail, &mut side)
    }

    fn transfers<'a>(&'a mut self, now: Time, out: &'a mut Outbox) -> (&'a mut Transfers, Side<'a>) {
        let (core, pages, offloads) = (&mut self.core, &mut self.pages, &mut self.offloads);
        let side = Side { now, me: &self.info.id, core, pages, offloads, fetches: &mut self.fetches, out };
        (&mut self.transfers, side)
    }

    /// Starts the next step if the engine is free and there is one, and sends what there is to send. Pages that the last
    /// step has filled leave before.
    fn go_on(
        &mut self,
        now: Time,
        mut fx: Vec<BatchEffect>,
        offloads: bool,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        self.news(now, &mut fx, out)?;
        let mut planned = false;
        loop {
            self.orderer.order(now, &mut self.core)?;
            planned |= self.plan(now, out)?;
            // What is left in the queue waits for longer than this step.
            if offloads && self.offloads.send(now, &self.info, &mut self.core, &mut self.transfers) {
                out.after(LOOK, Event::Worker(self.info.id.clone(), WorkerMsg::Look));
            }
            if !self.news(now, &mut fx, out)? {
                break;
            }
        }
        if fx.is_empty() {
            out.reuse(fx);
        } else {
            out.send(Event::Gateway(GatewayMsg::Produced(fx)));
        }
        self.fetches.tell(out);
        self.tell_pages(out);
        self.take_role(now, out);
        self.tell_drained(out);
        if self.heart.beats() {
            self.heart.loaded(now, &self.info.id, &self.core.load(), out);
        }
        self.offloads.check()?;
        let core = &self.core;
        let part = || if planned { core.check_step() } else { core.check_counts() };
        self.watch.check(core.config().pages.into(), || core.check(), part)
    }

    /// Takes a request, whose prompt another worker is to compute, or which runs there as attempt `takes`.
    fn submit(
        &mut self,
        now: Time,
        spec: RequestSpec,
        peer: Option<WorkerId>,
        takes: Option<Attempt>,
        out: &mut Outbox,
    ) {
        let (request, attempt) = (spec.id, spec.attempt);
        let result = self.transfers.submit(now, &mut self.core, spec, peer, takes);
        out.send(Event::Gateway(match result {
            Ok(()) => GatewayMsg::Accepted(request, attempt),
            Err(refusal) => GatewayMsg::Refused(request, attempt, refusal),
        }));
    }

    /// Whether there was a step to start.
    fn plan(&mut self, now: Time, out: &mut Outbox) -> Result<bool, Broken> {
        let Some(plan) = self.core.plan(now) else { return Ok(false) };
        self.step_tokens = plan.slices.iter().map(|slice| slice.tokens.len()).sum();
        let mut outcome = self.spare.take().unwrap_or_default();
        let computed = self.pages.step_into(&plan, &mut outcome);
        computed.map_err(|detail| Broken { name: "sim_step_runs", detail })?;
        // Pages whose content is on its way are not read.
        let (used, total, aside) = (self.core.pages_used(), self.core.config().pages, self.core.set_aside());
        let used = used.saturating_sub(aside.receiving_pages + aside.held_pages);
        outcome.took = self.cost.plan_in(&plan, KvUse { used, total });
        if let Some((seq, reason)) = outcome.failed.first() {
            return Err(Broken { name: "sim_slices_run", detail: format!("{seq:?}: {reason}") });
        }
        out.after(outcome.took, Event::StepDone(self.info.id.clone(), outcome));
        self.core.reuse(plan);
        Ok(true)
    }

    /// Takes what the core has to say: effects for gateways, and what is to be done for transfers. False where nothing was
    /// to be done.
    fn news(&mut self, now: Time, fx: &mut Vec<BatchEffect>, out: &mut Outbox) -> Result<bool, Broken> {
        self.core.take_effects(fx);
        // What is computed for another worker is that one's to tell.
        if self.transfers.len() > 0 {
            fx.retain(|effect| !self.transfers.is_for_another(effect));
        }
        let (transfers, mut side) = self.transfers(now, out);
        let any = transfers.news(&mut side)?;
        if any {
            self.core.take_effects(fx);
        }
        Ok(any)
    }

    /// Tells the controller what has changed of the pages.
    fn tell_pages(&mut self, out: &mut Outbox) {
        let mut events = Vec::new();
        self.core.take_kv_events(&mut events);
        if !events.is_empty() {
            self.kv_messages += 1;
            let id = self.info.id.clone();
            out.send(Event::Controller(ControllerMsg::KvEvents(id, self.kv_messages, events)));
        }
    }

    /// A policy wants another role, or the present one again. As live: first it says that it is about to change, and the
    /// controller gives it nothing new.
    fn set_role(&mut self, now: Time, role: WorkerRole, out: &mut Outbox) {
        let next = (role != self.info.role).then_some(role);
        if self.info.switchable && self.info.switching_to != next {
            self.info.switching_to = next;
            self.tell_role(now, out);
        }
    }

    /// Is what it was about to be, when nothing is left of what it had.
    fn take_role(&mut self, now: Time, out: &mut Outbox) {
        if let Some(role) = self.info.switching_to
            && self.core.requests() == 0
        {
            (self.info.role, self.info.switching_to) = (role, None);
            self.tell_role(now, out);
        }
    }

    /// As live, all hear of it, also who places while there is no controller.
    fn tell_role(&mut self, now: Time, out: &mut Outbox) {
        self.beat(now, out);
        out.send(Event::Controller(ControllerMsg::Joined(Box::new(self.info.clone()))));
        out.send(Event::StandIn(ControllerMsg::Joined(Box::new(self.info.clone()))));
    }

    /// Tells other workers what it offers and what it has to do.
    fn beat(&mut self, now: Time, out: &mut Outbox) {
        let ad =
            WorkerAd { info: self.info.clone(), draining: self.draining.is_some(), load: self.core.load() };
        self.heart.beat(now, ad, out);
    }

    /// Lets go of what is kept for conversations whose next turn does not come any more.
    pub fn end(&mut self) {
        self.core.keep_sessions(None);
    }

    /// What it offers.
    #[must_use]
    pub const fn info(&self) -> &WorkerInfo {
        &self.info
    }

    /// How its transfers ended, as far as it was their receiver.
    #[must_use]
    pub fn handoffs(&self) -> Handoffs {
        Handoffs { offloaded: self.offloads.ended.clone(), ..self.transfers.ended.clone() }
    }

    /// Prompts that others compute for it of its own accord.
    #[must_use]
    pub fn offloads_left(&self) -> usize {
        self.offloads.outstanding()
    }

    /// Transfers under way.
    #[must_use]
    pub fn transfers_left(&self) -> usize {
        self.transfers.len()
    }

    /// Whether it is an end of the transfer of a request.
    #[must_use]
    pub fn has_transfer(&self, id: Id) -> bool {
        self.transfers.has(id)
    }

    /// The core, to look at.
    #[must_use]
    pub const fn core(&self) -> &Batch {
        &self.core
    }
}

#[cfg(test)]
mod tests;
