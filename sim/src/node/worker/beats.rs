//! What a worker tells those that may give it prompts.
//!
//! As live, where each heartbeat of a node carries what its worker offers and what that has to do. A beat that would say
//! what the last one said is left out: nobody would learn anything from it. So a cluster without work is silent, and where
//! no worker listens there are no beats at all.

use std::sync::Arc;

use config::ids::WorkerId;
use policies::batch::BatchLoad;
use policies::placement::WorkerInfo;
use policies::time::{Span, Time};

use super::Worker;
use crate::event::{Event, Outbox, WorkerMsg};

/// What a heartbeat says of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerAd {
    /// What it offers.
    pub info: WorkerInfo,
    /// It takes nothing new.
    pub draining: bool,
    /// What it has to do.
    pub load: BatchLoad,
}

/// When a worker beats, and for whom.
#[derive(Clone, Debug, Default)]
pub struct Beats {
    /// From one to the next.
    pub every: Span,
    /// When the first of them would be.
    pub phase: Span,
    /// The workers that listen, each by a name that it has or had; may contain its own.
    pub to: Arc<[WorkerId]>,
}

/// The beats of one worker.
#[derive(Debug)]
pub(super) struct Heart {
    beats: Beats,
    /// The load that the last one told.
    said: Option<BatchLoad>,
    /// When the next one is.
    due: Option<Time>,
}

impl Heart {
    pub(super) const fn new(beats: Beats) -> Self {
        Self { beats, said: None, due: None }
    }

    /// Whether anybody listens.
    pub(super) fn beats(&self) -> bool {
        !self.beats.to.is_empty()
    }

    /// Has the next beat be due where it has news.
    pub(super) fn loaded(&mut self, now: Time, me: &WorkerId, load: &BatchLoad, out: &mut Outbox) {
        if self.due.is_none() && self.said.as_ref() != Some(load) {
            let every = self.beats.every.0.max(1);
            let since = (now.0 + every - self.beats.phase.0 % every) % every;
            let left = Span(every - since);
            self.due = Some(now + left);
            out.after(left, Event::Worker(me.clone(), WorkerMsg::BeatDue));
        }
    }

    /// Tells those that listen.
    pub(super) fn beat(&mut self, now: Time, ad: WorkerAd, out: &mut Outbox) {
        self.due = self.due.filter(|due| *due > now);
        self.said = Some(ad.load);
        let ad = Arc::new(ad);
        for listener in self.beats.to.iter().filter(|listener| listener.node != ad.info.id.node) {
            out.send(Event::Worker(listener.clone(), WorkerMsg::Beat(Arc::clone(&ad))));
        }
    }
}

impl Worker {
    /// Tells other workers what it offers and what it has to do.
    pub(super) fn beat(&mut self, now: Time, out: &mut Outbox) {
        let ad =
            WorkerAd { info: self.info.clone(), draining: self.draining.is_some(), load: self.core.load() };
        self.heart.beat(now, ad, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Way;

    fn id(name: &str) -> WorkerId {
        WorkerId::new(name.into(), 1)
    }

    #[test]
    fn beats_come_in_time_and_say_what_is_new_to_all_others() {
        let every = Span::from_millis(500);
        let to = [id("w1"), id("w2"), id("w3")].into();
        let mut heart = Heart::new(Beats { every, phase: Span::from_millis(730), to });
        let mut out = Outbox::new();
        let load = |requests| BatchLoad { requests, ..BatchLoad::default() };
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let ad = |load| WorkerAd {
            info: WorkerInfo::unified(id("w2"), "m".into(), 100, 10, 16),
            draining: false,
            load,
        };
        heart.beat(at(0), ad(load(0)), &mut out);
        let heard: Vec<_> = out.sent.drain(..).map(|(_, _, event)| event).collect();
        assert!(
            matches!(&heard[..], [Event::Worker(a, WorkerMsg::Beat(_)), Event::Worker(b, WorkerMsg::Beat(_))]
            if *a == id("w1") && *b == id("w3")),
            "{heard:?}"
        );
        heart.loaded(at(100), &id("w2"), &load(0), &mut out);
        assert!(out.sent.is_empty(), "nothing is new");
        for (now, left) in [(100, 130), (230, 500), (740, 490)] {
            heart.loaded(at(now), &id("w2"), &load(now as u32), &mut out);
            heart.loaded(at(now), &id("w2"), &load(1), &mut out);
            let due: Vec<_> = out.sent.drain(..).map(|(_, way, _)| way).collect();
            assert_eq!(due, [Way::After(Span::from_millis(left))], "once, at {now} ms");
            // One that comes out of turn does not move it.
            heart.beat(at(now), ad(load(2)), &mut out);
            out.sent.clear();
            heart.loaded(at(now), &id("w2"), &load(3), &mut out);
            assert!(out.sent.is_empty());
            heart.beat(at(now + left), ad(load(3)), &mut out);
            out.sent.clear();
        }
    }
}
