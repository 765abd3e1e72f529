//! Counters, and the bound that they are there for.

use std::collections::BTreeMap;

use super::super::testing::{Queue, arrival, key};
use super::*;
use crate::rng::Rng;

fn fair() -> Queue<Fair> {
    Queue::new(Fair::new(FairOptions::default()))
}

fn counter(queue: &Queue<Fair>, tenant: &str) -> f64 {
    queue.policy.counter(Some(&tenant.into())).unwrap()
}

/// A server that batches: what fits into memory runs, and each step gives each running request a token.
struct Server {
    queue: Queue<Fair>,
    /// Tokens that fit into memory.
    memory: u32,
    used: u32,
    /// Prompt, output and tokens left of what waits and runs, with its tenant.
    jobs: BTreeMap<RequestKey, (usize, u32, u32)>,
    running: BTreeMap<RequestKey, u32>,
    waiting: Vec<u32>,
    /// Service by tenant: `w_p` a prompt token at its admission, `w_q` a token drawn.
    service: Vec<u64>,
    next: u64,
}

impl Server {
    fn new(memory: u32, tenants: usize) -> Self {
        let (jobs, running) = Default::default();
        let (waiting, service) = (vec![0; tenants], vec![0; tenants]);
        Self { queue: fair(), memory, used: 0, jobs, running, waiting, service, next: 0 }
    }

    fn arrive(&mut self, tenant: usize, weight: u32, prompt: u32, output: u32) {
        self.jobs.insert(key(self.next), (tenant, prompt, output));
        let name = format!("t{tenant}");
        self.queue.arrive(Arrival { weight, ..arrival(self.next, &name, prompt) });
        self.waiting[tenant] += 1;
        self.next += 1;
    }

    fn step(&mut self) {
        while let Some(first) = self.queue.first() {
            let (tenant, prompt, output) = self.jobs[&first];
            if self.used + prompt + output > self.memory {
                break;
            }
            self.queue.admit(first, 0);
            self.used += prompt + output;
            self.waiting[tenant] -= 1;
            self.service[tenant] += u64::from(prompt);
            self.running.insert(first, output);
            self.queue.tell(&[OrderEvent::Computed { key: first, prefill: prompt, drawn: 0 }]);
        }
        let waits = self.waiting.iter().any(|n| *n > 0);
        assert!(!waits || !self.running.is_empty(), "work waits and nothing runs");
        let mut ended = Vec::new();
        let mut events = Vec::new();
        for (key, left) in &mut self.running {
            self.service[self.jobs[key].0] += 2;
            *left -= 1;
            events.push(OrderEvent::Computed { key: *key, prefill: 0, drawn: 1 });
            if *left == 0 {
                ended.push(*key);
                events.push(OrderEvent::Ended { key: *key });
            }
        }
        self.queue.tell(&events);
        for key in ended {
            self.running.remove(&key);
            let (_, prompt, output) = self.jobs[&key];
            self.used -= prompt + output;
        }
    }
}

/// Two tenants have requests waiting all the time, two others come and go. Whatever the lengths, the first two never get
/// service that differs by more than `2U`, `U = max(w_p · L, w_q · M)`, over any interval: with `D` the difference so
/// far, that is the largest `D` less the smallest.
#[test]
fn backlogged_tenants_get_the_same_within_the_bound() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let memory = 100 + rng.below(300) as u32;
        let longest = [6 + rng.below(60) as u32, 6 + rng.below(60) as u32, 30, 30];
        let outputs = [1 + rng.below(30), 1 + rng.below(30), 20, 30];
        let weights = [1000, [1000, 2000, 500][rng.below(3) as usize]];
        let mut server = Server::new(memory, 4);
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        for step in 0..300 {
            for tenant in 0..4 {
                let come = if tenant < 2 {
                    // Backlogged: more than one step can admit, of six tokens each.
                    (memory / 6 + 1).saturating_sub(server.waiting[tenant])
                } else {
                    u32::from(rng.below(12) == 0 && (step / 100) % 2 == tenant % 2) * 3
                };
                for _ in 0..come {
                    let prompt = 5 + rng.below(u64::from(longest[tenant]) - 4) as u32;
                    let output = 1 + rng.below(outputs[tenant]) as u32;
                    let weight = weights.get(tenant).copied().unwrap_or(1000);
                    server.arrive(tenant, weight, prompt, output);
                }
            }
            server.step();
            let share = |t: usize| server.service[t] as f64 * 1000.0 / f64::from(weights[t]);
            let difference = share(0) - share(1);
            (low, high) = (low.min(difference), high.max(difference));
        }
        let smallest = *weights.iter().min().unwrap();
        let u = f64::from(longest[0].max(longest[1]).max(2 * memory)) * 1000.0 / f64::from(smallest);
        assert!(high - low <= 2.0 * u, "seed {seed}: {low} to {high}, U = {u}");
        assert!(server.service[0] > 0 && server.service[1] > 0);
    }
}

#[test]
fn the_tenant_that_got_least_is_next() {
    let mut queue = fair();
    for number in 0..4 {
        queue.arrive(arrival(number, "greedy", 400));
    }
    for number in 10..30 {
        queue.arrive(arrival(number, "small", 20));
    }
    let order: Vec<u64> = (0..24).map(|_| queue.pop().unwrap().request.number).collect();
    assert_eq!(order[0], 0, "first come, first served among equals");
    assert_eq!(order[1..21], (10..30).collect::<Vec<_>>(), "twenty prompts of 20 for one of 400");
    assert_eq!(order[21..], [1, 2, 3]);
    assert_eq!((counter(&queue, "greedy"), counter(&queue, "small")), (1600.0, 400.0));
}

#[test]
fn weights_divide_what_is_charged() {
    let mut queue = fair();
    for number in 0..60 {
        queue.arrive(Arrival { weight: 2000, ..arrival(number, "heavy", 10) });
        queue.arrive(arrival(100 + number, "light", 10));
    }
    let popped: Vec<u64> = (0..60).map(|_| queue.pop().unwrap().request.number).collect();
    let heavy = popped.iter().filter(|n| **n < 100).count();
    assert!((39..=41).contains(&heavy), "two of three are the heavier tenant's: {heavy}");
}

#[test]
fn only_what_is_computed_is_charged() {
    let mut queue = fair();
    queue.arrive(arrival(0, "a", 100));
    queue.arrive(arrival(1, "a", 100));
    queue.admit(key(0), 64);
    assert_eq!(counter(&queue, "a"), 36.0, "what the cache has is free");
    queue.tell(&[OrderEvent::Computed { key: key(0), prefill: 36, drawn: 1 }]);
    assert_eq!(counter(&queue, "a"), 38.0);
    queue.tell(&[OrderEvent::Preempted { key: key(0) }, OrderEvent::Admitted { key: key(0), cached: 0 }]);
    assert_eq!(counter(&queue, "a"), 38.0, "what is computed again is not charged again");
    queue.tell(&[OrderEvent::Computed { key: key(0), prefill: 0, drawn: 3 }]);
    assert_eq!(counter(&queue, "a"), 44.0);
    queue.admit(key(1), 0);
    queue.tell(&[
        OrderEvent::Computed { key: key(1), prefill: 30, drawn: 0 },
        OrderEvent::Ended { key: key(1) },
    ]);
    assert_eq!(counter(&queue, "a"), 74.0, "what was called off in the middle is given back");
}

#[test]
fn a_tenant_that_was_away_has_saved_up_nothing() {
    let mut queue = fair();
    queue.arrive(arrival(0, "idle", 10));
    for number in 10..30 {
        queue.arrive(arrival(number, "busy", 100));
    }
    assert_eq!(queue.pop().unwrap(), key(0));
    queue.tell(&[
        OrderEvent::Computed { key: key(0), prefill: 10, drawn: 0 },
        OrderEvent::Ended { key: key(0) },
    ]);
    for _ in 0..10 {
        queue.pop().unwrap();
    }
    assert_eq!(counter(&queue, "busy"), 1000.0);
    queue.arrive(arrival(1, "idle", 100));
    assert_eq!(counter(&queue, "idle"), 1000.0, "lifted to those that wait");
    // With nobody waiting, to whoever had something waiting last.
    while queue.pop().is_some() {}
    let last = counter(&queue, "busy");
    queue.arrive(arrival(2, "new", 10));
    assert_eq!(counter(&queue, "new"), last);
}

#[test]
fn counters_survive_a_reload_and_are_dropped_when_they_mean_nothing() {
    let mut queue = fair();
    for number in 0..3 {
        queue.arrive(arrival(number, "a", 100));
    }
    queue.arrive(arrival(10, "b", 10));
    (0..2).for_each(|_| assert!(queue.pop().is_some()));
    let accounts: Vec<Account> = [("a", 100), ("b", 10)]
        .map(|(tenant, tokens)| Account { tenant: Some(tenant.into()), counter: tokens * UNIT as i64 })
        .into();
    assert_eq!(queue.accounts.len(), 2);
    for account in &accounts {
        assert_eq!(queue.accounts[&account.tenant], account.counter);
    }
    // Another one takes over, and is told what is here.
    let mut next = Queue::new(Fair::new(FairOptions { output_weight: 3, ..FairOptions::default() }));
    let known =
        |number, tenant, prompt| OrderEvent::Arrived(std::sync::Arc::new(arrival(number, tenant, prompt)));
    next.tell(&[
        OrderEvent::Reloaded(accounts),
        known(0, "a", 100),
        known(10, "b", 10),
        OrderEvent::Admitted { key: key(0), cached: 100 },
        OrderEvent::Admitted { key: key(10), cached: 10 },
        known(1, "a", 100),
        known(2, "a", 100),
    ]);
    assert_eq!((counter(&next, "a"), counter(&next, "b")), (100.0, 10.0), "nothing is charged or lifted");
    next.tell(&[OrderEvent::Ended { key: key(10) }]);
    next.tick();
    assert_eq!(next.policy.tenants(), 1, "one that would be lifted anyway is forgotten");
    next.tell(&[0, 1, 2].map(|n| OrderEvent::Ended { key: key(n) }));
    next.tick();
    assert_eq!((next.policy.tenants(), next.accounts.len()), (0, 0));
}

#[test]
fn what_is_not_known_or_told_twice_changes_nothing() {
    let mut queue = fair();
    queue.arrive(arrival(0, "a", 100));
    let before = (counter(&queue, "a"), queue.first());
    let again = OrderEvent::Arrived(std::sync::Arc::new(arrival(0, "a", 100)));
    let ranks = queue.tell(&[
        again,
        OrderEvent::Ended { key: key(7) },
        OrderEvent::Admitted { key: key(7), cached: 0 },
        OrderEvent::Computed { key: key(7), prefill: 1, drawn: 1 },
    ]);
    assert_eq!((counter(&queue, "a"), queue.first()), before);
    assert!(ranks.is_empty(), "{ranks:?}");
}
