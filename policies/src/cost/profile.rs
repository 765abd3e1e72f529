//! The machine of a worker as it tells the cluster, and what others predict by it.

use config::HardwareConfig;

use super::{CostModel, Hardware, ModelShape, nanoseconds};
use crate::time::Span;

/// A machine by name, with its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareProfile {
    /// Kind of machine (`h100`, `cpu`, or a name of one's own), for people.
    pub name: String,
    /// What it reaches.
    pub figures: Hardware,
}

impl Default for HardwareProfile {
    fn default() -> Self {
        Self::from(&HardwareConfig::default())
    }
}

impl From<&HardwareConfig> for HardwareProfile {
    /// The figures of the name, those that are set in their place. A name that brings none has set all of them.
    fn from(hardware: &HardwareConfig) -> Self {
        let name = hardware.name.as_deref().unwrap_or(HardwareConfig::DEFAULT_NAME);
        let known = Hardware::named(name).or_else(|| Hardware::named(HardwareConfig::DEFAULT_NAME));
        let known = known.expect("the default machine has figures");
        let figures = Hardware {
            // Up to 1e18, as the configuration checks.
            flops: hardware.flops.map_or(known.flops, |flops| flops as u64),
            memory: hardware.memory_bandwidth.map_or(known.memory, |rate| rate.bytes()),
            link: hardware.link.map_or(known.link, |rate| rate.bytes()),
            ..known
        };
        Self { name: name.to_owned(), figures }
    }
}

impl Hardware {
    /// Time to send `bytes` to the machine `to`: at the pace of the slower link of the two.
    #[must_use]
    pub fn send(&self, to: &Self, bytes: u64) -> Span {
        let rate = match (self.link, to.link) {
            (0, rate) | (rate, 0) => rate,
            (one, other) => one.min(other),
        };
        self.link_latency.max(to.link_latency) + nanoseconds(bytes.into(), rate)
    }

    /// Time to compute `tokens` tokens of a prompt after `cached` ones with a model of this shape. None for a shape that
    /// no model has: it may come from elsewhere, and the arithmetic has bounds.
    #[must_use]
    pub fn prefill(&self, model: &ModelShape, cached: u32, tokens: u32) -> Option<Span> {
        // A window of 16 million tokens is longer than any.
        const LONGEST: u32 = 1 << 24;
        let small = [model.layers, model.heads, model.kv_heads, model.head_dim, model.element_bytes];
        let plausible = model.params < 1 << 56 && small.iter().all(|n| *n < 1 << 15);
        let cost = CostModel::Roofline { model: *model, hardware: *self };
        plausible.then(|| cost.prefill(cached.min(LONGEST), tokens.min(LONGEST)))
    }
}

#[cfg(test)]
mod tests {
    use config::Size;

    use super::*;

    #[test]
    fn each_name_of_the_configuration_brings_figures() {
        for name in HardwareConfig::NAMES {
            let named = HardwareConfig { name: Some(name.into()), ..HardwareConfig::default() };
            let profile = HardwareProfile::from(&named);
            assert_eq!((&*profile.name, Some(profile.figures)), (name, Hardware::named(name)));
        }
        assert_eq!(HardwareProfile::default().name, "cpu");
    }

    #[test]
    fn what_is_set_counts_more_than_the_name() {
        let own = HardwareConfig {
            name: Some("h100".into()),
            flops: Some(7e12),
            memory_bandwidth: Some(Size(8_000_000)),
            link: None,
        };
        let figures = HardwareProfile::from(&own).figures;
        assert_eq!((figures.flops, figures.memory), (7_000_000_000_000, 8_000_000));
        assert_eq!(figures.link, Hardware::named("h100").unwrap().link);
    }

    #[test]
    fn the_slower_link_sets_the_pace() {
        let with = |link| Hardware { link, ..Hardware::named("zero").unwrap() };
        for (one, other, bytes, ns) in [
            (100, 1000, 50, 500_000_000),
            (1000, 100, 50, 500_000_000),
            (0, 100, 50, 500_000_000),
            (0, 0, 50, 0),
        ] {
            assert_eq!(with(one).send(&with(other), bytes), Span(ns), "{one} {other}");
        }
    }

    #[test]
    fn a_shape_from_elsewhere_does_no_harm() {
        let cpu = Hardware::named("cpu").unwrap();
        let shape = ModelShape::named("smollm2-135m").unwrap();
        assert!(cpu.prefill(&shape, 100, u32::MAX).is_some_and(|span| span > Span::ZERO));
        for absurd in [ModelShape { layers: u32::MAX, ..shape }, ModelShape { params: u64::MAX, ..shape }] {
            assert_eq!(cpu.prefill(&absurd, u32::MAX, u32::MAX), None);
        }
    }
}
