//! Which worker a request goes to, and who computes its prompt.

use std::sync::Arc;

use config::WorkerRole;
use config::ids::{ModelId, WorkerId};

use super::consult::Consultation;
use super::handoff::Prefill;
use super::{Choice, DEFAULT_MODEL, PlaceRequest, Placement, Prefix, Rejection, Row, WorkerInfo};
use crate::policy::replicate::Replicate;
use crate::policy::{Fetch, Opinion, PolicyMode, Stage, StoreAt};
use crate::time::{Span, Time};

/// Workers that could take a request now, by name.
#[derive(Debug)]
pub(super) struct Free {
    /// Where they are among all workers.
    pub(super) places: Vec<u32>,
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
    /// What that one fetches of it.
    pub(super) fetch: Option<Box<Prefix>>,
    /// How long whoever holds that has to do with it.
    pub(super) occupies: Span,
    /// The pool that is to keep it.
    pub(super) store: Option<Box<WorkerId>>,
}

impl Free {
    /// No worker can take the request.
    const fn nobody(model: ModelId) -> Self {
        Self { places: Vec::new(), only: false, model, whole: false }
    }
}

/// What placement goes by of what a worker offers, beside what it has to do: each choice looks at it of all workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    max_context: u32,
    max_requests: u32,
    role: WorkerRole,
    changes_role: bool,
    /// The models that it serves, by their numbers at the controller. The last bit: some have numbers beyond that.
    models: u64,
}

impl Offer {
    /// Models with a bit of their own.
    const BITS: usize = u64::BITS as usize - 1;

    /// The offer of a worker; `known` are the controller's models, its own among them.
    pub(super) fn of(info: &WorkerInfo, known: &[ModelId]) -> Self {
        let bit = |model: &ModelId| {
            let number = known.iter().position(|k| k == model).unwrap_or(Self::BITS);
            1_u64 << number.min(Self::BITS)
        };
        Self {
            max_context: info.max_context,
            max_requests: info.max_requests,
            role: info.role,
            changes_role: info.switching_to.is_some(),
            models: info.models.iter().map(bit).fold(0, |all, bit| all | bit),
        }
    }
}

impl Placement {
    /// The workers that could take `request` now; none: it has to wait.
    ///
    /// # Errors
    /// Nobody can take it, now or later.
    pub(super) fn free(&self, request: &PlaceRequest) -> Result<Free, Rejection> {
        let model = self.resolve(&request.model)?;
        let number = self.models.iter().position(|known| *known == model).unwrap_or(Offer::BITS);
        let stays = |row: &Row| !row.draining && row.serves(&model, number);
        // Those that change their roles take requests again when they have.
        let (mut staying, mut serving, mut whole) = (false, false, true);
        let (mut widest, mut widest_prefill, mut widest_changing) = (0, 0, 0);
        for row in self.workers.values().filter(|row| stays(row)) {
            let offer = &row.offer;
            staying = true;
            if offer.changes_role {
                widest_changing = offer.max_context.max(widest_changing);
                continue;
            }
            serving = true;
            if offer.role == WorkerRole::Prefill {
                widest_prefill = offer.max_context.max(widest_prefill);
            } else {
                whole = false;
                widest = offer.max_context.max(widest);
            }
        }
        if !staying {
            // A request under way waits for its worker to come back; a new one is told at once.
            return match request.attempt.0 {
                0 => Err(Rejection::NoWorker(model)),
                _ => Ok(Free::nobody(model)),
            };
        }
        let later = request.context_tokens < widest_changing;
        if !serving && later {
            return Ok(Free::nobody(model));
        }
        let window = if whole { widest_prefill } else { widest };
        if request.context_tokens >= window && !later {
            let window = window.max(widest_changing);
            return Err(Rejection::TooLong { tokens: request.context_tokens, window });
        }
        // Those that could take it if they had room, and of them those that are not to be avoided.
        let (mut fitting, mut others) = (0, 0);
        let (mut places, mut avoided) = (Vec::with_capacity(self.workers.len()), Vec::new());
        for ((id, row), place) in self.workers.iter().zip(0..) {
            let offer = &row.offer;
            if !stays(row)
                || offer.changes_role
                || (!whole && offer.role == WorkerRole::Prefill)
                || request.context_tokens >= offer.max_context
            {
                continue;
            }
            fitting += 1;
            let avoid = request.avoid.contains(id);
            others += u32::from(!avoid);
            if row.requests() < offer.max_requests {
                if avoid { avoided.push(place) } else { places.push(place) }
            }
        }
        if others == 0 {
            return Ok(Free { places: avoided, only: fitting == 1, model, whole });
        }
        Ok(Free { places, only: others == 1, model, whole })
    }

    /// The prefill workers that could compute prompts for `free`, which are others.
    pub(super) fn prefill_workers(&self, free: &Free) -> Vec<&Row> {
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
        free: &[u32],
        only: bool,
        said: Option<&Consultation>,
    ) -> Chosen {
        let opinions: Vec<(&Opinion, f64)> = said
            .iter()
            .flat_map(|c| &c.asked)
            .filter_map(|a| a.opinion().map(|opinion| (opinion, a.weight)))
            .collect();
        // Policies know the workers that were free when they were asked; another is taken only where none of those is.
        let known = |place: &u32| said.is_none_or(|c| c.row(self.name(*place)).is_some());
        let mut heard: Vec<u32> = free.iter().copied().filter(known).collect();
        if heard.is_empty() {
            heard = free.to_vec();
        }
        let excluded = |place: &u32| opinions.iter().any(|(o, _)| o.exclude.contains(self.name(*place)));
        let mut kept: Vec<u32> = heard.iter().copied().filter(|place| !excluded(place)).collect();
        if kept.is_empty() {
            kept.clone_from(&heard);
        }
        let among = |places: &[u32], id: &WorkerId| {
            self.workers.place(id).is_some_and(|place| places.contains(&place))
        };
        let pinned = opinions.iter().filter_map(|(o, _)| o.pin.as_ref()).find(|pin| match pin.hard {
            true => among(&heard, &pin.worker),
            false => among(&kept, &pin.worker),
        });
        let pinned = pinned.and_then(|pin| self.workers.place(&pin.worker));
        let mut costs = Vec::new();
        if let Some(said) = said {
            let names: Vec<&WorkerId> = kept.iter().map(|place| self.name(*place)).collect();
            costs = self::costs(said, &names, &opinions);
            self.bring_up_to_date(said, &names, &opinions, &mut costs);
        }
        let (place, why): (u32, &'static str) = match (&heard[..], pinned) {
            ([one], _) => (*one, if only { "only-worker" } else { "only-free-worker" }),
            (_, Some(pin)) => (pin, "pinned"),
            (_, None) if !costs.is_empty() => (self.cheapest(&kept, &costs), "least-cost"),
            (_, None) => match (&kept[..], self.config.choice) {
                (many @ [_, _, ..], Choice::PowerOfTwo) => {
                    let first = self.rng.below(many.len() as u64) as usize;
                    let step = 1 + self.rng.below(many.len() as u64 - 1) as usize;
                    let two = [many[first], many[(first + step) % many.len()]];
                    (self.cheapest(&two, &[]), "power-of-two")
                }
                (many, Choice::RoundRobin) => {
                    let turn = |place: &u32| self.workers.at(*place).1.last_chosen;
                    (many.iter().copied().min_by_key(turn).unwrap_or(heard[0]), "round-robin")
                }
                (many, Choice::Random) => {
                    let at = self.rng.below(many.len() as u64) as usize;
                    (many[at], "random")
                }
                (_, Choice::LeastLoaded | Choice::PowerOfTwo) => (self.cheapest(&kept, &[]), "least-loaded"),
            },
        };
        let worker = self.name(place).clone();
        let row = said.and_then(|c| c.row(&worker).map(|at| (at, &c.query.rows[at])));
        let hit_tokens = row.map_or(0, |(at, row)| {
            let told = opinions.iter().find_map(|(o, _)| o.hits.get(at));
            told.copied().unwrap_or(row.hit_tokens)
        });
        let (prefill, mut stages) = match said {
            Some(said) => self.hear_verdicts(now, request, &worker, said),
            None => (Prefill::Here, Vec::new()),
        };
        let computes = prefill.worker(&worker);
        let fetch = said.and_then(|said| self.hear_fetches(now, computes, said, &mut stages));
        let (fetch, occupies) = fetch.unzip();
        let store = said.and_then(|said| self.hear_store(said));
        let whole = self.workers.get(&worker).is_some_and(|r| r.info.role == WorkerRole::Prefill);
        let mut text = format!("attempt {} goes to {worker}", request.attempt);
        if whole {
            text.push_str("; none but prefill workers serve the model, so it takes the whole request");
        }
        if let Prefill::By(handoff, _) = &prefill {
            text.push_str(&format!("; {} computes its prompt", handoff.worker));
        }
        let cost = kept.iter().position(|at| *at == place).and_then(|at| costs.get(at));
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
        Chosen {
            worker,
            why,
            stages,
            hit_tokens,
            prefill,
            fetch,
            occupies: occupies.unwrap_or_default(),
            store,
        }
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

    /// What `computes`, which computes the prompt, fetches of it: the most that a policy says that counts, of equals what the
    /// first says; each is recorded.
    fn hear_fetches(
        &self,
        now: Time,
        computes: Option<&WorkerId>,
        said: &Consultation,
        stages: &mut [Stage],
    ) -> Option<(Box<Prefix>, Span)> {
        let mut heard: Option<(Box<Prefix>, Span)> = None;
        for (asked, stage) in said.asked.iter().zip(stages) {
            let opinion = asked.said();
            let fetch = computes.and_then(|computes| opinion?.fetch(computes));
            // Whoever held it may be gone by now.
            let is_there = |fetch: &&Fetch| match fetch.pool {
                true => self.knows_pool(&fetch.from),
                false => self.workers.get(&fetch.from).is_some(),
            };
            let Some(fetch) = fetch.filter(is_there) else { continue };
            // Others may have been sent there since it was asked about.
            let wait = if fetch.pool { self.pool_wait(now, &fetch.from) } else { Span::ZERO };
            if fetch.computing.is_some_and(|computing| computing <= wait + fetch.sending) {
                stage.passes_over(fetch, wait);
                continue;
            }
            stage.fetches(fetch, opinion.and_then(|opinion| opinion.store.as_deref()));
            let most = heard.as_ref().is_none_or(|(heard, _)| heard.tokens < fetch.tokens);
            if asked.mode == PolicyMode::Prod && most {
                let Fetch { from, pool, tokens, occupies, .. } = fetch;
                let prefix = Prefix { from: from.clone(), pool: *pool, tokens: *tokens };
                heard = Some((Box::new(prefix), *occupies));
            }
        }
        heard
    }

    /// The pool that is to keep the prompt, as the first policy says that counts.
    fn hear_store(&self, said: &Consultation) -> Option<Box<WorkerId>> {
        let mut stores = said.asked.iter().filter_map(|asked| asked.opinion()?.store.as_ref());
        stores.find(|store| self.knows_pool(&store.pool)).map(|store| Box::new(store.pool.clone()))
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
            let (Some(at), Some(row)) = (said.row(id), self.workers.get(id)) else { continue };
            *cost += weight * (row.work() as f64 - said.query.rows[at].work_tokens as f64);
        }
    }

    /// The one with the lowest cost, of those the one with the least work, of those the one that was chosen longest ago;
    /// never the first by name. Without costs, all cost the same.
    fn cheapest(&self, places: &[u32], costs: &[f64]) -> u32 {
        let costs = costs.iter().copied().chain(std::iter::repeat(0.0));
        let load = |row: &Row| (row.work(), row.last_chosen);
        let keyed = places.iter().zip(costs).map(|(at, cost)| (*at, cost, load(&self.workers.at(*at).1)));
        let least = keyed.min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)));
        least.expect("the caller has at least one").0
    }

    fn name(&self, place: u32) -> &WorkerId {
        &self.workers.at(place).0
    }

    /// Whether a worker offers `model` now.
    pub(super) fn is_served(&self, model: &ModelId) -> bool {
        self.workers.values().any(|r| r.info.models.contains(model))
    }

    /// The model that a name stands for.
    pub(super) fn resolve(&self, name: &ModelId) -> Result<ModelId, Rejection> {
        if let Some(known) = self.models.iter().find(|known| *known == name) {
            return Ok(known.clone());
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
    /// Says what is fetched, and what is to be kept besides.
    fn fetches(&mut self, fetch: &Fetch, store: Option<&StoreAt>) {
        self.action = match self.mode {
            PolicyMode::Shadow => format!("would_{}", Replicate::FETCH).into(),
            PolicyMode::Off | PolicyMode::Prod => Replicate::FETCH.into(),
        };
        self.why.clone_from(&fetch.why);
        let numbers = fetch.numbers.iter().chain(store.into_iter().flat_map(|store| &store.numbers));
        self.numbers = numbers.map(|&(name, value)| (name.into(), value)).collect();
    }

    /// Says why something is not fetched after all.
    fn passes_over(&mut self, fetch: &Fetch, wait: Span) {
        let Fetch { from, .. } = fetch;
        self.why =
            format!("{}; {from} would give its pages only after {wait}, so they are computed", self.why);
    }

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
    /// Whether it serves a model, which has this number at the controller.
    fn serves(&self, model: &ModelId, number: usize) -> bool {
        match number < Offer::BITS {
            true => self.offer.models & (1 << number) != 0,
            false => self.info.models.contains(model),
        }
    }

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
