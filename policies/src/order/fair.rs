//! `fair`: the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI'24).
//!
//! Each tenant has a counter of the service that it got: `w_p` for a prompt token, `w_q` for a token drawn, over the
//! tenant's weight. The next request is the first one of the tenant with the smallest counter; whoever has nothing
//! waiting loses no work for it, so that the order is work-conserving. A tenant that comes back after it had nothing
//! waiting is lifted to the smallest counter of those that wait, or it could save up idle time and then starve the
//! others.
//!
//! For two tenants that both have requests waiting through an interval, the service that they get in it differs by at
//! most `2 · max(w_p · L, w_q · M)`, with `L` the longest prompt and `M` the tokens of a batch that fits into memory (the
//! paper's bound for backlogged clients; it shows that no work-conserving scheduler that does not preempt can promise
//! less than half of it).
//!
//! Differences to the paper: what is charged at admission is the prompt without what the cache has; what was charged and
//! is not computed in the end (the request was called off, or another worker computed it) is given back; what is computed
//! again after a preemption is nobody's doing and not charged. Where nobody has any request all counters are dropped: no
//! tenant waits for another then, so that there is nothing to be fair about.
//!
//! The place of a request in its flow is the sum of prompts before it, so that several of one tenant that are admitted
//! in one step are ranked as if the counter had been charged in between.

use std::collections::{BTreeMap, BTreeSet};

use config::ids::{PolicyName, TenantId};

use super::{Account, Arrival, Flow, OrderEvent, Ranks, RequestKey, Standing, WorkerPolicy};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::time::Time;

/// Counter units of one token of weight 1 for a tenant of weight 1 (1000 thousandths): integers keep a replay exact.
const UNIT: u64 = 1 << 16;

/// Options of [`Fair`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairOptions {
    /// Weight of a prompt token, `w_p`.
    pub input_weight: u32,
    /// Weight of a token drawn, `w_q`.
    pub output_weight: u32,
}

impl Default for FairOptions {
    /// The paper's.
    fn default() -> Self {
        Self { input_weight: 1, output_weight: 2 }
    }
}

/// The policy.
#[derive(Debug)]
pub struct Fair {
    options: FairOptions,
    tenants: BTreeMap<Option<TenantId>, Tenant>,
    requests: BTreeMap<RequestKey, Request>,
    /// The tenant whose last waiting request was admitted last.
    last_left: Option<Option<TenantId>>,
    /// Flows are numbered as tenants come, and never used again.
    flows: u64,
}

#[derive(Debug)]
struct Tenant {
    flow: Flow,
    /// Service received, over the tenant's weight.
    counter: i64,
    /// Place of the next request.
    tail: i64,
    waiting: BTreeSet<(i64, RequestKey)>,
    /// Requests that have not ended.
    requests: u32,
    /// Base and counter as they were published.
    published: Option<(i64, i64)>,
}

impl Tenant {
    /// What makes the rank of its next request its counter.
    fn base(&self) -> i64 {
        self.counter - self.waiting.first().map_or(self.tail, |(place, _)| *place)
    }
}

#[derive(Debug)]
struct Request {
    tenant: Option<TenantId>,
    weight: u32,
    prompt: u32,
    place: i64,
    /// Prompt tokens that were charged and are not computed yet; none before its admission.
    owed: Option<u32>,
}

impl Fair {
    /// The name by which it is configured.
    pub const NAME: &'static str = "fair";

    /// A policy that has seen nothing.
    #[must_use]
    pub const fn new(options: FairOptions) -> Self {
        Self { options, tenants: BTreeMap::new(), requests: BTreeMap::new(), last_left: None, flows: 0 }
    }

    /// The counter of a tenant in tokens of weight 1; none where it is not known.
    #[must_use]
    pub fn counter(&self, tenant: Option<&TenantId>) -> Option<f64> {
        let tenant = self.tenants.get(&tenant.cloned())?;
        Some(tenant.counter as f64 / UNIT as f64)
    }

    /// Tenants that are remembered.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    fn tenant(&mut self, name: Option<&TenantId>) -> &mut Tenant {
        let flows = &mut self.flows;
        self.tenants.entry(name.cloned()).or_insert_with(|| {
            *flows += 1;
            let waiting = BTreeSet::new();
            Tenant { flow: Flow(*flows), counter: 0, tail: 0, waiting, requests: 0, published: None }
        })
    }

    /// `lifts`: it comes now, and was not here before this policy was.
    fn arrived(&mut self, arrival: &Arrival, lifts: bool, ranks: &mut Ranks) {
        if self.requests.contains_key(&arrival.key) {
            return;
        }
        let name = arrival.tenant.clone();
        let idle = self.tenants.get(&name).is_none_or(|t| t.waiting.is_empty());
        let floor = if idle && lifts { self.floor() } else { None };
        let length = charge(arrival.prompt, self.options.input_weight, arrival.weight);
        let tenant = self.tenant(name.as_ref());
        if let Some(floor) = floor {
            tenant.counter = tenant.counter.max(floor);
        }
        let place = tenant.tail;
        tenant.tail = tenant.tail.saturating_add(length);
        tenant.waiting.insert((place, arrival.key));
        tenant.requests += 1;
        ranks.standings.push((arrival.key, Standing { flow: tenant.flow, place, ..Standing::EQUAL }));
        let (weight, prompt) = (arrival.weight, arrival.prompt);
        self.requests.insert(arrival.key, Request { tenant: name, weight, prompt, place, owed: None });
    }

    /// What a tenant that had nothing waiting is lifted to.
    fn floor(&self) -> Option<i64> {
        let queued = self.tenants.values().filter(|t| !t.waiting.is_empty()).map(|t| t.counter).min();
        queued.or_else(|| self.tenants.get(self.last_left.as_ref()?).map(|t| t.counter))
    }

    fn admitted(&mut self, key: RequestKey, cached: u32) {
        let Some(request) = self.requests.get_mut(&key).filter(|r| r.owed.is_none()) else { return };
        let computed = request.prompt.saturating_sub(cached);
        request.owed = Some(computed);
        let paid = charge(computed, self.options.input_weight, request.weight);
        let (name, place) = (request.tenant.clone(), request.place);
        let tenant = self.tenant(name.as_ref());
        tenant.counter = tenant.counter.saturating_add(paid);
        tenant.waiting.remove(&(place, key));
        if tenant.waiting.is_empty() {
            self.last_left = Some(name);
        }
    }

    fn received(&mut self, key: RequestKey, tokens: u32) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(owed) = &mut request.owed else { return };
        let spared = tokens.min(*owed);
        *owed -= spared;
        let back = charge(spared, self.options.input_weight, request.weight);
        let name = request.tenant.clone();
        self.tenant(name.as_ref()).counter -= back;
    }

    fn computed(&mut self, key: RequestKey, prefill: u32, drawn: u32) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        if let Some(owed) = &mut request.owed {
            *owed = owed.saturating_sub(prefill);
        }
        let paid = charge(drawn, self.options.output_weight, request.weight);
        let name = request.tenant.clone();
        let tenant = self.tenant(name.as_ref());
        tenant.counter = tenant.counter.saturating_add(paid);
    }

    fn ended(&mut self, key: RequestKey) {
        let Some(request) = self.requests.remove(&key) else { return };
        let back = charge(request.owed.unwrap_or(0), self.options.input_weight, request.weight);
        let tenant = self.tenant(request.tenant.as_ref());
        tenant.counter -= back;
        tenant.requests -= 1;
        tenant.waiting.remove(&(request.place, key));
    }

    /// Drops tenants without requests that would be lifted to at least their counter if they came back.
    fn forget(&mut self, ranks: &mut Ranks) {
        let all_idle = self.requests.is_empty();
        let floor = self.floor();
        let none_waits = self.tenants.values().all(|t| t.waiting.is_empty());
        let last = self.last_left.clone().filter(|_| none_waits);
        self.tenants.retain(|name, tenant| {
            let needed = tenant.requests > 0
                || (!all_idle && floor.is_none_or(|floor| tenant.counter > floor))
                || (!all_idle && last.as_ref() == Some(name));
            if !needed {
                ranks.dropped.push((tenant.flow, name.clone()));
            }
            needed
        });
        if self.tenants.is_empty() {
            self.last_left = None;
        }
    }

    fn publish(&mut self, ranks: &mut Ranks) {
        for (name, tenant) in &mut self.tenants {
            let base = tenant.base();
            let state = Some((base, tenant.counter));
            if tenant.published != state {
                tenant.published = state;
                let account = Account { tenant: name.clone(), counter: tenant.counter };
                ranks.flows.push((tenant.flow, base, account));
            }
        }
    }
}

impl WorkerPolicy for Fair {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, _now: Time, events: &[OrderEvent], ranks: &mut Ranks) {
        // What comes with the accounts of a policy before this one was here already: nobody was away.
        let lifts = !matches!(events.first(), Some(OrderEvent::Reloaded(_)));
        for event in events {
            match event {
                OrderEvent::Reloaded(accounts) => {
                    for Account { tenant, counter } in accounts {
                        self.tenant(tenant.as_ref()).counter = *counter;
                    }
                }
                OrderEvent::Arrived(arrival) => self.arrived(arrival, lifts, ranks),
                OrderEvent::Admitted { key, cached } => self.admitted(*key, *cached),
                OrderEvent::Received { key, tokens } => self.received(*key, *tokens),
                OrderEvent::Computed { key, prefill, drawn } => self.computed(*key, *prefill, *drawn),
                OrderEvent::Ended { key } => self.ended(*key),
                OrderEvent::Preempted { .. } | OrderEvent::Stepped { .. } => {}
            }
        }
        self.publish(ranks);
    }

    fn tick(&mut self, _now: Time, ranks: &mut Ranks) {
        self.forget(ranks);
    }

    /// # Errors
    /// A tenant counts other requests than there are.
    fn check(&self) -> Result<(), Broken> {
        let counted: u64 = self.tenants.values().map(|t| u64::from(t.requests)).sum();
        let waiting: usize = self.tenants.values().map(|t| t.waiting.len()).sum();
        let unadmitted = self.requests.values().filter(|r| r.owed.is_none()).count();
        ensure_invariant!(
            counted == self.requests.len() as u64 && waiting == unadmitted,
            "fair_requests",
            "{counted} requests counted of {}, {waiting} of {unadmitted} waiting",
            self.requests.len()
        );
        Ok(())
    }
}

/// What `tokens` of weight `each` add to the counter of a tenant of weight `of` thousandths.
fn charge(tokens: u32, each: u32, of: u32) -> i64 {
    let units = u128::from(tokens) * u128::from(each) * u128::from(UNIT) * 1000 / u128::from(of.max(1));
    i64::try_from(units).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
