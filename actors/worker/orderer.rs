//! The worker's ordering policy: in an actor of its own, so that one that panics costs nothing but news. What it is told
//! and what it publishes are messages; no step waits for one. The scheduler supervises it and starts it again, with the
//! accounts that it published last, and goes on with its last ranks meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Config;
use config::ids::TenantId;
use policies::order::configured::{keeping, offloading, ordering};
use policies::order::keep_session::KeepOptions;
use policies::order::offload::OffloadOptions;
use policies::order::{Account, OrderEvent, Ranks, WorkerPolicy};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SpawnErr};
use ractor_cluster::RactorMessage;

use super::scheduler::SchedulerMsg;
use crate::clock;
use crate::supervise::Backoff;

/// How often a policy may forget.
const TICK: Duration = Duration::from_secs(1);
/// Standings in one message to the scheduler, so that a new order of many requests does not hold up a step.
const PART: usize = 512;

type Make = Arc<dyn Fn() -> Option<Box<dyn WorkerPolicy>> + Send + Sync>;

/// The policies of a worker as `runtime.worker-policy` lists them, and how to make them.
#[derive(Clone)]
pub struct Orders {
    /// Gives none where the order is that of arrival.
    pub(super) make: Make,
    /// What is kept between the turns of conversations.
    pub keep: Option<KeepOptions>,
    /// Which prompts other workers compute.
    pub offload: Option<OffloadOptions>,
}

impl Orders {
    /// What the policy is when it is made: its options, for it knows nothing yet.
    fn makes(&self) -> String {
        format!("{:?}", (self.make)())
    }
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { make: _, keep, offload } = self;
        f.debug_struct("Orders").field("keep", keep).field("offload", offload).finish_non_exhaustive()
    }
}

/// The policies that the configuration describes. The list and the tables were checked when it was loaded.
#[must_use]
pub fn orders(config: &Config) -> Orders {
    let (list, tables) = (config.runtime.worker_policy.clone(), config.worker_policy.clone());
    let keep = keeping(&list, &tables);
    let offload = offloading(&list, &tables, config.runtime.max_batch_tokens);
    Orders { make: Arc::new(move || list.iter().find_map(|name| ordering(name, &tables))), keep, offload }
}

/// What a policy's actor takes.
#[derive(Debug, RactorMessage)]
pub enum OrderMsg {
    /// Things happened.
    Observe(Vec<OrderEvent>),
    /// Time to forget.
    Tick,
}

/// The actor of a policy.
#[derive(Debug, Default)]
struct OrderActor;

#[derive(Debug)]
struct OrderState {
    policy: Box<dyn WorkerPolicy>,
    life: u64,
    scheduler: ActorRef<SchedulerMsg>,
}

impl OrderState {
    fn publish(&self, mut ranks: Ranks) {
        while ranks.standings.len() > PART {
            let rest = ranks.standings.split_off(PART);
            let part = Ranks { standings: std::mem::replace(&mut ranks.standings, rest), ..Ranks::default() };
            self.send(part);
        }
        if !ranks.is_empty() {
            self.send(ranks);
        }
    }

    fn send(&self, ranks: Ranks) {
        // The scheduler supervises this actor and ends after it.
        let _ = self.scheduler.cast(SchedulerMsg::Ranks { life: self.life, ranks });
    }
}

impl Actor for OrderActor {
    type Msg = OrderMsg;
    type State = OrderState;
    type Arguments = OrderState;

    async fn pre_start(
        &self,
        myself: ActorRef<OrderMsg>,
        state: OrderState,
    ) -> Result<OrderState, ActorProcessingErr> {
        myself.send_interval(TICK, || OrderMsg::Tick);
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<OrderMsg>,
        message: OrderMsg,
        state: &mut OrderState,
    ) -> Result<(), ActorProcessingErr> {
        let mut ranks = Ranks::default();
        match message {
            OrderMsg::Observe(events) => state.policy.observe(clock::now(), &events, &mut ranks),
            OrderMsg::Tick => {
                state.policy.tick(clock::now(), &mut ranks);
                crate::metrics::enforce("worker-policy", state.policy.check());
            }
        }
        state.publish(ranks);
        Ok(())
    }
}

/// The scheduler's side of its policy.
#[derive(Debug)]
pub(super) struct Orderer {
    orders: Orders,
    actor: Option<ActorRef<OrderMsg>>,
    /// Counts the policies that were started, so that ranks of one before are told apart.
    life: u64,
    /// What the policies published about tenants, for the next one to begin with.
    accounts: BTreeMap<Option<TenantId>, i64>,
    backoff: Backoff,
}

impl Orderer {
    pub(super) fn new(orders: Orders) -> Self {
        Self { orders, actor: None, life: 0, accounts: BTreeMap::new(), backoff: Backoff::default() }
    }

    /// What is kept between the turns of conversations.
    pub(super) const fn keep(&self) -> Option<KeepOptions> {
        self.orders.keep
    }

    /// Which prompts other workers compute.
    pub(super) fn offload(&self) -> Option<OffloadOptions> {
        self.orders.offload.clone()
    }

    /// Starts the policy, if there is one; gives the accounts that it has to be told, or none where there is no policy.
    ///
    /// # Errors
    /// It does not start.
    pub(super) async fn start(
        &mut self,
        scheduler: &ActorRef<SchedulerMsg>,
    ) -> Result<Option<Vec<Account>>, SpawnErr> {
        let started = spawn(&self.orders, self.life + 1, scheduler).await?;
        Ok(self.started(started))
    }

    /// Puts other policies in force. None where the one that orders would be made alike and goes on; else as
    /// [`Orderer::start`].
    ///
    /// # Errors
    /// The new one does not start; then the one before goes on.
    pub(super) async fn replace(
        &mut self,
        orders: Orders,
        scheduler: &ActorRef<SchedulerMsg>,
    ) -> Result<Option<Option<Vec<Account>>>, SpawnErr> {
        let alike = self.orders.makes() == orders.makes();
        if alike {
            self.orders = orders;
            return Ok(None);
        }
        let started = spawn(&orders, self.life + 1, scheduler).await?;
        self.orders = orders;
        let former = self.actor.take();
        let accounts = self.started(started);
        if let Some(former) = former {
            former.stop(Some("replaced by a reload".to_owned()));
        }
        Ok(Some(accounts))
    }

    fn started(&mut self, actor: Option<ActorRef<OrderMsg>>) -> Option<Vec<Account>> {
        self.life += 1;
        self.actor = actor;
        self.actor.as_ref()?;
        let account = |(tenant, counter): (&Option<TenantId>, &i64)| Account {
            tenant: tenant.clone(),
            counter: *counter,
        };
        Some(self.accounts.iter().map(account).collect())
    }

    /// Tells the policy what happened; where it is dead, it is told everything when it is back.
    pub(super) fn tell(&self, events: Vec<OrderEvent>) {
        if let Some(actor) = self.actor.as_ref().filter(|_| !events.is_empty()) {
            let _ = actor.cast(OrderMsg::Observe(events));
        }
    }

    /// Whether these ranks are the present policy's. Its accounts are remembered.
    pub(super) fn takes(&mut self, life: u64, ranks: &Ranks) -> bool {
        if life != self.life {
            return false;
        }
        for (_, _, account) in &ranks.flows {
            self.accounts.insert(account.tenant.clone(), account.counter);
        }
        for (_, tenant) in &ranks.dropped {
            self.accounts.remove(tenant);
        }
        true
    }

    /// The policy's actor has failed: when to start it again. None where it was another one.
    pub(super) fn failed(&mut self, actor: ActorId) -> Option<Duration> {
        self.actor.take_if(|a| a.get_id() == actor)?;
        Some(self.backoff.next_delay(Instant::now()))
    }

    /// A policy is configured and does not run.
    pub(super) fn is_missing(&self) -> bool {
        self.actor.is_none() && (self.orders.make)().is_some()
    }
}

async fn spawn(
    orders: &Orders,
    life: u64,
    scheduler: &ActorRef<SchedulerMsg>,
) -> Result<Option<ActorRef<OrderMsg>>, SpawnErr> {
    let Some(policy) = (orders.make)() else { return Ok(None) };
    let state = OrderState { policy, life, scheduler: scheduler.clone() };
    Ok(Some(crate::supervise::spawn_on_thread::<OrderActor>(state, scheduler.get_cell()).await?))
}

#[cfg(test)]
mod tests;
