//! A deterministic model of a few integer operations. The "keys and values" of a position are one number that depends
//! on all tokens up to it; a drawn token depends on those numbers at all positions. A wrong page, a missed copy or a
//! page that is reused too early therefore changes the tokens.

use config::ids::PageId;

use crate::batch::BatchConfig;
use crate::request::{Finish, Logprobs, RequestSpec, Sampling, Token};
use crate::rng;
use crate::step::{Draw, Drawn, History, PromptLogprobs, StepOutcome, StepPlan};
use crate::time::Span;

pub(super) const VOCABULARY: u64 = 29;

fn state(before: u64, token: Token, position: u32) -> u64 {
    rng::mix64(before ^ rng::bits(7, u64::from(token), u64::from(position)))
}

fn attend(states: impl Iterator<Item = u64>) -> u64 {
    states.fold(1, |acc, s| rng::mix64(acc.rotate_left(9) ^ s))
}

fn logprobs(logits: u64, top: u8) -> Logprobs {
    let value = |i: u64| -((rng::bits(logits, 5, i) % 1000) as f32) / 100.0;
    Logprobs { own: value(99), top: (0..u32::from(top)).map(|i| (i, value(u64::from(i)))).collect() }
}

fn sample(
    logits: u64,
    choice: u32,
    position: u32,
    sampling: &Sampling,
    history: Option<&History>,
) -> (Token, Option<Logprobs>) {
    let mut x = logits ^ rng::bits(sampling.seed, u64::from(choice), u64::from(position));
    if let Some(history) = history {
        x = history.prompt.iter().chain(&history.output).fold(x, |x, t| rng::mix64(x ^ u64::from(*t)));
    }
    ((rng::mix64(x) % VOCABULARY) as Token, sampling.logprobs.map(|top| logprobs(logits, top)))
}

/// The engine: pages of numbers.
pub(super) struct Engine {
    page_tokens: usize,
    pages: Vec<Vec<u64>>,
    /// Tokens computed and copies made, in all.
    pub(super) computed: u64,
    pub(super) copies: u64,
}

impl Engine {
    pub(super) fn new(config: &BatchConfig) -> Self {
        let page_tokens = config.page_tokens as usize;
        Self { page_tokens, pages: vec![vec![0; page_tokens]; config.pages as usize], computed: 0, copies: 0 }
    }

    /// The content of a page.
    pub(super) fn export(&self, page: PageId) -> Vec<u64> {
        self.pages[page.index()].clone()
    }

    /// Sets the content of a page.
    pub(super) fn import(&mut self, page: PageId, content: Vec<u64>) {
        self.pages[page.index()] = content;
    }

    pub(super) fn run(&mut self, plan: &StepPlan) -> StepOutcome {
        self.no_shared_writes(plan);
        for copy in &plan.copies {
            self.pages[copy.to.index()] = self.pages[copy.from.index()].clone();
            self.copies += 1;
        }
        let mut outcome =
            StepOutcome { step: plan.step, took: Span::from_millis(1), ..StepOutcome::default() };
        for slice in &plan.slices {
            let read = |pages: &[Vec<u64>], p: usize| {
                pages[slice.block_table[p / self.page_tokens].index()][p % self.page_tokens]
            };
            let mut scored = Vec::new();
            for (row, &token) in slice.tokens.iter().enumerate() {
                let at = slice.start as usize + row;
                let before = if at == 0 { 0 } else { read(&self.pages, at - 1) };
                let now = state(before, token, at as u32);
                self.pages[slice.block_table[at / self.page_tokens].index()][at % self.page_tokens] = now;
                if let Some(wanted) = &slice.prompt_logprobs
                    && let Some(target) = wanted.targets.get(row)
                {
                    let logits = attend((0..=at).map(|p| read(&self.pages, p)));
                    scored.push(logprobs(logits ^ u64::from(*target), wanted.top));
                }
            }
            self.computed += slice.tokens.len() as u64;
            if slice.prompt_logprobs.is_some() {
                outcome.prompt_logprobs.push(PromptLogprobs {
                    seq: slice.seq,
                    first: slice.start + 1,
                    tokens: scored,
                });
            }
            let end = slice.start as usize + slice.tokens.len();
            for draw in &slice.draws {
                let logits = attend((0..end).map(|p| read(&self.pages, p)));
                outcome.drawn.push(drawn(logits, slice.seq, draw, end));
            }
        }
        outcome
    }

    /// No slice writes to a page that another slice of the step names, or that is no longer the target of its copy.
    fn no_shared_writes(&self, plan: &StepPlan) {
        for slice in &plan.slices {
            let first = slice.start as usize / self.page_tokens;
            let last = (slice.start as usize + slice.tokens.len()).div_ceil(self.page_tokens);
            for page in &slice.block_table[first..last] {
                let named = plan.slices.iter().flat_map(|s| &s.block_table).filter(|p| *p == page).count();
                assert_eq!(named, 1, "{:?} writes to page {page}, which others read", slice.seq);
            }
        }
    }
}

fn drawn(logits: u64, seq: crate::step::SeqKey, draw: &Draw, end: usize) -> Drawn {
    assert_eq!(draw.position as usize, end, "the drawn token follows the last one computed");
    assert_eq!(draw.history.is_some(), draw.sampling.needs_history());
    if let Some(history) = &draw.history {
        assert_eq!(history.prompt.len() + history.output.len(), end, "penalties see all tokens so far");
    }
    let (token, logprobs) = sample(logits, draw.choice, draw.position, &draw.sampling, draw.history.as_ref());
    Drawn { seq: crate::step::SeqKey { choice: draw.choice, ..seq }, token, logprobs }
}

/// What a choice has to give: tokens with their log-probabilities, and why it ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expected {
    pub(super) tokens: Vec<(Token, Option<Logprobs>)>,
    pub(super) finish: Finish,
}

/// The request alone, without pages, batches or a scheduler.
pub(super) fn solo(spec: &RequestSpec, choice: u32, window: u32) -> Expected {
    let mut states: Vec<u64> = Vec::new();
    let push = |states: &mut Vec<u64>, token| {
        states.push(state(states.last().copied().unwrap_or(0), token, states.len() as u32));
    };
    spec.prompt.iter().for_each(|t| push(&mut states, *t));
    let limit = (spec.prompt.len() as u32).saturating_add(spec.max_tokens).min(window) as usize;
    let mut output: Vec<Token> = Vec::new();
    let mut tokens = Vec::new();
    loop {
        let position = states.len() as u32;
        let history = History { prompt: spec.prompt.clone(), output: output.clone() };
        let history = spec.sampling.needs_history().then_some(&history);
        let (token, logprobs) =
            sample(attend(states.iter().copied()), choice, position, &spec.sampling, history);
        tokens.push((token, logprobs));
        output.push(token);
        if !spec.ignore_end && spec.end_tokens.contains(&token) {
            return Expected { tokens, finish: Finish::EndToken };
        }
        if spec.prompt.len() + output.len() >= limit {
            return Expected { tokens, finish: Finish::Length };
        }
        push(&mut states, token);
    }
}

/// Log-probabilities of the prompt's tokens from the second on.
pub(super) fn solo_prompt(spec: &RequestSpec) -> Vec<Logprobs> {
    let mut states: Vec<u64> = Vec::new();
    let mut scored = Vec::new();
    for (i, &token) in spec.prompt.iter().enumerate() {
        states.push(state(states.last().copied().unwrap_or(0), token, i as u32));
        if let Some(target) = spec.prompt.get(i + 1) {
            let logits = attend(states.iter().copied());
            scored.push(logprobs(logits ^ u64::from(*target), spec.sampling.logprobs.unwrap_or(0)));
        }
    }
    scored
}
