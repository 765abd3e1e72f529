//! Axes with round numbers and units.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use super::chart::{INSIDE, TEXT};

/// What an axis shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Milliseconds, on a logarithmic scale; a label has its own unit.
    Latency,
    /// Seconds of virtual time; a label is in the unit of [`Axis::name`].
    Time,
    /// Numbers of something.
    Count,
    /// Shares, shown as percentages.
    Share,
    /// Workers by number, from 0.
    Worker,
}

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) name: String,
    unit: Unit,
    least: f64,
    most: f64,
    /// What one unit of the labels is.
    scale: f64,
}

/// Least latency that a logarithmic axis shows, in milliseconds.
const FLOOR: f64 = 1e-3;

/// Width of a character of a label: that of a digit in a wide font.
const CHARACTER: f64 = 0.55 * TEXT;

/// Between two labels that stand side by side, at least.
const GAP: f64 = 0.6 * TEXT;

/// Steps of a logarithmic axis within a power of ten, the finest first, and from which power to which.
const STEPS: [(&[f64], i32); 6] = [
    (&[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0], 1),
    (&[1.0, 2.0, 5.0], 1),
    (&[1.0, 3.0], 1),
    (&[1.0], 1),
    (&[1.0], 2),
    (&[1.0], 3),
];

/// How many steps a linear axis along the bottom may have, about.
const COUNTS: [u32; 4] = [8, 5, 3, 2];

impl Axis {
    /// One that has room for all these values; `name` says what they are, the unit is added to it where it belongs there.
    pub(super) fn new(name: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|v| v.is_finite()) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = (0.0, 1.0);
        }
        let (least, most) = match unit {
            Unit::Latency => {
                let (low, high) = (least.max(FLOOR), most.max(FLOOR));
                // One value alone has some room too.
                if high / low < 1.5 { (low / 1.25, high * 1.25) } else { (low / 1.04, high * 1.04) }
            }
            Unit::Share => (0.0, if most > 0.55 { 1.0 } else { (1.05 * most).max(0.01) }),
            Unit::Count => (0.0, (1.05 * most).max(1.0)),
            Unit::Time => (0.0, most.max(1e-3)),
            Unit::Worker => (-0.5, most.max(0.5)),
        };
        let (scale, of) = match unit {
            Unit::Time if most >= 4.0 * 86_400.0 => (86_400.0, ", days"),
            Unit::Time if most >= 4.0 * 3600.0 => (3600.0, ", hours"),
            Unit::Time if most >= 600.0 => (60.0, ", minutes"),
            Unit::Time => (1.0, ", seconds"),
            _ => (1.0, ""),
        };
        Self { name: format!("{name}{of}"), unit, least, most, scale }
    }

    /// Where a value is: even steps there are even steps on the page.
    fn place(&self, value: f64) -> f64 {
        if self.unit == Unit::Latency { value.max(FLOOR).log10() } else { value }
    }

    /// The values that get a label.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.unit {
            Unit::Latency => self.finest(STEPS.iter().map(|steps| latencies(self.least, self.most, *steps))),
            Unit::Worker => self.finest(COUNTS.iter().map(|n| linear(0.0, self.most, *n, 1.0))),
            Unit::Count => linear(self.least, self.most, 6, 0.1),
            Unit::Share => linear(self.least, self.most, 6, 0.001),
            Unit::Time => self.finest(COUNTS.iter().map(|n| {
                let ticks = linear(self.least / self.scale, self.most / self.scale, *n, 1e-4);
                ticks.iter().map(|tick| tick * self.scale).collect()
            })),
        }
    }

    /// The first of these, the finest ones first, whose labels do not touch each other; else the last one.
    fn finest(&self, all: impl Iterator<Item = Vec<f64>>) -> Vec<f64> {
        let mut last = Vec::new();
        for ticks in all {
            if ticks.windows(2).all(|two| self.between(two[0], two[1]) >= GAP) {
                return ticks;
            }
            last = ticks;
        }
        last
    }

    /// Room between the labels of two values along the bottom of a chart.
    fn between(&self, left: f64, right: f64) -> f64 {
        let of_all = |value: f64| self.place(value) / (self.place(self.most) - self.place(self.least));
        let half = |value: f64| self.label(value).chars().count() as f64 * CHARACTER / 2.0;
        (of_all(right) - of_all(left)) * f64::from(INSIDE) - half(left) - half(right)
    }

    /// The label at a value.
    pub(super) fn label(&self, value: f64) -> String {
        match self.unit {
            Unit::Latency => latency(value),
            Unit::Share => format!("{} %", number(100.0 * value)),
            Unit::Worker => format!("{value:.0}"),
            Unit::Count if value >= 10_000.0 => format!("{}k", number(value / 1000.0)),
            Unit::Count => number(value),
            Unit::Time => number(value / self.scale),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (least, most) = (self.place(self.least), self.place(self.most));
        let share = (self.place(*value) - least) / (most - least);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks()
    }

    fn range(&self) -> Range<f64> {
        self.least..self.most
    }
}

/// Some multiples of powers of ten, or of every second or third of those.
fn latencies(least: f64, most: f64, (factors, every): (&[f64], i32)) -> Vec<f64> {
    let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let decades = decades.filter(|exponent| exponent % every == 0);
    let all = decades.flat_map(|exponent| factors.iter().map(move |factor| factor * 10_f64.powi(exponent)));
    all.filter(|tick| (least..=most).contains(tick)).collect()
}

/// About `n` multiples of 1, 2, 2.5 or 5 times a power of ten, at least `finest` apart.
fn linear(least: f64, most: f64, n: u32, finest: f64) -> Vec<f64> {
    let rough = ((most - least) / f64::from(n)).max(finest);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|f| f * power).into_iter().find(|step| *step >= 0.999 * rough);
    let step = step.unwrap_or(rough);
    let first = (least / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= most * (1.0 + 1e-9)).take(64).collect()
}

/// With as many places as it has, up to four.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Milliseconds in the unit that suits them.
fn latency(ms: f64) -> String {
    let (value, unit) = match ms {
        ms if ms < 1.0 => (1000.0 * ms, "µs"),
        ms if ms < 1000.0 => (ms, "ms"),
        // Powers of ten are none of minutes.
        ms => (ms / 1000.0, "s"),
    };
    format!("{} {unit}", number((value * 100.0).round() / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| axis.label(tick)).collect()
    }

    #[test]
    fn labels_are_round_and_have_units() {
        let axis = |unit, most: f64| Axis::new("x", unit, [0.0, most].into_iter());
        let latency = Axis::new("TTFT", Unit::Latency, [9.0, 2100.0].into_iter());
        assert_eq!(labels(&latency), ["10 ms", "30 ms", "100 ms", "300 ms", "1 s"]);
        let short = Axis::new("TTFT", Unit::Latency, [9.0, 210.0].into_iter());
        assert_eq!(labels(&short), ["10 ms", "20 ms", "50 ms", "100 ms", "200 ms"]);
        let long = ["10 µs", "1 ms", "100 ms", "10 s"];
        assert_eq!(labels(&axis(Unit::Latency, 900_000.0)), long);
        assert_eq!(labels(&axis(Unit::Share, 0.9)), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]);
        assert_eq!(labels(&axis(Unit::Count, 40_000.0)), ["0", "10k", "20k", "30k", "40k"]);
        let minutes = axis(Unit::Time, 3000.0);
        assert_eq!(
            (minutes.name.as_str(), &labels(&minutes)[..3]),
            ("x, minutes", &["0", "10", "20"].map(str::to_owned)[..])
        );
        assert_eq!(axis(Unit::Time, 40.0).name, "x, seconds");
        assert_eq!(labels(&axis(Unit::Worker, 3.5)), ["0", "1", "2", "3"]);
    }

    #[test]
    fn whatever_the_values_are_there_is_a_range_with_some_ticks() {
        for unit in [Unit::Latency, Unit::Time, Unit::Count, Unit::Share, Unit::Worker] {
            for values in [&[][..], &[0.0], &[7.3], &[f64::NAN], &[0.0, 1e9], &[3.0, 3.1]] {
                let axis = Axis::new("x", unit, values.iter().copied());
                let (range, ticks) = (axis.range(), axis.ticks());
                assert!(range.start < range.end && range.end.is_finite(), "{unit:?} {values:?}: {range:?}");
                assert!((1..64).contains(&ticks.len()), "{unit:?} {values:?}: {ticks:?}");
                assert!(ticks.iter().all(|t| t.is_finite()), "{unit:?} {values:?}: {ticks:?}");
            }
        }
    }

    #[test]
    fn labels_along_the_bottom_keep_a_distance() {
        for unit in [Unit::Latency, Unit::Time, Unit::Worker] {
            for (least, step) in [(0.0, 0), (1e-3, 1), (0.7, 2), (9.3, 3), (10.0, 4), (130.0, 5), (9e4, 6)] {
                for size in 0..120 {
                    let most = (least + 0.01 * f64::from(step)) * 1.2_f64.powi(size) + 0.001;
                    let axis = Axis::new("x", unit, [least, most].into_iter());
                    let ticks = axis.ticks();
                    let place = |value: f64| f64::from(axis.map(&value, (0, INSIDE)));
                    let width = |value: f64| axis.label(value).chars().count() as f64 * CHARACTER;
                    for two in ticks.windows(2) {
                        let room = place(two[1]) - place(two[0]) - (width(two[0]) + width(two[1])) / 2.0;
                        // Places are whole numbers.
                        assert!(room >= GAP - 1.0, "{unit:?}, {least} to {most}: {:?}", labels(&axis));
                    }
                    let wide = unit != Unit::Worker && axis.most / axis.least.max(1e-9) > 20.0;
                    let enough = if wide { 2 } else { 1 };
                    assert!(ticks.len() >= enough, "{unit:?}, {least} to {most}: {:?}", labels(&axis));
                }
            }
        }
    }
}
