//! `[cluster.hardware]`: what this node's machine can do, for those that plan by it.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, check};
use crate::optional;
use crate::units::Size;

/// The machine of this node, as it tells the cluster; a part of `[cluster]`, since it is for others: nothing here makes
/// this node compute differently. Costs are predicted by it (what a prompt takes here or there, what its pages take on
/// the way), so figures that a machine reaches in practice are worth more than those of its data sheet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HardwareConfig {
    /// Kind of machine: `h100`, `h200`, `l40s` and `cpu` bring their own figures; any other name needs all three below.
    /// Default `auto`: `cpu`, two cores of a server (160 GFLOP/s, memory 10.5 GB/s, link 3 GB/s).
    #[serde(with = "optional::auto")]
    pub name: Option<String>,
    /// Floating-point operations a second, such as `160e9`. Default `auto`: as the name says.
    #[serde(with = "optional::auto")]
    pub flops: Option<f64>,
    /// What it reads from its memory in a second, such as `10.5GB`. Default `auto`: as the name says.
    #[serde(with = "optional::auto")]
    pub memory_bandwidth: Option<Size>,
    /// What it sends to another node in a second, such as `3GB`. Default `auto`: as the name says.
    #[serde(with = "optional::auto")]
    pub link: Option<Size>,
}

impl HardwareConfig {
    /// The names that bring figures.
    pub const NAMES: [&'static str; 4] = ["h100", "h200", "l40s", "cpu"];

    /// The machine's name where none is given.
    pub const DEFAULT_NAME: &'static str = "cpu";

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if let Some(name) = &self.name {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            check(
                (1..=64).contains(&name.len()) && name.bytes().all(plain),
                "cluster.hardware.name",
                name,
                "use 1 to 64 letters, digits, `-`, `_` or `.`",
            )?;
            let figures = self.flops.is_some() && self.memory_bandwidth.is_some() && self.link.is_some();
            if !figures && !Self::NAMES.contains(&name.as_str()) {
                let reason = format!(
                    "use one of {}, or set flops, memory-bandwidth and link of cluster.hardware too",
                    Self::NAMES.join(", ")
                );
                return Err(ConfigError::invalid("cluster.hardware.name", name, reason));
            }
        }
        if let Some(flops) = self.flops {
            check((1e6..=1e18).contains(&flops), "cluster.hardware.flops", flops, "use 1e6 to 1e18")?;
        }
        let rates = [
            ("cluster.hardware.memory-bandwidth", self.memory_bandwidth),
            ("cluster.hardware.link", self.link),
        ];
        for (key, rate) in rates {
            if let Some(rate) = rate {
                let allowed = Size::kib(1)..=Size(1_000_000_000_000_000);
                check(allowed.contains(&rate), key, rate, "use 1KiB to 1000TB a second")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_figures_name_their_key_the_value_and_the_rule() {
        type Change = fn(&mut HardwareConfig);
        let cases: [(Change, &str); 7] = [
            (|h| h.name = Some(String::new()), "`cluster.hardware.name = `: use 1 to 64"),
            (
                |h| h.name = Some("tpu".into()),
                "`cluster.hardware.name = tpu`: use one of h100, h200, l40s, cpu",
            ),
            (|h| h.flops = Some(0.0), "`cluster.hardware.flops = 0`: use 1e6 to 1e18"),
            (|h| h.flops = Some(f64::NAN), "`cluster.hardware.flops = NaN`"),
            (|h| h.flops = Some(-1e9), "use 1e6 to 1e18"),
            (|h| h.link = Some(Size(0)), "`cluster.hardware.link = 0B`: use 1KiB to 1000TB a second"),
            (|h| h.memory_bandwidth = Some(Size(1023)), "`cluster.hardware.memory-bandwidth = 1023B`"),
        ];
        for (change, part) in cases {
            let mut hardware = HardwareConfig::default();
            change(&mut hardware);
            let error = hardware.validate().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_machine_of_ones_own_needs_all_figures() {
        let own = HardwareConfig {
            name: Some("rack-7".into()),
            flops: Some(1e12),
            memory_bandwidth: Some(Size(1 << 36)),
            link: Some(Size(1 << 30)),
        };
        own.validate().unwrap();
        assert!(HardwareConfig { link: None, ..own }.validate().is_err());
        HardwareConfig { link: Some(Size(1 << 30)), ..HardwareConfig::default() }.validate().unwrap();
    }
}
