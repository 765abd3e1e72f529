//! Requests come and are called off.

use std::sync::Arc;

use config::ids::{Attempt, RequestId};

use super::block_table::BlockTable;
use super::fresh::Spot;
use super::seq::{Choice, Place, Request, Seq};
use super::slab::Key;
use super::transfer::Transfer;
use super::{Batch, BatchEffect, Refusal, Usage};
use crate::kv::{Fingerprint, PageHash};
use crate::order::{OrderEvent, deadline};
use crate::request::{RequestSpec, ResumedChoice, Token};
use crate::time::Time;

impl Batch {
    /// Takes a request, or says why not.
    ///
    /// Choices that an earlier attempt ended, or that have all their tokens, are not computed again and get no event;
    /// a request with no other choices is done at once.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is kept of the request then.
    pub fn submit(&mut self, now: Time, spec: RequestSpec) -> Result<(), Refusal> {
        self.accept(now, spec, Transfer::None)
    }

    pub(super) fn accept(&mut self, now: Time, spec: RequestSpec, transfer: Transfer) -> Result<(), Refusal> {
        self.clock = self.clock.max(now);
        let limit = self.admissible(&spec)?;
        let fingerprint = self.config.fingerprint.of_tenant(spec.tenant.as_ref());
        let hashes = self.prompt_hashes(&spec, &fingerprint);
        // How long a prompt takes is for the worker to say that computes it.
        if !matches!(transfer, Transfer::Receive(_)) {
            self.in_time(now, &spec, &hashes)?;
        }
        let scores_prompt =
            spec.prompt_logprobs && spec.resumed.iter().all(|c| c.tokens.is_empty() && !c.ended);
        let choices: Vec<Choice> = spec
            .resumed
            .iter()
            .map(|c| if has_ended(c, &spec, limit, scores_prompt) { Choice::Ended } else { Choice::Joint })
            .collect();
        let allowed = spec.resumed.iter().map(|c| spec.allowance(c)).collect();
        let live = choices.iter().filter(|c| **c == Choice::Joint).count() as u32;
        let id = (spec.id, spec.attempt);
        let deadline = spec.deadline;
        let request = Request {
            spec,
            choices,
            joint: None,
            live,
            limit,
            usage: Usage::default(),
            cached: None,
            allowed,
            reported: 0,
            number: self.submitted,
            since: now,
            standing: self.first_standing(),
            fingerprint,
            reached: 0,
            transfer: Transfer::None,
            offloaded: false,
        };
        self.submitted += 1;
        self.order.tell(|| OrderEvent::Arrived(request.arrival().into()));
        let key = self.requests.insert(request);
        self.by_id.insert(id, key);
        if deadline < Time::NEVER {
            self.deadlines.insert((deadline, key));
        }
        if live == 0 {
            self.finish_request(key);
        } else {
            self.requests[key].transfer = transfer;
            self.enqueue(key, &hashes);
        }
        Ok(())
    }

    /// The request's token limit, where it can run here at all.
    fn admissible(&self, spec: &RequestSpec) -> Result<u32, Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        if spec.prompt.is_empty() {
            return Err(Refusal::Malformed("the prompt has no tokens"));
        }
        if spec.resumed.is_empty() {
            return Err(Refusal::Malformed("no choice is asked for"));
        }
        if self.by_id.contains_key(&(spec.id, spec.attempt)) {
            return Err(Refusal::Malformed("this attempt of the request is here already"));
        }
        let prompt = u32::try_from(spec.prompt.len()).unwrap_or(u32::MAX);
        if prompt >= self.config.max_context {
            return Err(Refusal::TooLong { prompt, window: self.config.max_context });
        }
        let needed = (prompt + 1).div_ceil(self.config.page_tokens);
        if needed > self.config.pages {
            let (pages, page_tokens) = (self.config.pages, self.config.page_tokens);
            return Err(Refusal::NeverFits { needed, pages, page_tokens });
        }
        let waiting = (self.fresh.len() + self.expected.len()) as u32;
        if waiting >= self.config.max_waiting {
            return Err(Refusal::QueueFull { waiting });
        }
        Ok(prompt.saturating_add(spec.max_tokens).min(self.config.window()))
    }

    /// Refuses what cannot be done before its client's deadline, even if it began now.
    fn in_time(&self, now: Time, spec: &RequestSpec, hashes: &[PageHash]) -> Result<(), Refusal> {
        if !spec.props.contains_key(deadline::PROP) {
            return Ok(());
        }
        let page_tokens = self.config.page_tokens as usize;
        let mut parent = None;
        let cached = hashes.iter().zip(spec.prompt.chunks_exact(page_tokens)).take_while(|(hash, tokens)| {
            parent = self.table.find(hash, parent, tokens);
            parent.is_some()
        });
        let uncached = spec.prompt.len() - cached.count() * page_tokens;
        match self.hopeless(now, uncached as u32, spec.deadline) {
            Some((needed, left)) => Err(Refusal::Hopeless { needed, left }),
            None => Ok(()),
        }
    }

    /// The gateway's hashes where there is one a full page, else our own. Wrong ones cost hits, never correctness.
    fn prompt_hashes(&self, spec: &RequestSpec, fingerprint: &Fingerprint) -> Arc<[PageHash]> {
        let page_tokens = self.config.page_tokens as usize;
        if !self.config.prefix_cache {
            return Arc::new([]);
        }
        if spec.hashes.len() == spec.prompt.len() / page_tokens {
            return Arc::clone(&spec.hashes);
        }
        let mut parent = None;
        let pages = spec.prompt.chunks_exact(page_tokens);
        pages
            .map(|page: &[Token]| {
                let hash = (self.hasher)(fingerprint, parent, page);
                parent = Some(hash);
                hash
            })
            .collect()
    }

    /// Puts the request's sequences into the queue: one for the prompt where no choice has output, else one a choice.
    fn enqueue(&mut self, key: Key, hashes: &Arc<[PageHash]>) {
        let request = &mut self.requests[key];
        let open: Vec<u32> = request.joint_choices().collect();
        let resumed = open.iter().any(|c| !request.spec.resumed[*c as usize].tokens.is_empty());
        let order = self.arrivals;
        self.arrivals += 1;
        let mut added = Vec::new();
        let starts = if resumed { &open[..] } else { &open[..1] };
        for &choice in starts {
            let output = std::mem::take(&mut request.spec.resumed[choice as usize].tokens);
            // The credit is at least one, so that without output there is some.
            let place = if request.has_credit(choice, output.len()) { Place::Fresh } else { Place::Stalled };
            let seq = Seq {
                request: key,
                choice,
                joint: !resumed,
                place,
                order,
                arrival: order,
                spot: Spot::new(&request.standing, order, choice),
                tier: 0,
                prompt: Arc::clone(&request.spec.prompt),
                prompt_hashes: Arc::clone(hashes),
                output,
                output_hashes: Vec::new(),
                pages: BlockTable::default(),
                waiting_work: 0,
                wanted: 0,
                told: false,
                computed: 0,
                prefilling: true,
                preemptions: 0,
                limit: request.limit,
            };
            let (spot, rank) = (seq.spot, seq.rank());
            let seq = self.seqs.insert(seq);
            if resumed {
                request.choices[choice as usize] = Choice::Own(seq);
            } else {
                request.joint = Some(seq);
            }
            if place == Place::Fresh {
                self.fresh.insert(spot, seq);
                added.push(seq);
            } else {
                self.stalled.insert(rank, seq);
            }
        }
        for seq in added {
            self.count_waiting(seq);
        }
    }

    /// Calls off all choices of exactly this attempt. Its pages are free at once, or after the step in flight where that
    /// uses them. No event of the request follows. False where it is not here.
    pub fn cancel(&mut self, _now: Time, request: RequestId, attempt: Attempt) -> bool {
        let Some(&key) = self.by_id.get(&(request, attempt)) else { return false };
        self.remove_request(key, None);
        true
    }

    /// Ends one choice (the gateway found a stop string): no event of it follows. The others go on; after the last one
    /// the request is done. False where it is not here or the choice has ended.
    pub fn cancel_choice(&mut self, now: Time, request: RequestId, attempt: Attempt, choice: u32) -> bool {
        self.clock = self.clock.max(now);
        let Some(&key) = self.by_id.get(&(request, attempt)) else { return false };
        self.end_choice(key, choice)
    }

    /// Fails requests whose deadline has passed and of which nothing runs. The gateway calls the others off.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(&(deadline, key)) = self.deadlines.first() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_first();
            let runs = |seq: &Key| self.seqs.get(*seq).is_some_and(|s| s.place == Place::Running);
            if self.requests.get(key).is_some_and(|r| !r.seqs().iter().any(runs)) {
                let late = now.since(deadline);
                self.fail_request(key, format!("deadline passed {late} ago while the request was waiting"));
            }
        }
    }

    pub(super) fn finish_request(&mut self, key: Key) {
        if let Some(request) = self.remove_request(key, None) {
            let (id, attempt, usage) = (request.spec.id, request.spec.attempt, request.usage);
            self.effects.push(BatchEffect::Done { request: id, attempt, usage });
        }
    }

    /// Gives up a waiting request that cannot be done in time any more; says whether it did.
    pub(super) fn give_up_late(&mut self, now: Time, seq: Key) -> bool {
        let key = self.seqs[seq].request;
        let request = &self.requests[key];
        let (due, asked) = (request.spec.deadline, request.spec.props.contains_key(deadline::PROP));
        let elsewhere = matches!(request.transfer, Transfer::Receive(_));
        if !asked || elsewhere || !self.refuses_late() {
            return false;
        }
        let cached = self.look_up(seq).len() as u32 * self.config.page_tokens;
        let uncached = self.seqs[seq].len() - cached;
        let Some((needed, left)) = self.hopeless(now, uncached, due) else { return false };
        let reason = Refusal::Hopeless { needed, left }.to_string();
        if let Some(request) = self.remove_request(key, Some(&reason)) {
            let (id, attempt) = (request.spec.id, request.spec.attempt);
            self.effects.push(BatchEffect::Late { request: id, attempt, reason });
        }
        true
    }

    #[cold]
    #[inline(never)]
    pub(super) fn fail_request(&mut self, key: Key, reason: String) {
        if let Some(request) = self.remove_request(key, Some(&reason)) {
            let (id, attempt) = (request.spec.id, request.spec.attempt);
            self.effects.push(BatchEffect::Failed { request: id, attempt, reason });
        }
    }
}

/// Whether nothing is to be generated for a choice. Scoring a prompt needs a run even without a token to draw.
fn has_ended(choice: &ResumedChoice, spec: &RequestSpec, limit: u32, scores_prompt: bool) -> bool {
    let len = (spec.prompt.len() + choice.tokens.len()) as u32;
    let stopped = choice.tokens.last().is_some_and(|t| !spec.ignore_end && spec.end_tokens.contains(t));
    choice.ended || stopped || (len >= limit && !scores_prompt)
}
