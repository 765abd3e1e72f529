//! The batch and the policy that orders it: what it is told, what it has published, who has to make room.

use super::fresh::Spot;
use super::seq::{Place, Seq};
use super::slab::Key;
use super::{Batch, MOST_PREEMPTIONS};
use crate::order::{Account, Arrival, OrderEvent, Ranks, RequestKey, Standing};
use crate::time::{Span, Time};

/// Waiting requests that room is made for in one step.
const MAKE_WAY_FOR: usize = 16;

/// What a batch has from its policy.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// A policy watches; without one the order is that of arrival.
    pub(super) watched: bool,
    /// What the policy has not been told.
    events: Vec<OrderEvent>,
    /// A waiting request has been said to displace others.
    displaces: bool,
    /// Nanoseconds a prompt token; none where nothing is refused for its length.
    pace: Option<Span>,
}

impl Order {
    pub(super) fn tell(&mut self, event: impl FnOnce() -> OrderEvent) {
        if self.watched {
            self.events.push(event());
        }
    }
}

impl Batch {
    /// From now on a policy watches, or none does. A new one is told what is here ([`Batch::take_order_events`]) and may
    /// take over the accounts of the one before. Without a policy the order is that of arrival. What runs goes on.
    pub fn order_by_policy(&mut self, watched: bool, accounts: Vec<Account>) {
        self.order = Order { watched, displaces: watched, ..Order::default() };
        if watched {
            self.order.events.push(OrderEvent::Reloaded(accounts));
            let mut known: Vec<(u64, Key)> = self.requests.iter().map(|(key, r)| (r.number, key)).collect();
            known.sort_unstable();
            for (_, key) in known {
                let request = &self.requests[key];
                let arrival = request.arrival();
                let (which, prompt) = (arrival.key, arrival.prompt);
                let admitted = request.cached.is_some();
                self.order.events.push(OrderEvent::Arrived(arrival.into()));
                if admitted {
                    // What it has used is in the accounts.
                    self.order.events.push(OrderEvent::Admitted { key: which, cached: prompt });
                }
            }
        } else {
            let all: Vec<Key> = self.requests.iter().map(|(key, _)| key).collect();
            for key in all {
                self.rank(key, Standing::EQUAL);
            }
        }
    }

    /// Moves what the policy has to be told to the end of `events`, in order. A driver with a policy takes them with
    /// every step, for they are kept until then.
    pub fn take_order_events(&mut self, events: &mut Vec<OrderEvent>) {
        events.append(&mut self.order.events);
    }

    /// Goes by these ranks from now on. Requests that are gone are ignored.
    pub fn publish(&mut self, ranks: &Ranks) {
        if !self.order.watched {
            return;
        }
        for (key, standing) in &ranks.standings {
            if let Some(&request) = self.by_id.get(&(key.request, key.attempt)) {
                self.order.displaces |= standing.displaces;
                self.rank(request, *standing);
            }
        }
        for (flow, base, _) in &ranks.flows {
            self.fresh.set_base(*flow, *base);
        }
        for (flow, _) in &ranks.dropped {
            self.fresh.set_base(*flow, 0);
        }
        if ranks.pace.is_some() {
            self.order.pace = ranks.pace;
        }
    }

    /// Where a request stands that comes now.
    pub(super) const fn first_standing(&self) -> Standing {
        if self.order.watched { Standing::UNRANKED } else { Standing::EQUAL }
    }

    fn rank(&mut self, request: Key, standing: Standing) {
        for key in self.requests[request].seqs() {
            let seq = &self.seqs[key];
            let (place, spot, rank) = (seq.place, seq.spot, seq.rank());
            match place {
                Place::Fresh => {
                    self.fresh.remove(spot);
                    let seq = &mut self.seqs[key];
                    seq.spot = Spot::new(&standing, seq.order, seq.choice);
                    let spot = seq.spot;
                    self.fresh.insert(spot, key);
                }
                Place::Running => {
                    self.running.retain(|k| *k != key);
                    self.requests[request].standing = standing;
                    self.run(key);
                }
                Place::Resuming | Place::Paused | Place::Receiving | Place::Held => {
                    let list = match place {
                        Place::Resuming => &mut self.resuming,
                        Place::Paused => &mut self.paused,
                        Place::Receiving => &mut self.receiving,
                        _ => &mut self.held,
                    };
                    list.remove(&rank);
                    let level = standing.level_at(self.clock, self.requests[request].since);
                    self.seqs[key].tier = tier(level);
                    list.insert(self.seqs[key].rank(), key);
                }
                Place::Stalled | Place::Expected => {}
            }
        }
        self.requests[request].standing = standing;
    }

    /// Level of a sequence now; it grows while the request gets older.
    pub(super) fn level(&self, seq: &Seq) -> i64 {
        let request = &self.requests[seq.request];
        request.standing.level_at(self.clock, request.since)
    }

    /// Preempts running sequences of lower levels as far as requests that may displace them need it to start in this
    /// step. Called before anything is planned, so that nothing planned gives way.
    pub(super) fn make_way(&mut self) {
        if !self.order.displaces || self.fresh.len() == 0 {
            return;
        }
        let taken = (self.running.len() + self.receiving.len()) as u32;
        let mut slots = self.config.max_running.saturating_sub(taken);
        let mut tokens = self.config.max_batch_tokens.saturating_sub(self.running.len() as u32);
        // Of these the rest of the running ones, and what is to be admitted, may have so many.
        let decodes = self.running.iter().any(|k| !self.seqs[*k].prefilling);
        let mut mixed = if decodes { self.config.max_mixed_tokens } else { u32::MAX };
        // What those that decode take before anybody is admitted.
        let page_tokens = self.config.page_tokens;
        let grows = |s: &Seq| !s.prefilling && s.computed.is_multiple_of(page_tokens);
        let mut promised = self.running.iter().filter(|k| grows(&self.seqs[**k])).count() as u32;
        for key in self.fresh.first_few(MAKE_WAY_FOR) {
            let standing = self.requests[self.seqs[key].request].standing;
            if !standing.displaces {
                return;
            }
            let hits = self.look_up(key);
            let seq = &self.seqs[key];
            let cached = hits.len() as u32 * self.config.page_tokens;
            let missing = seq.len().div_ceil(self.config.page_tokens) - hits.len() as u32;
            let needed = missing.saturating_add(self.reserve(seq)).saturating_add(promised);
            let work = self.work_here(seq, seq.len() - cached);
            let spare = self.spare() + self.callable(key);
            let victims: Vec<Key> = self.victims(standing.level).collect();
            let gain: u32 = victims.iter().map(|k| self.seqs[*k].pages.len() as u32).sum();
            if (slots == 0 && victims.is_empty()) || self.table.room_beside(&hits) + spare + gain < needed {
                return;
            }
            let mut victims = victims.into_iter();
            while slots == 0 || self.table.room_beside(&hits) + spare < needed {
                let Some(victim) = victims.next() else { return };
                self.preempt(victim);
                (slots, tokens) = (slots + 1, tokens + 1);
            }
            (slots, promised) = (slots - 1, promised + missing);
            (tokens, mixed) = (tokens.saturating_sub(work), mixed.saturating_sub(work));
            if tokens.min(mixed) == 0 {
                return;
            }
        }
    }

    /// Running sequences that a request of this level may displace, the first to go first. One that has been preempted as
    /// often as anybody may be is not among them.
    fn victims(&self, level: i64) -> impl Iterator<Item = Key> {
        let bound = tier(level);
        self.running.iter().rev().copied().take_while(move |k| self.seqs[*k].tier > bound)
    }

    /// Whether requests are given up that cannot be done in time.
    pub(super) const fn refuses_late(&self) -> bool {
        self.order.pace.is_some()
    }

    /// Whether a request cannot be done in the time that it has: its prompt alone takes longer at the speed measured.
    /// Gives the time needed and the time left.
    pub(super) fn hopeless(&self, now: Time, uncached: u32, deadline: Time) -> Option<(Span, Span)> {
        let pace = self.order.pace?;
        let needed = Span(pace.0.saturating_mul(u64::from(uncached)));
        let left = deadline.since(now);
        (needed > left).then_some((needed, left))
    }
}

impl super::seq::Request {
    pub(super) fn key(&self) -> RequestKey {
        RequestKey { request: self.spec.id, attempt: self.spec.attempt }
    }

    /// The request as a policy sees it.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival {
            key: self.key(),
            tenant: self.spec.tenant.clone(),
            weight: self.spec.weight,
            props: self.spec.props.clone(),
            prompt: self.spec.prompt.len() as u32,
            since: self.since,
            deadline: self.spec.deadline,
        }
    }
}

/// Order of levels, the highest first; 0 is before all of them but the very highest.
pub(super) const fn tier(level: i64) -> u64 {
    !((level as u64) ^ (1 << 63))
}

/// The order of a sequence among running ones: one that was preempted as often as anybody may be gives way to nobody.
/// When it was admitted room was left for it and everything that ran to reach their limits.
pub(super) const fn running_tier(level: i64, preemptions: u32) -> u64 {
    if preemptions >= MOST_PREEMPTIONS { 0 } else { tier(level) }
}
