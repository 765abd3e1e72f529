//! `session-affinity`: a conversation stays where its pages are.
//!
//! A session is bound to the worker that *took* its last request (a worker that was only chosen, and then refused or
//! died, binds nothing), for as long as it is used. The binding is soft: where the worker is gone, drains, is full or has
//! far more requests than the others, the session moves.
//!
//! A session that is not bound goes to its first worker by rendezvous hash (Thaler and Ravishankar, 1998) that has room
//! for it: the hash alone makes controllers that know nothing of one another agree, and moves only the sessions of a
//! worker that comes or goes; the room, `load-factor` times the mean number of sessions, keeps chance from filling one
//! worker (Mirrokni, Thorup and Zadimoghaddam, 2018). Those without room are filtered out; the hash itself is a small
//! cost, so that it gives way where another policy knows a worker that already holds much of the prompt.

use std::collections::BTreeMap;
use std::time::Duration;

use config::SessionAffinityConfig;
use config::ids::{Attempt, PolicyName, RequestId, SessionId, WorkerId};

use super::{CandidateRow, ClusterPolicy, Opinion, Pin, PlacedAt, PolicyAction, PolicyEvent, PolicyQuery};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::placement::WorkerView;
use crate::rng::mix64;
use crate::time::{Span, Time};

/// What it costs, in tokens, to be another worker than the first by hash: more than chance differences of load, less than
/// a prefix that is worth having.
const HASH_PREFERENCE: u64 = 128;

/// Options of `session-affinity`: those of its table that it decides by. The configuration has their defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionAffinityOptions {
    /// A session that was not used for so long is bound no more.
    pub idle_timeout: Span,
    /// Sessions that are remembered at most; the one not used for longest is forgotten for a new one. At least 1.
    pub max_sessions: usize,
    /// A worker has room for another session while it has less than this many times the mean; and it keeps its sessions
    /// while it has less than this many times the mean of requests. SGLang's name and default (of its `prefix_hash`). At
    /// least 1.
    pub load_factor: f64,
    /// A worker with fewer requests than this is never too busy for its sessions: a mean of few is no measure.
    pub min_requests: u32,
}

impl Default for SessionAffinityOptions {
    fn default() -> Self {
        Self::from(&SessionAffinityConfig::default())
    }
}

impl From<&SessionAffinityConfig> for SessionAffinityOptions {
    fn from(session_affinity: &SessionAffinityConfig) -> Self {
        Self {
            idle_timeout: Duration::from(session_affinity.idle_timeout).into(),
            max_sessions: session_affinity.max_sessions,
            load_factor: session_affinity.load_factor,
            min_requests: session_affinity.min_requests,
        }
    }
}

/// The policy and its bindings.
#[derive(Clone, Debug)]
pub struct SessionAffinity {
    options: SessionAffinityOptions,
    bound: BTreeMap<SessionId, Binding>,
    /// By last use, for forgetting; the number makes uses at one time distinct.
    by_use: BTreeMap<(Time, u64), SessionId>,
    /// Attempts of sessions that were placed and not taken yet.
    placed: BTreeMap<(RequestId, Attempt), WorkerId>,
    /// Sessions bound to a worker, and those on their way there.
    sessions: BTreeMap<WorkerId, u64>,
    uses: u64,
}

#[derive(Clone, Debug)]
struct Binding {
    worker: WorkerId,
    used: (Time, u64),
}

impl SessionAffinity {
    /// Its configured name.
    pub const NAME: &'static str = "session-affinity";

    /// A policy that knows no session.
    #[must_use]
    pub const fn new(options: SessionAffinityOptions) -> Self {
        Self {
            options,
            bound: BTreeMap::new(),
            by_use: BTreeMap::new(),
            placed: BTreeMap::new(),
            sessions: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Sessions that are bound.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound.len()
    }

    /// The worker that a session is bound to.
    #[must_use]
    pub fn worker_of(&self, session: &SessionId) -> Option<&WorkerId> {
        self.bound.get(session).map(|b| &b.worker)
    }

    fn bind(&mut self, now: Time, session: SessionId, worker: WorkerId) {
        self.unbind(&session);
        while self.bound.len() >= self.options.max_sessions.max(1) {
            let Some(oldest) = self.by_use.first_key_value().map(|(_, session)| session.clone()) else {
                break;
            };
            self.unbind(&oldest);
        }
        self.uses += 1;
        let used = (now, self.uses);
        self.by_use.insert(used, session.clone());
        self.count(&worker, true);
        self.bound.insert(session, Binding { worker, used });
    }

    fn unbind(&mut self, session: &SessionId) {
        if let Some(binding) = self.bound.remove(session) {
            self.by_use.remove(&binding.used);
            self.count(&binding.worker, false);
        }
    }

    /// Takes note of a session more or less at a worker.
    fn count(&mut self, worker: &WorkerId, more: bool) {
        let count = self.sessions.entry(worker.clone()).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.sessions.remove(worker);
        }
    }

    /// An attempt is not on its way any more.
    fn arrived(&mut self, at: &PlacedAt) {
        if let Some(worker) = self.placed.remove(&(at.request, at.attempt)) {
            self.count(&worker, false);
        }
    }

    /// Forgets sessions that were idle for too long.
    fn forget_idle(&mut self, now: Time) {
        while let Some((&(used, _), session)) = self.by_use.first_key_value()
            && now.since(used) >= self.options.idle_timeout
        {
            let session = session.clone();
            self.unbind(&session);
        }
    }

    /// Where a session may go that has no worker, and where it would rather: its ranking of those that have room for it;
    /// of all where none has.
    fn stranger(&self, session: &SessionId, rows: &[&CandidateRow]) -> Ranking {
        let has = |row: &CandidateRow| self.sessions.get(&row.worker).copied().unwrap_or(0);
        let total: u64 = rows.iter().map(|row| has(row)).sum();
        let room = share(self.options.load_factor, total, rows.len());
        let busy = self.busy_from(rows);
        let free = |row: &CandidateRow| has(row) < room && u64::from(row.requests) < busy;
        let key = hash(session.as_str());
        let all_full = !rows.iter().any(|row| free(row));
        let (mut order, mut full) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            if all_full || free(row) {
                order.push((score(key, &row.worker), &row.worker, has(row)));
            } else {
                full.push(row.worker.clone());
            }
        }
        order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        let sessions = order.first().map_or(0, |(_, _, sessions)| *sessions);
        let cost = |rank: usize| if rank == 0 { 0 } else { HASH_PREFERENCE + rank as u64 };
        let costs =
            order.into_iter().enumerate().map(|(rank, (_, id, _))| (id.clone(), cost(rank))).collect();
        Ranking { costs, full, sessions }
    }

    /// With how many requests a worker is too busy.
    fn busy_from(&self, rows: &[&CandidateRow]) -> u64 {
        let total = rows.iter().map(|r| u64::from(r.requests)).sum();
        share(self.options.load_factor, total, rows.len()).max(self.options.min_requests.into())
    }
}

/// Workers for a session.
struct Ranking {
    /// Those that may have it, the one that it would rather go to first, with the cost of each.
    costs: Vec<(WorkerId, u64)>,
    /// Those that have enough already.
    full: Vec<WorkerId>,
    /// Sessions that the first one has.
    sessions: u64,
}

impl ClusterPolicy for SessionAffinity {
    fn name(&self) -> PolicyName {
        Self::NAME.into()
    }

    fn observe(&mut self, now: Time, event: &PolicyEvent) {
        match event {
            PolicyEvent::Placed(at) => {
                let Some(session) = &at.session else { return };
                let key = (at.request, at.attempt);
                // One that is bound there already is counted there already.
                if self.worker_of(session) != Some(&at.worker)
                    && self.placed.insert(key, at.worker.clone()).is_none()
                {
                    self.count(&at.worker, true);
                }
            }
            PolicyEvent::Accepted(at) => {
                self.arrived(at);
                if let Some(session) = &at.session {
                    self.bind(now, session.clone(), at.worker.clone());
                }
            }
            PolicyEvent::Failed(at) => self.arrived(at),
            PolicyEvent::Released(at) => {
                self.arrived(at);
                // The idle time of a conversation begins with the end of an answer.
                if let Some(session) = &at.session
                    && self.worker_of(session) == Some(&at.worker)
                {
                    self.bind(now, session.clone(), at.worker.clone());
                }
            }
            // A binding to a worker that is gone is made anew when it is asked for, and forgotten when it is not.
            PolicyEvent::WorkerLeft(_) | PolicyEvent::WorkerJoined(_) => {}
        }
    }

    fn opinion(&mut self, now: Time, query: &PolicyQuery) -> Opinion {
        let Some(session) = &query.request.session else {
            return Opinion::none("no-session", "the request names no session");
        };
        self.forget_idle(now);
        let bound = self.worker_of(session).cloned();
        let row = bound.as_ref().and_then(|worker| query.rows.iter().find(|r| r.worker == *worker));
        let all: Vec<&CandidateRow> = query.rows.iter().collect();
        if let Some(row) = row
            && u64::from(row.requests) < self.busy_from(&all)
        {
            let heard = CandidateRow::least_loaded(&query.rows).map_or(0, |r| i64::from(r.hit_tokens));
            return Opinion {
                pin: Some(Pin { worker: row.worker.clone(), hard: false }),
                saved: Some(i64::from(row.hit_tokens) - heard),
                ..Opinion::none("bound", format!("the session is bound to {}", row.worker))
            };
        }
        // The one that it is to leave is not the one that it moves to.
        let (others, left): (Vec<&CandidateRow>, Vec<&CandidateRow>) =
            all.iter().partition(|r| bound.as_ref() != Some(&r.worker));
        let Ranking { costs, mut full, sessions } =
            self.stranger(session, if others.is_empty() { &all } else { &others });
        let Some((first, _)) = costs.first() else {
            return Opinion::none("no-worker", "no worker is free");
        };
        if !others.is_empty() {
            full.extend(left.iter().map(|r| r.worker.clone()));
        }
        let (action, why) = match (&bound, row) {
            (None, _) => {
                ("hash", format!("the session is not bound; {first} is the first by hash with room for it"))
            }
            (Some(former), None) => {
                ("rebind", format!("{former} cannot take the request; {first} is next for the session"))
            }
            (Some(former), Some(_)) => {
                ("rebind", format!("{former} is too busy; {first} is next for the session"))
            }
        };
        Opinion {
            numbers: vec![("full", full.len() as f64), ("sessions", sessions as f64)],
            exclude: full.into(),
            costs,
            ..Opinion::none(action, why)
        }
    }

    fn tick(&mut self, now: Time, _workers: &[WorkerView], _actions: &mut Vec<PolicyAction>) {
        self.forget_idle(now);
    }

    /// # Errors
    /// When the map is over its bound, has more or fewer sessions than there are in the order of their use, or those of
    /// the workers are not as many as are bound or on their way.
    fn check(&self) -> Result<(), Broken> {
        ensure_invariant!(
            self.bound.len() <= self.options.max_sessions.max(1) && self.bound.len() == self.by_use.len(),
            "session_affinity_bounded",
            "{} bound, {} in order of use, {} at most",
            self.bound.len(),
            self.by_use.len(),
            self.options.max_sessions
        );
        let counted: u64 = self.sessions.values().sum();
        ensure_invariant!(
            counted == (self.bound.len() + self.placed.len()) as u64,
            "session_affinity_counts",
            "{counted} counted, {} bound, {} on their way",
            self.bound.len(),
            self.placed.len()
        );
        Ok(())
    }
}

/// `factor` times the mean over `n` of `total` and one more, rounded up.
fn share(factor: f64, total: u64, n: usize) -> u64 {
    (factor * (total + 1) as f64 / n.max(1) as f64).ceil() as u64
}

/// The rank of a worker for a key; the highest is the first.
fn score(key: u64, worker: &WorkerId) -> u64 {
    // By name, not by life: a worker that comes back gets its sessions back.
    mix64(key ^ mix64(hash(worker.node.as_str())))
}

/// A text as 64 bits, the same in all processes.
fn hash(text: &str) -> u64 {
    let mut words = text.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let seed = mix64(text.len() as u64 ^ 0x9e37_79b9_7f4a_7c15);
    words.by_ref().fold(seed, |hash, word| mix64(hash.rotate_left(29) ^ word))
}

#[cfg(test)]
mod tests;
