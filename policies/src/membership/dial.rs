//! Whom to dial and when: seeds for ever, lost members until they are forgotten, gossiped ones while they are gossiped.

use std::collections::BTreeSet;

use config::ids::NodeId;

use super::{DialError, Loss, MemberState, Membership, MembershipEffect, Peer};
use crate::time::{Span, Time};

/// Addresses kept at most; a peer that gossips more is broken.
const MAX_TARGETS: usize = 4096;

/// An address and how dialling it goes.
#[derive(Debug)]
pub(super) struct Target {
    seed: bool,
    /// Who was met there, or is said to be there.
    of: Option<NodeId>,
    /// It led to this process.
    itself: bool,
    /// When a peer last said that it has a link to it.
    gossiped: Option<Time>,
    /// A `Dial` is under way.
    dialing: bool,
    /// Failures since it was last reached.
    failures: u32,
    /// How the last try ended, so that only a change is logged.
    error: Option<DialError>,
    /// Not dialled before.
    next: Time,
}

impl Target {
    pub(super) fn seed() -> Self {
        Self { seed: true, ..Self::new(Time::ZERO) }
    }

    const fn new(next: Time) -> Self {
        Self {
            seed: false,
            of: None,
            itself: false,
            gossiped: None,
            dialing: false,
            failures: 0,
            error: None,
            next,
        }
    }
}

impl Membership {
    /// Pushes the dials that are due.
    pub(super) fn pump(&mut self, now: Time, fx: &mut Vec<MembershipEffect>) {
        let due: Vec<String> = self
            .targets
            .iter()
            .filter(|(_, t)| !t.dialing && t.next <= now)
            .map(|(a, _)| a.clone())
            .collect();
        let mut busy = self.being_dialled();
        for address in due {
            let Some(target) = self.targets.get(&address) else { continue };
            if self.due(&address, target, &busy).is_none() {
                continue;
            }
            busy.extend(target.of.clone());
            if let Some(target) = self.targets.get_mut(&address) {
                target.dialing = true;
            }
            fx.push(MembershipEffect::Dial { address });
        }
    }

    /// When the next dial is due.
    pub(super) fn next_dial(&self) -> Option<Time> {
        let busy = self.being_dialled();
        self.targets.iter().filter_map(|(address, target)| self.due(address, target, &busy)).min()
    }

    /// A dial succeeded.
    pub(super) fn dialled(&mut self, now: Time, address: &str, id: &NodeId, itself: bool) {
        let later = self.wait(1);
        if let Some(target) = self.targets.get_mut(address) {
            target.dialing = false;
            target.itself = itself;
            target.failures = 0;
            target.error = None;
            target.next = now + later;
            target.of = (!itself).then(|| id.clone());
        }
    }

    /// A dial failed; true where its error is another one than before.
    pub(super) fn failed(
        &mut self,
        now: Time,
        address: &str,
        error: DialError,
        fx: &mut Vec<MembershipEffect>,
    ) -> bool {
        let Some(target) = self.targets.get_mut(address) else { return false };
        target.dialing = false;
        target.failures = target.failures.saturating_add(1);
        target.itself = error == DialError::Itself;
        let failures = target.failures;
        let rarely = match &error {
            DialError::AlreadyLinked(id) => {
                target.of = Some(id.clone());
                false
            }
            DialError::Itself => {
                target.of = None;
                true
            }
            DialError::Final(reason) => {
                if !self.was_joined && !self.fatal {
                    self.fatal = true;
                    fx.push(MembershipEffect::Fatal(reason.clone()));
                }
                true
            }
            DialError::Unreachable(_) | DialError::Refused(_) => target
                .of
                .as_ref()
                .is_some_and(|id| self.rows.get(id).is_some_and(|row| row.loss == Some(Loss::Goodbye))),
        };
        let wait = if rarely { self.wait(u32::MAX) } else { self.wait(failures) };
        let Some(target) = self.targets.get_mut(address) else { return false };
        target.next = now + wait;
        // Nobody there is nobody there, whatever the system calls it this time.
        let news = match (&target.error, &error) {
            (Some(DialError::Unreachable(_)), DialError::Unreachable(_)) => false,
            (before, error) => before.as_ref() != Some(error),
        };
        target.error = Some(error);
        news
    }

    /// Peers tell whom they are linked to. Both ends of a missing link learn of it at about the same time; the one with the
    /// greater name dials, the other one only if that does not help.
    pub(super) fn hear_of(&mut self, now: Time, peers: &[Peer]) {
        for peer in peers {
            if peer.id == self.me.id || peer.address == self.me.address || peer.address.is_empty() {
                continue;
            }
            let stale = self.rows.get(&peer.id).is_some_and(|row| {
                row.loss.is_none()
                    || row.member.incarnation > peer.incarnation
                    || row.goodbye == Some(peer.incarnation)
            });
            let room = self.targets.len() < MAX_TARGETS || self.targets.contains_key(&peer.address);
            if stale || !room {
                continue;
            }
            let patience = if self.me.id > peer.id { 0 } else { self.config.heartbeat.0.saturating_mul(4) };
            let new = || Target::new(now + Span(patience));
            let target = self.targets.entry(peer.address.clone()).or_insert_with(new);
            target.gossiped = Some(now);
            target.of = Some(peer.id.clone());
        }
    }

    /// A member is lost and should be linked again. The one with the greater name tries first.
    pub(super) fn dial_soon(&mut self, now: Time, id: &NodeId, address: String) {
        let wait = self.wait(1);
        let wait = if self.me.id > *id { wait } else { Span(wait.0.saturating_mul(3)) };
        let target = self.targets.entry(address).or_insert_with(|| Target::new(now));
        target.of = Some(id.clone());
        for target in self.targets.values_mut().filter(|t| t.of.as_ref() == Some(id)) {
            target.failures = 0;
            target.next = now + wait;
        }
    }

    /// A member left on purpose: only where a seed led to it a successor may appear.
    pub(super) fn dial_rarely(&mut self, now: Time, id: &NodeId, address: &str) {
        let wait = self.wait(u32::MAX);
        if let Some(target) = self.targets.get_mut(address) {
            target.of = Some(id.clone());
        }
        self.targets.retain(|_, t| t.seed || t.dialing || t.of.as_ref() != Some(id));
        for target in self.targets.values_mut().filter(|t| t.of.as_ref() == Some(id)) {
            target.gossiped = None;
            target.next = now + wait;
        }
    }

    /// The node is alone: whoever may help is dialled soon, however often that failed before.
    pub(super) fn hasten(&mut self, now: Time) {
        // No sooner than the end that should wait for the other one's dial.
        let wait = Span(self.wait(1).0.saturating_mul(3));
        for target in self.targets.values_mut().filter(|t| !t.itself) {
            let left = target.of.as_ref().and_then(|id| self.rows.get(id));
            if left.is_none_or(|row| row.loss != Some(Loss::Goodbye)) {
                target.failures = 0;
                target.next = target.next.min(now + wait);
            }
        }
    }

    /// Drops addresses that are no seeds, of no lost member, and gossiped no more.
    pub(super) fn prune_targets(&mut self, now: Time) {
        let age = self.config.forget_after;
        let gone = |target: &Target| target.gossiped.is_none_or(|heard| now >= heard + age);
        let drop: Vec<String> = self
            .targets
            .iter()
            .filter(|(a, t)| !t.seed && !t.dialing && gone(t) && !self.is_of_suspect(a, t))
            .map(|(a, _)| a.clone())
            .collect();
        for address in drop {
            self.targets.remove(&address);
        }
    }

    /// Whether every seed (there may be none) is this node.
    pub(super) fn is_its_own_seed(&self) -> bool {
        let mut seeds = self.targets.iter().filter(|(_, t)| t.seed);
        seeds.all(|(address, t)| t.itself || *address == self.me.address)
    }

    /// When to dial this address; none if there is no need.
    fn due(&self, address: &str, target: &Target, busy: &BTreeSet<NodeId>) -> Option<Time> {
        let linked = |id: &NodeId| self.rows.get(id).is_some_and(|row| row.loss.is_none());
        let wanted = target.seed || target.gossiped.is_some() || self.is_of_suspect(address, target);
        // A name may resolve to this process once and to another one later; but not while there is a way in.
        let itself = address == self.me.address || (target.itself && self.connected);
        let idle = !target.dialing && !target.of.as_ref().is_some_and(|id| busy.contains(id));
        if !wanted || itself || !idle || self.fatal || target.of.as_ref().is_some_and(linked) {
            return None;
        }
        let met = self.rows.values().any(|row| row.loss.is_none() && row.member.address == address);
        (!met).then_some(target.next)
    }

    /// A lost member has this address.
    fn is_of_suspect(&self, address: &str, target: &Target) -> bool {
        let row = target.of.as_ref().and_then(|id| self.rows.get(id));
        row.is_some_and(|row| row.state() == MemberState::Suspect && row.member.address == address)
    }

    /// Members that a dial is under way to; a second one by another address would only make a link too many.
    fn being_dialled(&self) -> BTreeSet<NodeId> {
        self.targets.values().filter(|t| t.dialing).filter_map(|t| t.of.clone()).collect()
    }

    /// The wait after so many failures, with its jitter.
    fn wait(&mut self, failures: u32) -> Span {
        let first = self.config.dial_first.0.max(1_000_000);
        let factor = 1_u64 << failures.saturating_sub(1).min(32);
        let longest = self.config.dial_longest.0.max(first);
        let wait = first.saturating_mul(factor).min(longest) as f64;
        Span((wait * (0.8 + 0.4 * self.rng.unit())) as u64)
    }
}
