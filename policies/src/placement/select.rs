//! Which worker a request goes to, and who computes its prompt.

use std::sync::Arc;

use config::WorkerRole;
use config::ids::{ModelId, WorkerId};

use super::consult::Consultation;
use super::handoff::Prefill;
use super::{Choice, DEFAULT_MODEL, PlaceRequest, Placement, Rejection, Row};
use crate::policy::{Opinion, PolicyMode, Stage};
use crate::time::{Span, Time};

/// Workers that could take a request now, by name.
#[derive(Debug)]
pub(super) struct Free<'a> {
    pub(super) rows: Vec<&'a Row>,
    /// There is no other that could take it later.
    pub(super) only: bool,
    pub(super) model: ModelId,
    /// None but prefill workers serve the model: they take whole requests.
    pub(super) whole: bool,
}

/// A worker that was chosen.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) worker: WorkerId,
    pub(super) why: &'static str,
    pub(super) stages: Vec<Stage>,
    /// Prompt tokens that it is taken to have.
    pub(super) hit_tokens: u32,
    /// Who computes the prompt.
    pub(super) prefill: Prefill,
}

impl Free<'_> {
    pub(super) fn names(&self) -> Vec<WorkerId> {
        self.rows.iter().map(|r| r.info.id.clone()).collect()
    }
}

impl Placement {
    /// The workers that could take `request` now; none: it has to wait.
    ///
    /// # Errors
    /// Nobody can take it, now or later.
    pub(super) fn free(&self, request: &PlaceRequest) -> Result<Free<'_>, Rejection> {
        let model = self.resolve(&request.model)?;
        let staying: Vec<&Row> =
            self.workers.values().filter(|r| !r.draining && r.info.models.contains(&model)).collect();
        if staying.is_empty() {
            // A request under way waits for its worker to come back; a new one is told at once.
            return match request.attempt.0 {
                0 => Err(Rejection::NoWorker(model)),
                _ => Ok(Free { rows: Vec::new(), only: false, model, whole: false }),
            };
        }
        // Those that change their roles take requests again when they have.
        let (mut serving, changing): (Vec<&Row>, Vec<&Row>) =
            staying.into_iter().partition(|r| r.info.switching_to.is_none());
        let widest = |rows: &[&Row]| rows.iter().map(|r| r.info.max_context).max().unwrap_or(0);
        let later = request.context_tokens < widest(&changing);
        if serving.is_empty() && later {
            return Ok(Free { rows: Vec::new(), only: false, model, whole: false });
        }
        let whole = serving.iter().all(|r| r.info.role == WorkerRole::Prefill);
        if !whole {
            serving.retain(|r| r.info.role != WorkerRole::Prefill);
        }
        let window = widest(&serving);
        if request.context_tokens >= window && !later {
            let window = window.max(widest(&changing));
            return Err(Rejection::TooLong { tokens: request.context_tokens, window });
        }
        let fits: Vec<&Row> =
            serving.into_iter().filter(|r| request.context_tokens < r.info.max_context).collect();
        let others: Vec<&Row> =
            fits.iter().filter(|r| !request.avoid.contains(&r.info.id)).copied().collect();
        let eligible = if others.is_empty() { fits } else { others };
        let only = eligible.len() == 1;
        let rows = eligible.into_iter().filter(|r| r.requests() < r.info.max_requests).collect();
        Ok(Free { rows, only, model, whole })
    }

    /// The prefill workers that could compute prompts for `free`, which are others.
    pub(super) fn prefill_workers(&self, free: &Free<'_>) -> Vec<&Row> {
        let of = |r: &&Row| {
            r.info.role == WorkerRole::Prefill && r.takes_new() && r.info.models.contains(&free.model)
        };
        if free.whole { Vec::new() } else { self.workers.values().filter(of).collect() }
    }

    /// Chooses among `free`, which is not empty, in the light of what policies have said. `only`: there is no other.
    pub(super) fn choose(
        &mut self,
        now: Time,
        request: &PlaceRequest,
        free: &[WorkerId],
        only: bool,
        said: Option<&Consultation>,
    ) -> Chosen {
        let opinions: Vec<(&Opinion, f64)> = said
            .iter()
            .flat_map(|c| &c.asked)
            .filter_map(|a| a.opinion().map(|opinion| (opinion, a.weight)))
            .collect();
        // Policies know the workers that were free when they were asked; another is taken only where none of those is.
        let known = |id: &&WorkerId| said.is_none_or(|c| c.row(id).is_some());
        let mut heard: Vec<&WorkerId> = free.iter().filter(known).collect();
        if heard.is_empty() {
            heard = free.iter().collect();
        }
        let excluded = |id: &WorkerId| opinions.iter().any(|(o, _)| o.exclude.contains(id));
        let mut kept: Vec<&WorkerId> = heard.iter().copied().filter(|id| !excluded(id)).collect();
        if kept.is_empty() {
            kept.clone_from(&heard);
        }
        let pinned = opinions.iter().filter_map(|(o, _)| o.pin.as_ref()).find(|pin| match pin.hard {
            true => heard.contains(&&pin.worker),
            false => kept.contains(&&pin.worker),
        });
        let mut costs = Vec::new();
        if let Some(said) = said {
            costs = self::costs(said, &kept, &opinions);
            self.bring_up_to_date(said, &kept, &opinions, &mut costs);
        }
        let (worker, why): (WorkerId, &'static str) = match (&heard[..], pinned) {
            ([one], _) => ((*one).clone(), if only { "only-worker" } else { "only-free-worker" }),
            (_, Some(pin)) => (pin.worker.clone(), "pinned"),
            (_, None) if !costs.is_empty() => (self.cheapest(&kept, &costs).clone(), "least-cost"),
            (_, None) => match (&kept[..], self.config.choice) {
                (many @ [_, _, ..], Choice::PowerOfTwo) => {
                    let first = self.rng.below(many.len() as u64) as usize;
                    let step = 1 + self.rng.below(many.len() as u64 - 1) as usize;
                    let two = [many[first], many[(first + step) % many.len()]];
                    (self.cheapest(&two, &[]).clone(), "power-of-two")
                }
                (many, Choice::RoundRobin) => {
                    let turn = |id: &&WorkerId| self.workers.get(*id).map(|r| r.last_chosen);
                    let next = many.iter().copied().min_by_key(turn);
                    (next.unwrap_or(heard[0]).clone(), "round-robin")
                }
                (many, Choice::Random) => {
                    let at = self.rng.below(many.len() as u64) as usize;
                    (many[at].clone(), "random")
                }
                (_, Choice::LeastLoaded | Choice::PowerOfTwo) => {
                    (self.cheapest(&kept, &[]).clone(), "least-loaded")
                }
            },
        };
        let row = said.and_then(|c| c.row(&worker).map(|at| &c.query.rows[at]));
        let hit_tokens = row.map_or(0, |r| r.hit_tokens);
        let (prefill, mut stages) = match said {
            Some(said) => self.hear_verdicts(now, request, &worker, said),
            None => (Prefill::Here, Vec::new()),
        };
        let whole = self.workers.get(&worker).is_some_and(|r| r.info.role == WorkerRole::Prefill);
        let mut text = format!("attempt {} goes to {worker}", request.attempt);
        if whole {
            text.push_str("; none but prefill workers serve the model, so it takes the whole request");
        }
        if let Prefill::By(handoff, _) = &prefill {
            text.push_str(&format!("; {} computes its prompt", handoff.worker));
        }
        let cost = kept.iter().position(|id| **id == worker).and_then(|at| costs.get(at));
        let mut numbers =
            vec![("free".into(), free.len() as f64), ("excluded".into(), (heard.len() - kept.len()) as f64)];
        numbers.extend(cost.map(|cost| ("cost".into(), *cost)));
        numbers.extend(row.map(|_| ("hit-tokens".into(), f64::from(hit_tokens))));
        numbers.extend(self.workers.get(&worker).map(|r| ("work-tokens".into(), r.work() as f64)));
        stages.push(Stage {
            policy: Stage::PLACEMENT.into(),
            mode: PolicyMode::Prod,
            action: why.into(),
            why: text,
            numbers,
            saved: None,
            took: said.map_or(Span::ZERO, |c| now.since(c.since)),
        });
        Chosen { worker, why, stages, hit_tokens, prefill }
    }

    /// Who computes the prompt of a request that goes to `worker`, and the stages of all that were asked.
    fn hear_verdicts(
        &mut self,
        now: Time,
        request: &PlaceRequest,
        worker: &WorkerId,
        said: &Consultation,
    ) -> (Prefill, Vec<Stage>) {
        let mut stages = said.stages(now, worker);
        let mut prefill = Prefill::Here;
        let decode = self.workers.get(worker).map(|row| Arc::clone(&row.info));
        let (Some(decode), Some(at)) = (decode, said.row(worker)) else { return (prefill, stages) };
        let uncached = said.query.rows[at].uncached(request);
        for (asked, stage) in said.asked.iter().zip(&mut stages) {
            let Some(verdict) = asked.said().and_then(|opinion| opinion.verdict(worker)) else { continue };
            let (who, passed_over) = self.prefill(request, &decode, uncached, verdict);
            stage.amend(&who, passed_over);
            if asked.mode == PolicyMode::Prod && matches!(prefill, Prefill::Here) {
                if let Ok(model) = self.resolve(&request.model) {
                    self.note_verdict(&model, decode.role, verdict, &who);
                }
                prefill = who;
            }
        }
        (prefill, stages)
    }

    /// Adds what has come to each worker since the policies were shown it: requests that arrive together are asked about
    /// together, and would otherwise all take the same worker for the cheapest.
    fn bring_up_to_date(
        &self,
        said: &Consultation,
        ids: &[&WorkerId],
        opinions: &[(&Opinion, f64)],
        costs: &mut [f64],
    ) {
        let weight: f64 =
            opinions.iter().filter(|(o, _)| !o.costs.is_empty()).map(|(_, weight)| weight).sum();
        for (cost, id) in costs.iter_mut().zip(ids) {
            let (Some(at), Some(row)) = (said.row(id), self.workers.get(*id)) else { continue };
            *cost += weight * (row.work() as f64 - said.query.rows[at].work_tokens as f64);
        }
    }

    /// The one with the lowest cost, of those the one with the least work, of those the one that was chosen longest ago;
    /// never the first by name. Without costs, all cost the same.
    fn cheapest<'a>(&self, ids: &[&'a WorkerId], costs: &[f64]) -> &'a WorkerId {
        let costs = costs.iter().copied().chain(std::iter::repeat(0.0));
        // Mostly they come by name, as the rows do: then one pass over both finds all.
        let mut rows = self.workers.iter();
        let mut row = |id: &WorkerId| {
            let ahead = rows.find(|(name, _)| *name == id).map(|(_, row)| row);
            ahead.or_else(|| self.workers.get(id))
        };
        let mut load = |id: &WorkerId| row(id).map_or((0, 0), |r| (r.work(), r.last_chosen));
        let keyed = ids.iter().zip(costs).map(|(id, cost)| (*id, cost, load(id)));
        let least = keyed.min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)));
        least.expect("the caller has at least one").0
    }

    /// Whether a worker offers `model` now.
    pub(super) fn is_served(&self, model: &ModelId) -> bool {
        self.workers.values().any(|r| r.info.models.contains(model))
    }

    /// The model that a name stands for.
    pub(super) fn resolve(&self, name: &ModelId) -> Result<ModelId, Rejection> {
        if self.models.contains(name) {
            return Ok(name.clone());
        }
        if name.as_str() != DEFAULT_MODEL {
            return Err(Rejection::UnknownModel(name.clone()));
        }
        let served = self.models.iter().find(|m| self.is_served(m));
        served.or_else(|| self.models.first()).cloned().ok_or_else(|| Rejection::NoWorker(name.clone()))
    }
}

/// The weighted sum of what policies say that each worker costs; empty where none says anything.
fn costs(said: &Consultation, ids: &[&WorkerId], opinions: &[(&Opinion, f64)]) -> Vec<f64> {
    let mut sums = Vec::new();
    for (opinion, weight) in opinions {
        let Some(worst) = opinion.costs.iter().map(|(_, cost)| *cost).max() else { continue };
        sums.resize(ids.len(), 0.0);
        for (sum, id) in sums.iter_mut().zip(ids) {
            // Mostly a policy goes through the rows in their order, so its word is where the row is.
            let there = said.row(id).and_then(|at| opinion.costs.get(at)).filter(|(worker, _)| worker == *id);
            let named = there.or_else(|| opinion.costs.iter().find(|(worker, _)| worker == *id));
            *sum += weight * named.map_or(worst, |(_, cost)| *cost) as f64;
        }
    }
    sums
}

impl Stage {
    /// Adds who computes the prompt, or why none of those does that should.
    fn amend(&mut self, who: &Prefill, passed_over: Option<String>) {
        let outcome = match who {
            Prefill::By(handoff, _) => Some((None, format!("{} computes it", handoff.worker))),
            Prefill::Here => passed_over.map(|why| (Some("local"), why)),
            Prefill::Nobody => passed_over.map(|why| (Some("refused"), why)),
        };
        let Some((action, text)) = outcome else { return };
        self.why = format!("{}; {text}", self.why);
        if let Some(action) = action {
            self.action = match self.mode {
                PolicyMode::Shadow => format!("would_{action}").into(),
                PolicyMode::Off | PolicyMode::Prod => action.into(),
            };
        }
    }
}

impl Row {
    /// Whether it is given anything new.
    pub(super) fn takes_new(&self) -> bool {
        !self.draining && self.info.switching_to.is_none()
    }

    /// Requests: those booked here, those whose prompts it computes for other workers, and those of others.
    pub(super) const fn requests(&self) -> u32 {
        self.booked.saturating_add(self.handoffs).saturating_add(self.foreign)
    }

    /// Tokens whose keys and values it holds for sequences, or will hold for what is booked.
    pub(super) fn kv_tokens(&self) -> u64 {
        let held = u64::from(self.load.pages_used) * u64::from(self.info.page_tokens);
        held.max(self.booked_context)
    }

    /// Tokens of work, booked here and of others.
    pub(super) const fn work(&self) -> u64 {
        self.booked_tokens.saturating_add(self.handoff_tokens).saturating_add(self.foreign_tokens)
    }
}
