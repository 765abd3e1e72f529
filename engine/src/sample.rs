//! From logits to tokens: penalties, temperature, truncation, the draw, and log-probabilities.
//!
//! A draw is a function of its row of logits, its [`Sampling`], its history and (seed, choice, position): no state, no
//! batch mates, no thread count. Two measures make it the same on every machine too:
//!
//! - `exp` is a polynomial of IEEE operations ([`math`]), not the C library's, which differs between versions.
//! - Probabilities become integers ([`SCALE`] for the likeliest token), whose sums do not depend on the order in which a
//!   partial selection happens to visit them.
//!
//! Order of the steps: repetition penalty, presence and frequency penalties, logit bias, temperature, top-k, top-p (of
//! what top-k left), min-p, draw. Log-probabilities are those of the model's own distribution, before all of them.

use policies::request::{Logprobs, Sampling, Token};
use policies::rng;
use policies::step::{Draw, History};

mod math;
mod penalties;
mod scan;
mod select;

use penalties::Seen;
use scan::Maxima;
use select::Weighed;

/// Weight of the likeliest token. Weights below `1 / SCALE` of it are zero; the sum over a vocabulary of up to 2¹⁹
/// tokens fits 64 bits.
const SCALE: f32 = (1_u64 << 44) as f32;

/// A logit that is NaN or infinite: nothing sensible can be drawn from its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("logits are not finite (first at token {token})")]
pub struct NonFinite {
    /// The first token whose logit is not finite.
    pub token: Token,
}

/// A token that was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: Token,
    /// Log-probabilities, where the draw asks for them.
    pub logprobs: Option<Logprobs>,
}

/// Draws tokens. Holds scratch memory only: results do not depend on what it was used for before.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Block maxima of the model's logits.
    raw: Maxima,
    /// The logits after penalties and bias, and their block maxima.
    changed: Vec<f32>,
    changed_maxima: Maxima,
    seen: Seen,
    /// Weights of the whole vocabulary.
    weights: Vec<u64>,
    /// Tokens that top-k has left, ascending.
    tokens: Vec<Weighed>,
    candidates: Vec<Weighed>,
    top: Vec<(f32, Token)>,
}

impl Sampler {
    /// Draws one token from a row of logits (`[vocab]`).
    ///
    /// # Errors
    /// The row holds NaN or an infinity.
    pub fn draw(&mut self, logits: &[f32], draw: &Draw) -> Result<Sampled, NonFinite> {
        self.raw.scan_finite(logits)?;
        let sampling = &*draw.sampling;
        let uniform = rng::bits(sampling.seed, u64::from(draw.choice), u64::from(draw.position)) >> 11;
        let history = draw.history.as_ref().filter(|_| sampling.needs_history());
        let token = if history.is_some() || !sampling.logit_bias.is_empty() {
            self.draw_changed(logits, sampling, history, uniform)
        } else {
            let maxima = std::mem::take(&mut self.raw);
            let token = self.pick(logits, &maxima, sampling, uniform);
            self.raw = maxima;
            token
        };
        let logprobs = sampling.logprobs.map(|top| self.report(logits, token, top));
        Ok(Sampled { token, logprobs })
    }

    /// The log-probability of `token` under a row of logits, and the `top` likeliest tokens with theirs.
    ///
    /// # Errors
    /// The row holds NaN or an infinity.
    pub fn logprobs(&mut self, logits: &[f32], token: Token, top: u8) -> Result<Logprobs, NonFinite> {
        self.raw.scan_finite(logits)?;
        Ok(self.report(logits, token, top))
    }

    /// As [`Sampler::logprobs`] once `self.raw` is set.
    fn report(&mut self, logits: &[f32], token: Token, top: u8) -> Logprobs {
        let max = self.raw.max();
        let norm = math::sum_exp(logits, max).ln();
        // The maximum goes first: next to a huge one the norm would be lost.
        let log = |logit: f32| (f64::from(logit) - f64::from(max) - norm) as f32;
        select::top(logits, &self.raw, usize::from(top), &mut self.top);
        Logprobs {
            own: logits.get(token as usize).map_or(f32::NEG_INFINITY, |l| log(*l)),
            top: self.top.iter().map(|&(logit, token)| (token, log(logit))).collect(),
        }
    }

    fn draw_changed(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        history: Option<&History>,
        uniform: u64,
    ) -> Token {
        let mut changed = std::mem::take(&mut self.changed);
        let mut maxima = std::mem::take(&mut self.changed_maxima);
        changed.clear();
        changed.extend_from_slice(logits);
        self.seen.apply(&mut changed, sampling, history);
        maxima.scan(&changed);
        // Biases of minus infinity on every token leave nothing to draw: the model's own favourite is then the answer.
        let token = if maxima.max() == f32::NEG_INFINITY {
            self.raw.argmax(logits)
        } else {
            self.pick(&changed, &maxima, sampling, uniform)
        };
        self.changed = changed;
        self.changed_maxima = maxima;
        token
    }

    /// Temperature, truncation and draw; `uniform` has 53 random bits.
    fn pick(&mut self, values: &[f32], maxima: &Maxima, sampling: &Sampling, uniform: u64) -> Token {
        if sampling.temperature <= 0.0 || sampling.top_k == 1 {
            return maxima.argmax(values);
        }
        let (max, temperature) = (maxima.max(), sampling.temperature);
        let top_k = sampling.top_k as usize;
        if (1..values.len()).contains(&top_k) {
            select::top(values, maxima, top_k, &mut self.top);
            self.top.sort_unstable_by_key(|(_, token)| *token);
            self.tokens.clear();
            self.tokens.extend(self.top.iter().map(|&(value, token)| {
                let weight = math::weight(value, max, temperature);
                Weighed { weight, token }
            }));
            let kept = self.tokens.iter().copied();
            return truncate_and_draw(kept, top_k, sampling, &mut self.candidates, uniform);
        }
        math::weights(values, max, temperature, &mut self.weights);
        let all = self.weights.iter().zip(0..).map(|(&weight, token)| Weighed { weight, token });
        truncate_and_draw(all, values.len(), sampling, &mut self.candidates, uniform)
    }
}

/// Applies top-p and min-p to `count` tokens, which come in ascending order, and draws one of those that are left.
fn truncate_and_draw(
    tokens: impl Iterator<Item = Weighed> + Clone,
    count: usize,
    sampling: &Sampling,
    candidates: &mut Vec<Weighed>,
    uniform: u64,
) -> Token {
    let mut total = tokens.clone().map(|t| t.weight).sum::<u64>();
    if sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
        return draw_from(tokens, total, uniform);
    }
    let mut least = Weighed { weight: 0, token: Token::MAX };
    if sampling.top_p < 1.0 {
        let mass = mass(total, sampling.top_p);
        // Tokens this light add up to no more than what top-p leaves out, so the nucleus lies among the others.
        let light = (total - mass) / count.max(1) as u64;
        candidates.clear();
        candidates.extend(tokens.clone().filter(|t| t.weight > light));
        least = select::nucleus(candidates, mass);
    }
    let min_p = (f64::from(sampling.min_p.clamp(0.0, 1.0)) * f64::from(SCALE)) as u64;
    if min_p > least.weight {
        least = Weighed { weight: min_p, token: Token::MAX };
    }
    let kept = tokens.filter(|t| t.reaches(least));
    total = kept.clone().map(|t| t.weight).sum();
    draw_from(kept, total, uniform)
}

/// The part of `total` that a nucleus of `top_p` has to reach; at least 1, so that the nucleus is never empty.
fn mass(total: u64, top_p: f32) -> u64 {
    if top_p >= 1.0 {
        return total;
    }
    ((f64::from(top_p.max(0.0)) * total as f64).ceil() as u64).clamp(1, total.max(1))
}

/// The token at `uniform / 2⁵³` of the way through the weights.
fn draw_from(tokens: impl Iterator<Item = Weighed>, total: u64, uniform: u64) -> Token {
    let target = ((u128::from(uniform) * u128::from(total)) >> 53) as u64;
    let mut sum = 0;
    let mut last = 0;
    for Weighed { weight, token } in tokens {
        sum += weight;
        last = token;
        if sum > target {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests;
