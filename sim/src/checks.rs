//! What has to hold across the nodes, besides what each core says of itself.

use std::collections::BTreeMap;

use config::ids::{Attempt, RequestId};
use policies::batch::TokenEvent;
use policies::cost::fake::{FakeModel, hash, roll};
use policies::ensure_invariant;
use policies::invariant::Broken;
use policies::request::RequestSpec;

/// What clients have to be told, held against each token that they are: whichever workers have produced an answer, and
/// however often it was placed again, it is what the model says to the prompt.
#[derive(Debug)]
pub struct Truth {
    model: FakeModel,
    live: BTreeMap<RequestId, Vec<Told>>,
}

/// What a choice has been told.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// Hash of the prompt and the answer so far.
    state: u64,
    tokens: u32,
    attempt: Attempt,
    ended: bool,
}

impl Truth {
    /// Of clients that ask this model.
    #[must_use]
    pub const fn new(model: FakeModel) -> Self {
        Self { model, live: BTreeMap::new() }
    }

    /// A request begins.
    pub fn begins(&mut self, spec: &RequestSpec) {
        let told = Told { state: hash(&spec.prompt), tokens: 0, attempt: Attempt(0), ended: false };
        self.live.insert(spec.id, vec![told; spec.choices()]);
    }

    /// A client is told a token.
    ///
    /// # Errors
    /// A token that was told before, or is not the next one, comes from an attempt that was given up, after the last one, or
    /// is not what the model says.
    pub fn tells(&mut self, spec: &RequestSpec, event: &TokenEvent) -> Result<(), Broken> {
        let id = event.seq.request;
        let told = self.live.get_mut(&id).and_then(|choices| choices.get_mut(event.seq.choice as usize));
        let Some(told) = told else {
            let detail = format!("{id} choice {} is not asked for (any more)", event.seq.choice);
            return Err(Broken { name: "sim_tokens_are_asked_for", detail });
        };
        ensure_invariant!(
            event.index == told.tokens && !told.ended,
            "sim_tokens_come_once_in_order",
            "{id} choice {}: token {} comes after {} of them, which are all: {}",
            event.seq.choice,
            event.index,
            told.tokens,
            told.ended
        );
        ensure_invariant!(
            event.seq.attempt >= told.attempt,
            "sim_one_attempt_answers",
            "{id} choice {}: a token of attempt {} comes after one of {}",
            event.seq.choice,
            event.seq.attempt,
            told.attempt
        );
        let position = spec.prompt.len() as u32 + event.index;
        let says = self.model.draw(told.state, &spec.sampling, event.seq.choice, position);
        ensure_invariant!(
            event.token == says,
            "sim_answers_are_true",
            "{id} choice {}: token {} is {}, and the model says {says}",
            event.seq.choice,
            event.index,
            event.token
        );
        told.state = roll(told.state, event.token);
        told.tokens += 1;
        told.attempt = event.seq.attempt;
        told.ended = event.finish.is_some();
        Ok(())
    }

    /// A request is over.
    pub fn ends(&mut self, id: RequestId) {
        self.live.remove(&id);
    }
}

#[cfg(test)]
mod tests {

    use policies::request::ResumedChoice;
    use policies::step::SeqKey;

    use super::*;

    fn spec() -> RequestSpec {
        RequestSpec {
            resumed: vec![ResumedChoice::default(); 2],
            ..RequestSpec::plain(RequestId::new(1, 1), "m".into(), [1, 2, 3], 9)
        }
    }

    fn token(index: u32, token: u32, attempt: u32) -> TokenEvent {
        let seq = SeqKey { request: RequestId::new(1, 1), attempt: Attempt(attempt), choice: 1 };
        TokenEvent { seq, index, token, logprobs: None, finish: None, cached_tokens: 0 }
    }

    #[test]
    fn only_the_model_s_answer_in_order_is_true() {
        let (model, spec) = (FakeModel::default(), spec());
        let answer = model.answer(&spec.prompt, &spec.sampling, 1, 3);
        let mut truth = Truth::new(model);
        let name = |result: Result<(), Broken>| result.map_err(|broken| broken.name);
        assert_eq!(name(truth.tells(&spec, &token(0, answer[0], 0))), Err("sim_tokens_are_asked_for"));
        truth.begins(&spec);
        assert_eq!(name(truth.tells(&spec, &token(1, answer[1], 0))), Err("sim_tokens_come_once_in_order"));
        assert_eq!(name(truth.tells(&spec, &token(0, answer[0] + 1, 0))), Err("sim_answers_are_true"));
        assert_eq!(name(truth.tells(&spec, &token(0, answer[0], 2))), Ok(()));
        assert_eq!(name(truth.tells(&spec, &token(0, answer[0], 2))), Err("sim_tokens_come_once_in_order"));
        assert_eq!(name(truth.tells(&spec, &token(1, answer[1], 1))), Err("sim_one_attempt_answers"));
        assert_eq!(name(truth.tells(&spec, &token(1, answer[1], 2))), Ok(()));
        truth.ends(spec.id);
        assert_eq!(name(truth.tells(&spec, &token(2, answer[2], 2))), Err("sim_tokens_are_asked_for"));
    }
}
