//! Random lives of sessions: whatever comes in whatever order, each ends once and holds nothing.

use super::*;

/// One random life: messages are late, doubled and lost, workers die, the client stops or leaves.
struct Life {
    rng: Rng,
    session: Session,
    fx: Vec<SessionEffect>,
    seen: usize,
    choices: u32,
    max: u32,
    /// Attempt → next index of each choice and how far it may go, for workers that are at it.
    at_work: Vec<(u32, Vec<(u32, u32)>)>,
    asked: Vec<u32>,
    rejected: Vec<u32>,
    /// Attempts under which the controller was asked for a target and has not turned that down.
    choosing: Vec<u32>,
    /// Fetches that nobody has ended or called off: who fetches, and the attempt.
    fetching: Vec<(WorkerId, u32)>,
    /// Migrations begun.
    begun: usize,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let choices = 1 + rng.below(3) as u32;
        let max = 1 + rng.below(6) as u32;
        let config = SessionConfig { retry_limit: rng.below(4) as u32, backoff: BACKOFF };
        let spec = RequestSpec { credit: rng.below(4) as u32, ..spec(choices as usize, max) };
        let session = Session::new(spec, config);
        let (fx, at_work, asked, rejected) = Default::default();
        let (choosing, fetching) = Default::default();
        Self {
            rng,
            session,
            fx,
            seen: 0,
            choices,
            max,
            at_work,
            asked,
            rejected,
            choosing,
            fetching,
            begun: 0,
        }
    }

    /// Reads the effects that are new.
    fn react(&mut self) {
        for effect in &self.fx[self.seen..] {
            match effect {
                SessionEffect::Place(p) => self.asked.push(p.attempt.0),
                SessionEffect::Switched { attempt, .. } => {
                    let before = self.choosing.len();
                    self.choosing.retain(|a| *a != attempt.0);
                    assert_eq!(self.choosing.len() + 1, before, "booked");
                    self.asked.push(attempt.0);
                }
                SessionEffect::Submit { spec, .. } | SessionEffect::Take { spec, .. } => {
                    let next = spec.resumed.iter().map(|r| match r.ended {
                        true => (u32::MAX, 0),
                        false => (r.tokens.len() as u32, spec.allowance(r)),
                    });
                    // Mostly the source stops when it is asked for the rest; what it said until then may come late.
                    if matches!(effect, SessionEffect::Take { .. }) && self.rng.below(4) > 0 {
                        self.at_work
                            .iter_mut()
                            .flat_map(|(_, next)| next)
                            .for_each(|(index, _)| *index = u32::MAX);
                    }
                    self.at_work.push((spec.attempt.0, next.collect()));
                }
                SessionEffect::Grant { attempt, choice, upto, .. } => {
                    let current = self.at_work.iter_mut().find(|(a, _)| a == &attempt.0);
                    let (_, choices) = current.expect("granted to nobody");
                    let (_, allowed) = &mut choices[*choice as usize];
                    assert!(*upto > *allowed, "a grant gives more");
                    *allowed = *upto;
                }
                SessionEffect::Choose(p) => self.choosing.push(p.attempt.0),
                SessionEffect::Unchoose { attempt, .. } => {
                    let before = self.choosing.len();
                    self.choosing.retain(|a| *a != attempt.0);
                    assert_eq!(self.choosing.len() + 1, before, "given back what was asked for, once");
                }
                SessionEffect::Fetch { to, from, spec } => {
                    assert_eq!((Some(from), spec.resumed.len()), (self.session.worker(), 1));
                    assert_ne!(to, from);
                    self.fetching.push((to.clone(), spec.attempt.0));
                }
                SessionEffect::CancelAt { worker, attempt, .. } => {
                    self.fetching.retain(|(to, a)| (to, a) != (worker, &attempt.0));
                }
                _ => {}
            }
        }
        self.seen = self.fx.len();
    }

    fn step(&mut self) {
        let latest = self.choosing.iter().copied().max().unwrap_or(0).max(self.session.spec().attempt.0);
        // Mostly the present one, else any before.
        let attempt = match self.rng.below(2) {
            0 => latest,
            _ => self.rng.below(u64::from(latest) + 1) as u32,
        };
        let attempt = Attempt(attempt);
        let (rng, s, fx) = (&mut self.rng, &mut self.session, &mut self.fx);
        let which = worker(rng.below(3));
        match rng.below(24) {
            20 | 21 => {
                let to = (rng.below(3) > 0).then_some(which);
                let (phase, before) = (s.phase(), fx.len());
                match s.migrate(T, to, fx) {
                    Ok(()) => self.begun += 1,
                    Err(e) => {
                        assert_eq!(fx.len(), before, "{e}");
                        assert!(phase == Phase::Streaming || e == MigrateError::NotRunning || s.is_moving());
                    }
                }
            }
            22 if !self.fetching.is_empty() => {
                let i = rng.below(self.fetching.len() as u64) as usize;
                let (_, fetched) = self.fetching.remove(i);
                let result = if rng.below(4) == 0 { Err("no pages".into()) } else { Ok(()) };
                for _ in 0..=u8::from(rng.below(4) == 0) {
                    s.fetched(T, Attempt(fetched), result.clone(), fx);
                }
            }
            23 if rng.below(3) == 0 => s.taken_over(T, attempt, fx),
            23 => s.fetched(T, attempt, Ok(()), fx),
            0..=2 => {
                // A target is mostly booked where it was asked for.
                let target = s.moving_to().filter(|_| rng.below(4) > 0);
                let worker = target.cloned().unwrap_or(which);
                s.placed(
                    T,
                    attempt,
                    Plan {
                        worker,
                        prefill: None,
                        fetch: None,
                        store: None,
                        why: "test",
                        stages: Arc::default(),
                    },
                    fx,
                );
            }
            3 if rng.below(6) == 0 => {
                let asked = self.asked.contains(&attempt.0);
                if s.phase() == Phase::Placing && attempt == s.spec().attempt && asked {
                    self.rejected.push(attempt.0);
                }
                // A target that is turned down needs no giving back; one that is booked is not turned down.
                let booked = s.is_taken_over_as(attempt);
                self.choosing.retain(|a| *a != attempt.0 || booked);
                s.rejected(T, attempt, Rejection::QueueFull { queued: 1 }, fx);
            }
            4 if rng.below(3) == 0 => s.refused(T, attempt, Refusal::Draining, fx),
            5 if rng.below(3) == 0 => s.worker_lost(T, &which, fx),
            6 if rng.below(8) == 0 => s.done(T, attempt, Usage::default(), fx),
            7 if rng.below(10) == 0 => s.cancel(T, fx),
            8 if rng.below(10) == 0 => s.expire(Time(rng.below(2) * 90_000_000_000), fx),
            12 => s.expire(s.next_deadline().map_or(T, |t| t.min(Time(1000))), fx),
            9 if rng.below(6) == 0 => s.stop_choice(T, rng.below(4) as u32, fx),
            10 if rng.below(10) == 0 => s.failed_at_worker(T, attempt, "bad".into(), fx),
            11 => s.accepted(T, attempt, fx),
            13 | 14 => {
                let choice = rng.below(4) as u32;
                let delivered = s.tokens(choice).len() as u64;
                s.consumed(T, choice, rng.below(delivered + 2) as u32, fx);
            }
            _ if !self.at_work.is_empty() => {
                let i = rng.below(self.at_work.len() as u64) as usize;
                let (attempt, next) = &mut self.at_work[i];
                let choice = rng.below(u64::from(self.choices)) as u32;
                let (index, allowed) = &mut next[choice as usize];
                if *index < self.max.min(*allowed) {
                    let finish = (*index + 1 == self.max).then_some(Finish::Length);
                    let event = event(*attempt, choice, *index, finish);
                    for _ in 0..=u8::from(rng.below(4) == 0) {
                        s.token(T, &event, fx);
                    }
                    // Rarely the next message is lost.
                    *index += 1 + u32::from(rng.below(30) == 0);
                }
            }
            _ => {}
        }
        enforce(self.session.check());
        self.react();
    }

    /// What holds for a life that is over.
    fn verify(&self) {
        let last = |e: &&SessionEffect| matches!(e, SessionEffect::Finished | SessionEffect::Failed(_));
        assert_eq!(self.fx.iter().filter(last).count(), 1);
        assert!(self.fx.last().is_some_and(|e| last(&e)), "nothing comes after the last effect");
        for &attempt in &self.asked {
            let released =
                |e: &&SessionEffect| matches!(e, SessionEffect::Release { attempt: a, .. } if a.0 == attempt);
            let want = usize::from(!self.rejected.contains(&attempt));
            assert_eq!(self.fx.iter().filter(released).count(), want, "releases of attempt {attempt}");
        }
        assert!(self.choosing.is_empty() && self.fetching.is_empty(), "a migration holds something");
        let ends = self.fx.iter().filter(|e| matches!(e, SessionEffect::Migration(_))).count();
        assert_eq!(ends, self.begun, "each migration ends once");
        for choice in 0..self.choices {
            let shown: Vec<(u32, Token)> = self
                .fx
                .iter()
                .filter_map(|e| match e {
                    SessionEffect::Deliver(t) if t.seq.choice == choice => Some((t.index, t.token)),
                    _ => None,
                })
                .collect();
            let want: Vec<_> = (0..shown.len() as u32).map(|i| (i, truth(choice, i))).collect();
            assert_eq!(shown, want, "no token repeated, missing or changed");
            let finished = matches!(self.fx.last(), Some(SessionEffect::Finished));
            let stopped = self.session.finish(choice) == Some(Finish::StopString);
            assert!(!finished || stopped || shown.len() == self.max as usize, "finished too early");
        }
    }
}

#[test]
fn random_lives_end_clean() {
    panic_on_broken();
    let (mut finished, mut retried, mut moved) = (0, 0, 0);
    for seed in 0..4000 {
        let mut life = Life::new(seed);
        life.session.start(T, &mut life.fx);
        life.react();
        for _ in 0..300 {
            life.step();
        }
        life.session.cancel(T, &mut life.fx);
        enforce(life.session.check());
        life.react();
        life.verify();
        finished += u32::from(matches!(life.fx.last(), Some(SessionEffect::Finished)));
        retried += u32::from(life.session.retries() > 0);
        let switched = |e: &&SessionEffect| matches!(e, SessionEffect::Migration(Migrated::Moved { .. }));
        moved += life.fx.iter().filter(switched).count();
    }
    assert!(
        finished > 400 && retried > 400 && moved > 100,
        "the lives are dull: {finished} finished, {retried} retried, {moved} moved"
    );
}
