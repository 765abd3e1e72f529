//! From a step plan to the batch of the graph, and from logits to tokens.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use policies::request::{Logprobs, Token};
use policies::step::{Draw, Drawn, PromptLogprobs, PromptTargets, Slice, StepOutcome, StepPlan};

use super::batch::RaggedBatch;
use super::forward::Model;
use crate::EngineError;
use crate::cpu::Compute;
use crate::sample::{NonFinite, Sampled, Sampler};

/// Rows whose logits are in memory at a time: enough for the head's product to be efficient, few enough for long prompts
/// with log-probabilities over large vocabularies.
const LOGIT_ROWS: usize = 64;

/// Limits that slices have to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Tokens are below this.
    pub(crate) vocab: u32,
    /// Positions are below this.
    pub(crate) context: u32,
    /// Tokens a page.
    pub(crate) page_tokens: u32,
    /// Pages are below this.
    pub(crate) pages: u32,
}

/// What the rows of one accepted slice give.
struct Job<'a> {
    slice: &'a Slice,
    /// The slice's rows whose logits are wanted.
    outputs: Range<usize>,
    /// The first of them among the batch's outputs.
    first_output: usize,
}

/// Something to make of one row of logits.
enum Ask<'a> {
    Draw(&'a Draw),
    Target(Token, u8),
}

/// What was made of it.
enum Answer {
    Draw(Sampled),
    Target(Logprobs),
}

impl Limits {
    /// Why a slice cannot be computed, if it cannot. The scheduler does not plan such slices; refusing one keeps a
    /// mistake there from harming its batch mates.
    fn objection(&self, slice: &Slice) -> Option<String> {
        let end = slice.start as usize + slice.tokens.len();
        if slice.tokens.is_empty() {
            return Some("a slice without tokens".to_owned());
        }
        if end > self.context as usize {
            return Some(format!(
                "position {} is outside of the context of {} tokens",
                end - 1,
                self.context
            ));
        }
        if end > slice.block_table.len() * self.page_tokens as usize {
            return Some(format!("{} pages do not hold {end} tokens", slice.block_table.len()));
        }
        if let Some(page) = slice.block_table.iter().find(|page| page.0 >= self.pages) {
            return Some(format!("page {page} does not exist; there are {}", self.pages));
        }
        let targets = slice.prompt_logprobs.iter().flat_map(|prompt| &prompt.targets);
        if let Some(token) = slice.tokens.iter().chain(targets).find(|token| **token >= self.vocab) {
            return Some(format!("token {token} is outside of the vocabulary of {} tokens", self.vocab));
        }
        let targets = slice.prompt_logprobs.as_ref().map_or(0, |prompt| prompt.targets.len());
        (targets > slice.tokens.len())
            .then(|| format!("{targets} log-probabilities asked of {} tokens", slice.tokens.len()))
    }
}

/// Runs a plan. `samplers` is scratch memory, as many as threads have needed so far.
pub(crate) fn run(
    model: &mut dyn Model,
    compute: &Compute,
    limits: Limits,
    plan: &StepPlan,
    batch: &mut RaggedBatch,
    samplers: &mut Mutex<Vec<Sampler>>,
) -> Result<StepOutcome, EngineError> {
    for copy in &plan.copies {
        if copy.from.0 >= limits.pages || copy.to.0 >= limits.pages {
            let (from, to, pages) = (copy.from, copy.to, limits.pages);
            return Err(EngineError::Step(format!(
                "cannot copy page {from} to page {to}; there are {pages}"
            )));
        }
    }
    let mut outcome = StepOutcome { step: plan.step, ..StepOutcome::default() };
    batch.clear();
    let mut jobs = Vec::with_capacity(plan.slices.len());
    for slice in &plan.slices {
        if let Some(why) = limits.objection(slice) {
            outcome.failed.push((slice.seq, why));
            continue;
        }
        let outputs = outputs(slice);
        let first_output = batch.outputs.len();
        batch.push(slice, limits.page_tokens, outputs.clone());
        jobs.push(Job { slice, outputs, first_output });
    }
    if let Some(twice) = batch.slot_written_twice() {
        let (page, slot) = (twice.page, twice.slot);
        return Err(EngineError::Step(format!("token {slot} of page {page} would be written twice")));
    }
    for copy in &plan.copies {
        model.copy_page(copy.from.0, copy.to.0)?;
    }
    model.run(batch)?;
    let answers = answer(model, compute, &jobs, batch.outputs.len(), samplers)?;
    collect(&jobs, answers, &mut outcome);
    Ok(outcome)
}

/// Logits of every row of some slices, in order: `[rows][vocab]`.
pub(crate) fn logits(
    model: &mut dyn Model,
    limits: Limits,
    slices: &[Slice],
    batch: &mut RaggedBatch,
) -> Result<Vec<Vec<f32>>, EngineError> {
    batch.clear();
    for slice in slices {
        if let Some(why) = limits.objection(slice) {
            return Err(EngineError::Step(why));
        }
        batch.push(slice, limits.page_tokens, 0..slice.tokens.len());
    }
    model.run(batch)?;
    let mut out = Vec::with_capacity(batch.rows());
    for first in (0..batch.rows()).step_by(LOGIT_ROWS) {
        let rows = first..batch.rows().min(first + LOGIT_ROWS);
        let logits = model.logits(rows.clone())?;
        out.extend(logits.chunks_exact(logits.len() / rows.len()).map(<[f32]>::to_vec));
    }
    Ok(out)
}

/// The slice's rows whose logits are wanted, as one range: those with prompt targets, and the last one for draws. Rows
/// between, which a plan with fewer targets than rows may have, are computed for nothing; that is the prompt's last row.
fn outputs(slice: &Slice) -> Range<usize> {
    let len = slice.tokens.len();
    let targets = slice.prompt_logprobs.as_ref().map_or(0, |prompt| prompt.targets.len());
    match (targets, slice.draws.is_empty()) {
        (0, true) => 0..0,
        (0, false) => len - 1..len,
        (targets, true) => 0..targets,
        (_, false) => 0..len,
    }
}

impl<'a> Job<'a> {
    /// What is asked of a row (relative to the slice) that has logits.
    fn asks(&self, row: usize) -> impl Iterator<Item = Ask<'a>> {
        let target = self.slice.prompt_logprobs.as_ref().and_then(|PromptTargets { targets, top }| {
            targets.get(row).map(|target| Ask::Target(*target, *top))
        });
        let is_last = row + 1 == self.slice.tokens.len();
        let draws = if is_last { self.slice.draws.as_slice() } else { &[] };
        target.into_iter().chain(draws.iter().map(Ask::Draw))
    }
}

/// One answer for every ask, slice by slice and row by row.
fn answer(
    model: &mut dyn Model,
    compute: &Compute,
    jobs: &[Job<'_>],
    outputs: usize,
    samplers: &mut Mutex<Vec<Sampler>>,
) -> Result<Vec<Vec<Result<Answer, NonFinite>>>, EngineError> {
    let asks: Vec<(usize, usize, Ask<'_>)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(index, job)| {
            job.outputs.clone().flat_map(move |row| {
                let output = job.first_output + row - job.outputs.start;
                job.asks(row).map(move |ask| (index, output, ask))
            })
        })
        .collect();
    let mut answers: Vec<Vec<_>> = jobs.iter().map(|_| Vec::new()).collect();
    let mut rest = asks.as_slice();
    for first in (0..outputs).step_by(LOGIT_ROWS) {
        let rows = first..outputs.min(first + LOGIT_ROWS);
        let logits = model.logits(rows.clone())?;
        let vocab = logits.len() / rows.len();
        let (now, later) = rest.split_at(rest.partition_point(|ask| ask.1 < rows.end));
        rest = later;
        let results: Vec<OnceLock<_>> = now.iter().map(|_| OnceLock::new()).collect();
        let samplers = &*samplers;
        compute.run(now.len(), |i| {
            let (_, output, ask) = &now[i];
            let row = output - first;
            let row = &logits[row * vocab..(row + 1) * vocab];
            let pool = || samplers.lock().unwrap_or_else(PoisonError::into_inner);
            let mut sampler = pool().pop().unwrap_or_default();
            results[i].get_or_init(|| match ask {
                Ask::Draw(draw) => sampler.draw(row, draw).map(Answer::Draw),
                Ask::Target(token, top) => sampler.logprobs(row, *token, *top).map(Answer::Target),
            });
            pool().push(sampler);
        });
        for ((job, ..), result) in now.iter().zip(results) {
            answers[*job].extend(result.into_inner());
        }
    }
    Ok(answers)
}

/// Puts the answers into the outcome; a slice with a row that is not finite fails as a whole, and alone.
fn collect(jobs: &[Job<'_>], answers: Vec<Vec<Result<Answer, NonFinite>>>, outcome: &mut StepOutcome) {
    for (job, answers) in jobs.iter().zip(answers) {
        let slice = job.slice;
        let answers: Vec<Answer> = match answers.into_iter().collect() {
            Ok(answers) => answers,
            Err(not_finite) => {
                let NonFinite { .. } = not_finite;
                outcome.failed.push((slice.seq, not_finite.to_string()));
                continue;
            }
        };
        let mut prompt = Vec::new();
        let mut draws = slice.draws.iter();
        for answer in answers {
            match answer {
                Answer::Target(logprobs) => prompt.push(logprobs),
                Answer::Draw(Sampled { token, logprobs }) => {
                    // Answers come in the order of the asks, so each draw meets its own.
                    let choice = draws.next().map_or(slice.seq.choice, |draw| draw.choice);
                    let seq = policies::step::SeqKey { choice, ..slice.seq };
                    outcome.drawn.push(Drawn { seq, token, logprobs });
                }
            }
        }
        if slice.prompt_logprobs.is_some() {
            let first = slice.start + 1;
            outcome.prompt_logprobs.push(PromptLogprobs { seq: slice.seq, first, tokens: prompt });
        }
    }
}
