//! Durations and sizes as people write them: `250ms`, `5m`, `512MiB`. A number without a unit is refused, since what it
//! would mean differs between programs.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration with its unit: `ns`, `us`, `ms`, `s`, `m`, `h` or `d`; at most 584 years.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dur(u64);

/// A number of bytes with its unit: `B`, `KB`, `MB`, `GB`, `TB` (powers of 1000) or `KiB`, `MiB`, `GiB`, `TiB`
/// (powers of 1024).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Units in nanoseconds, the smallest first.
const DUR_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Units in bytes; where two print a number equally short, the later one wins.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// What was expected, for error messages.
const DUR_EXPECTED: &str = "a duration with a unit, such as 250ms, 3s or 5m (units: ns, us, ms, s, m, h, d)";
const SIZE_EXPECTED: &str =
    "a size with a unit, such as 512MiB or 2GB (units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)";

impl Dur {
    /// `n` nanoseconds.
    #[must_use]
    pub const fn from_nanos(n: u64) -> Self {
        Self(n)
    }

    /// `n` milliseconds.
    #[must_use]
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// `n` seconds.
    #[must_use]
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// The duration in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The duration as the standard library's type.
    #[must_use]
    pub const fn get(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Whether it is no time at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Dur> for Duration {
    fn from(dur: Dur) -> Self {
        dur.get()
    }
}

impl Size {
    /// `n` times 1024 bytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` times 1024² bytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The size in bytes as an index type; saturates where an address is shorter.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// The text is not a number with one of the units.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct BadUnit {
    text: String,
    expected: &'static str,
}

impl FromStr for Dur {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        parse(text, &DUR_UNITS)
            .map(Self)
            .ok_or_else(|| BadUnit { text: text.to_owned(), expected: DUR_EXPECTED })
    }
}

impl FromStr for Size {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        parse(text, &SIZE_UNITS)
            .map(Self)
            .ok_or_else(|| BadUnit { text: text.to_owned(), expected: SIZE_EXPECTED })
    }
}

/// A decimal number (a fraction is fine where the result is whole in the smallest unit), then a unit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let factor = u128::from(units.iter().find(|(name, _)| *name == unit)?.1);
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() && fraction.len() <= 12 => (whole, fraction),
        Some(_) => return None,
        None => (number, "0"),
    };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = u128::from(whole.parse::<u64>().ok()?).checked_mul(factor)?;
    let part = fraction.parse::<u128>().ok()?.checked_mul(factor)?;
    if part % scale != 0 {
        return None;
    }
    u64::try_from(whole.checked_add(part / scale)?).ok()
}

/// The shortest exact spelling; of two equally short ones the later unit of the table.
fn print(n: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let best =
        units.iter().filter(|(_, factor)| n.is_multiple_of(*factor)).min_by(|a, b| (n / a.1).cmp(&(n / b.1)));
    match best {
        Some((unit, factor)) if n > 0 => write!(f, "{}{unit}", n / factor),
        _ => write!(f, "0{}", units[0].0),
    }
}

impl fmt::Display for Dur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, &DUR_UNITS, f)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, &SIZE_UNITS, f)
    }
}

impl Serialize for Dur {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads text and leaves a bare number to the error message, which then names the units.
struct Unit<T> {
    expected: &'static str,
    marker: std::marker::PhantomData<T>,
}

impl<T: FromStr<Err = BadUnit>> de::Visitor<'_> for Unit<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Dur {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Unit { expected: DUR_EXPECTED, marker: std::marker::PhantomData })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Unit { expected: SIZE_EXPECTED, marker: std::marker::PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse() {
        for (text, nanos) in [
            ("250ms", 250_000_000),
            ("3s", 3_000_000_000),
            ("5 m", 300_000_000_000),
            ("1.5s", 1_500_000_000),
            ("0s", 0),
            ("7ns", 7),
            ("10us", 10_000),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Dur(nanos)), "{text}");
        }
    }

    #[test]
    fn sizes_parse() {
        for (text, bytes) in
            [("512MiB", 512 << 20), ("2GB", 2_000_000_000), ("1.5KiB", 1536), ("0B", 0), ("64KB", 64_000)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in
            ["", "5", "s", "-1s", "1.s", ".5s", "1..5s", "1e3s", "5 min", "99999999999d", "0.5ns", "٣s"]
        {
            assert!(text.parse::<Dur>().is_err(), "{text}");
        }
        for text in ["12", "512mib", "1G", "0.3B", "20000000TiB", "1.0000000000000001KB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        let message = "90".parse::<Dur>().unwrap_err().to_string();
        assert!(message.contains("`90`") && message.contains("units: ns, us, ms, s"), "{message}");
    }

    #[test]
    fn what_is_printed_reads_back() {
        for nanos in [0, 1, 999, 1_000, 90_000_000_000, 3_600_000_000_000, 1_500_000_000, u64::MAX] {
            let shown = Dur(nanos).to_string();
            assert_eq!(shown.parse(), Ok(Dur(nanos)), "{shown}");
        }
        for (bytes, shown) in
            [(0, "0B"), (512 << 20, "512MiB"), (2_000_000_000, "2GB"), (1536, "1536B"), (16 << 20, "16MiB")]
        {
            assert_eq!(Size(bytes).to_string(), shown);
            assert_eq!(shown.parse(), Ok(Size(bytes)));
        }
    }
}
