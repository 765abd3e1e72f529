//! What the policies' tests have in common: requests, and a queue that goes by what was published.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, RequestId, TenantId};

use super::{Account, Arrival, Flow, OrderEvent, Ranks, RequestKey, Standing, WorkerPolicy};
use crate::request::{Prop, Props, WEIGHT_ONE};
use crate::time::Time;

pub(super) fn key(number: u64) -> RequestKey {
    RequestKey { request: RequestId::new(1, number), attempt: Attempt(0) }
}

pub(super) fn arrival(number: u64, tenant: &str, prompt: u32) -> Arrival {
    Arrival {
        key: key(number),
        tenant: Some(tenant.into()),
        weight: WEIGHT_ONE,
        props: Arc::default(),
        prompt,
        since: Time::ZERO,
        deadline: Time::NEVER,
    }
}

pub(super) fn with_props<const N: usize>(props: [(&str, Prop); N]) -> Arc<Props> {
    Arc::new(props.into_iter().map(|(name, prop)| (name.to_owned(), prop)).collect())
}

/// Waiting requests in the order that a policy publishes, as the scheduler keeps them.
#[derive(Debug)]
pub(super) struct Queue<P> {
    pub(super) policy: P,
    pub(super) now: Time,
    waiting: BTreeMap<RequestKey, (Standing, u64)>,
    bases: BTreeMap<Flow, i64>,
    pub(super) accounts: BTreeMap<Option<TenantId>, i64>,
    arrivals: u64,
}

impl<P: WorkerPolicy> Queue<P> {
    pub(super) fn new(policy: P) -> Self {
        let (waiting, bases, accounts) = Default::default();
        Self { policy, now: Time::ZERO, waiting, bases, accounts, arrivals: 0 }
    }

    pub(super) fn tell(&mut self, events: &[OrderEvent]) -> Ranks {
        let mut ranks = Ranks::default();
        self.policy.observe(self.now, events, &mut ranks);
        self.take(&ranks);
        ranks
    }

    pub(super) fn tick(&mut self) {
        let mut ranks = Ranks::default();
        self.policy.tick(self.now, &mut ranks);
        self.take(&ranks);
    }

    fn take(&mut self, ranks: &Ranks) {
        for (key, standing) in &ranks.standings {
            if let Some(waiting) = self.waiting.get_mut(key) {
                waiting.0 = *standing;
            }
        }
        for (flow, base, Account { tenant, counter }) in &ranks.flows {
            self.bases.insert(*flow, *base);
            self.accounts.insert(tenant.clone(), *counter);
        }
        for (flow, tenant) in &ranks.dropped {
            self.bases.remove(flow);
            self.accounts.remove(tenant);
        }
        self.policy.check().unwrap();
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) {
        self.waiting.insert(arrival.key, (Standing::UNRANKED, self.arrivals));
        self.arrivals += 1;
        self.tell(&[OrderEvent::Arrived(Arc::new(arrival))]);
    }

    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<RequestKey> {
        let rank = |(_, (standing, order)): &(&RequestKey, &(Standing, u64))| {
            let base = self.bases.get(&standing.flow).copied().unwrap_or(0);
            (base.saturating_add(standing.place), *order)
        };
        self.waiting.iter().min_by_key(rank).map(|(key, _)| *key)
    }

    pub(super) fn admit(&mut self, key: RequestKey, cached: u32) {
        assert!(self.waiting.remove(&key).is_some());
        self.tell(&[OrderEvent::Admitted { key, cached }]);
    }

    /// Takes out whose turn it is.
    pub(super) fn pop(&mut self) -> Option<RequestKey> {
        let key = self.first()?;
        self.admit(key, 0);
        Some(key)
    }
}
