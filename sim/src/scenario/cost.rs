//! How long steps take, as data.

use std::path::PathBuf;

use config::Dur;
use policies::cost::{Affine, CostModel, Curve, Hardware, ModelShape, Polynomial, SlicePrices, StepCosts};
use policies::time::Span;
use serde::{Deserialize, Serialize};

use super::{invalid, within};
use crate::SimError;

/// What replaces the roofline of model and machine: one of these, at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cost {
    /// Polynomials of a measured engine. Transfers between workers stay what the model's KV takes on the machine's link.
    pub curve: Option<CurveCost>,
    /// Prices of the parts of a step. Transfers take no time.
    pub affine: Option<AffineCost>,
    /// What was measured of an engine's steps, as `actor-node calibrate` prints it. Transfers take no time.
    pub steps: Option<StepsCost>,
    /// Files that nodes wrote with `--record-steps`: how fast their machines were when, by which steps take more or less than
    /// what is said of them. The run's workers are those machines in turn, and its start is the trace's first request;
    /// relative paths are taken from the current directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub speed: Vec<PathBuf>,
}

/// A step of `rows[i]` tokens takes `took[i]` (between two points a straight line), and what its slices take, each of them
/// consecutive tokens of one sequence. See [`StepCosts`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StepsCost {
    /// Tokens of a step, each more than the one before.
    pub rows: Vec<u32>,
    /// What so many take, each no less than the one before.
    pub took: Vec<Dur>,
    /// A slice.
    pub per_slice: Dur,
    /// A token of context that a token alone in its slice attends to.
    pub attention_decode: Dur,
    /// A token of context that each token of a longer slice attends to.
    pub attention_prefill: Dur,
    /// Time of a step in a node that serves, as a multiple of what it takes where nothing else runs.
    pub serving: f64,
    /// From the end of a step to the beginning of the next where there is one.
    pub between: Dur,
}

impl Default for StepsCost {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            took: Vec::new(),
            per_slice: Dur::default(),
            attention_decode: Dur::default(),
            attention_prefill: Dur::default(),
            serving: 1.0,
            between: Dur::default(),
        }
    }
}

impl StepsCost {
    /// None where the table makes no sense, which [`Cost::validate`] says better.
    fn costs(&self) -> Option<StepCosts> {
        let span = |dur: Dur| Span::from(dur.get());
        let table: Vec<(u32, Span)> =
            self.rows.iter().copied().zip(self.took.iter().map(|took| span(*took))).collect();
        let prices = SlicePrices {
            per_slice: span(self.per_slice),
            attention_decode: span(self.attention_decode),
            attention_prefill: span(self.attention_prefill),
        };
        let serving = (self.serving * 1000.0).round() as u32;
        Some(StepCosts::new(&table, prices)?.serving(serving, span(self.between)))
    }

    fn validate(&self) -> Result<(), SimError> {
        let (rows, took) = (&self.rows, &self.took);
        let most = StepCosts::KNOTS;
        let counts = (1..=most).contains(&rows.len()) && rows.len() == took.len();
        if !counts {
            let value = format!("{} of them, with {} in cost.steps.took", rows.len(), took.len());
            let reason = format!("give as many of both, 1 to {most}; `actor-node calibrate` prints them");
            return Err(invalid("cost.steps.rows", &value, reason));
        }
        let least = rows.iter().copied().min().unwrap_or(0);
        within("cost.steps.rows", least.into(), 1, 1_000_000)?;
        if let Some(pair) = rows.windows(2).find(|pair| pair[0] >= pair[1]) {
            let value = format!("{} before {}", pair[0], pair[1]);
            return Err(invalid("cost.steps.rows", &value, "use numbers that grow".into()));
        }
        if let Some(pair) = took.windows(2).find(|pair| pair[0] > pair[1]) {
            let value = format!("{} before {}", pair[0], pair[1]);
            return Err(invalid("cost.steps.took", &value, "use times that do not fall as rows grow".into()));
        }
        let longest = took.iter().map(|took| took.as_nanos()).max().unwrap_or(0);
        within("cost.steps.took (ns)", longest, 0, HOUR)?;
        for (key, price) in [
            ("cost.steps.per-slice (ns)", self.per_slice),
            ("cost.steps.attention-decode (ns)", self.attention_decode),
            ("cost.steps.attention-prefill (ns)", self.attention_prefill),
            ("cost.steps.between (ns)", self.between),
        ] {
            within(key, price.as_nanos(), 0, HOUR)?;
        }
        match (0.1..=10.0).contains(&self.serving) {
            true => Ok(()),
            false => Err(invalid("cost.steps.serving", &self.serving, "use 0.1 to 10".into())),
        }
    }
}

const HOUR: u64 = Dur::from_secs(3600).as_nanos();

/// Keys and meaning are those of a node's `[engine.fake]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AffineCost {
    /// A step, whatever is in it.
    pub step_overhead: Dur,
    /// A token of a slice of several.
    pub prefill_per_token: Dur,
    /// A slice of one token.
    pub decode_per_sequence: Dur,
    /// A token of context that a token attends to.
    pub attention_per_token: Dur,
}

/// A step takes `prefill-ms` of its prompt tokens plus, where sequences decode, `decode-ms` of the share of the KV pages
/// that sequences hold, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CurveCost {
    /// Of the prompt tokens that a step computes.
    pub prefill_ms: Degrees,
    /// Of the share of KV pages in use.
    pub decode_ms: Degrees,
    /// The least that a step with decodes takes.
    pub decode_floor: Dur,
}

/// `constant + linear · x + quadratic · x²`, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Degrees {
    /// At 0.
    pub constant: f64,
    /// For each unit.
    pub linear: f64,
    /// For each unit squared.
    pub quadratic: f64,
}

impl Cost {
    /// The time of steps of a model on a machine.
    #[must_use]
    pub fn model(&self, model: ModelShape, hardware: Hardware) -> CostModel {
        if let Some(costs) = self.steps.as_ref().and_then(StepsCost::costs) {
            return CostModel::Steps(costs);
        }
        if let Some(a) = &self.affine {
            return CostModel::Affine(Affine {
                step_overhead: a.step_overhead.get().into(),
                prefill_per_token: a.prefill_per_token.get().into(),
                decode_per_sequence: a.decode_per_sequence.get().into(),
                attention_per_token: a.attention_per_token.get().into(),
            });
        }
        let Some(c) = &self.curve else { return CostModel::Roofline { model, hardware } };
        let polynomial = |d: &Degrees| Polynomial::from_millis(d.constant, d.linear, d.quadratic);
        let curve = Curve {
            prefill: polynomial(&c.prefill_ms),
            decode: polynomial(&c.decode_ms),
            decode_floor: c.decode_floor.get().into(),
        };
        CostModel::Curve { curve, model, hardware }
    }

    pub(super) fn validate(&self) -> Result<(), SimError> {
        let set = [
            ("cost.curve", self.curve.is_some()),
            ("cost.affine", self.affine.is_some()),
            ("cost.steps", self.steps.is_some()),
        ];
        let set: Vec<&'static str> = set.into_iter().filter(|(_, set)| *set).map(|(key, _)| key).collect();
        if let [one, other, ..] = set[..] {
            return Err(invalid(one, &"set", format!("use it or {other}, not both")));
        }
        if let Some(steps) = &self.steps {
            return steps.validate();
        }
        let Some(curve) = &self.curve else { return Ok(()) };
        if !self.speed.is_empty() {
            let reason = "leave it out, or use [cost.steps]: a curve goes by the pages in use, which nodes do not write down";
            return Err(invalid("cost.speed", &"set with cost.curve", reason.into()));
        }
        let keys = [("cost.curve.prefill-ms", curve.prefill_ms), ("cost.curve.decode-ms", curve.decode_ms)];
        for (key, degrees) in keys {
            for value in [degrees.constant, degrees.linear, degrees.quadratic] {
                let most = Polynomial::MOST_MS;
                if !(-most..=most).contains(&value) {
                    return Err(invalid(key, &value, format!("use coefficients of -{most} to {most} ms")));
                }
            }
        }
        within("cost.curve.decode-floor (ns)", curve.decode_floor.as_nanos(), 0, 60_000_000_000)
    }
}
