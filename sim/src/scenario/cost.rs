//! How long steps take, as data.

use config::Dur;
use policies::cost::{Affine, CostModel, Curve, Hardware, ModelShape, Polynomial};
use serde::{Deserialize, Serialize};

use super::{invalid, within};
use crate::SimError;

/// What replaces the roofline of model and machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cost {
    /// Polynomials of a measured engine. Transfers between workers stay what the model's KV takes on the machine's link.
    pub curve: Option<CurveCost>,
    /// Prices of the parts of a step, as `actor-node calibrate` prints them. Transfers take no time.
    pub affine: Option<AffineCost>,
}

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
        if self.curve.is_some() && self.affine.is_some() {
            return Err(invalid("cost.curve", &"set", "use it or cost.affine, not both".into()));
        }
        let Some(curve) = &self.curve else { return Ok(()) };
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
