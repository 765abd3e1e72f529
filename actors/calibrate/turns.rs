//! What was measured in turns: steps of the engine alone, and of a node that serves, next to each other in time.
//!
//! The speed of a machine drifts, by a third within minutes where others share it. Within a round the two are close
//! together, so that each step of the node is held against the speed of its own round:
//!
//! ```text
//! said(x)      what the fit says of steps x, took(x) what they took
//! alone(k)     took / said of steps of kind k, of all rounds: disturbed ones included, which the fit leaves out
//! alone(r, k)  the same of round r
//! factor(r)    took(r) / Σ over k of said(r, k) · alone(r, k) / alone(k)         of steps of the node
//! factor       the median of the rounds; with an even number of them the mean of the middle two
//! ```
//!
//! By kinds, because a node's steps are mixed otherwise than those that are measured alone. Rounds begin with the engine
//! and with the node in turn: what a drift at constant pace does to one of them, it undoes in the next.

use anyhow::{Result, bail};
use policies::cost::fit::{Kind, Measured};
use policies::cost::{CostModel, StepCosts, Work};
use policies::time::Span;

/// Steps that say something.
const ENOUGH: usize = 20;

/// A step of a node: times in nanoseconds since its start.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) work: Vec<Work>,
    pub(super) began: u64,
    /// When its successor could begin.
    pub(super) ended: u64,
    /// In the engine.
    pub(super) took: u64,
}

/// What was measured next to each other in time.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The engine alone.
    pub(super) alone: Vec<Measured>,
    /// A node that serves.
    pub(super) served: Vec<Served>,
}

/// What serving does to steps.
#[derive(Clone, Debug)]
pub(super) struct Serving {
    /// Time of steps, in thousandths of what is said of them alone.
    pub(super) factor: u32,
    /// From the end of a step to the begin of the next.
    pub(super) between: Span,
    /// Steps that were looked at.
    pub(super) steps: usize,
    /// The factor of each round.
    pub(super) rounds: Vec<f64>,
    /// By kind of step: how many of the node, and took / said of those alone and of those.
    pub(super) kinds: Vec<(Kind, usize, Option<f64>, f64)>,
}

/// What steps took and what is said of them, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    took: f64,
    said: f64,
    steps: usize,
}

impl Sum {
    fn add(&mut self, took: u64, said: Span) {
        self.took += took as f64;
        self.said += said.0 as f64;
        self.steps += 1;
    }

    fn level(self) -> Option<f64> {
        (self.said > 0.0 && self.took > 0.0).then(|| self.took / self.said)
    }
}

/// By kind, in the order of [`Kind::ALL`].
#[derive(Clone, Copy, Debug, Default)]
struct Sums([Sum; Kind::ALL.len()]);

impl Sums {
    fn of<'a>(cost: CostModel, steps: impl Iterator<Item = (&'a [Work], u64)>) -> Self {
        let mut sums = Self::default();
        for (work, took) in steps {
            let kind = Kind::of(work);
            if let Some(at) = Kind::ALL.iter().position(|&one| one == kind) {
                sums.0[at].add(took, cost.step(work.iter().copied()));
            }
        }
        sums
    }

    fn all(&self) -> Sum {
        let sum = |of: fn(&Sum) -> f64| self.0.iter().map(of).sum();
        Sum { took: sum(|s| s.took), said: sum(|s| s.said), steps: self.0.iter().map(|s| s.steps).sum() }
    }

    /// Of a kind; of all where there is nothing of the kind.
    fn level(&self, kind: usize) -> Option<f64> {
        self.0[kind].level().or_else(|| self.all().level())
    }

    fn with(mut self, other: &Self) -> Self {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            sum.took += more.took;
            sum.said += more.said;
            sum.steps += more.steps;
        }
        self
    }
}

/// Holds the steps of the node against what is said of them alone.
///
/// # Errors
/// Too few steps.
pub(super) fn compare(rounds: &[Round], said: StepCosts) -> Result<Serving> {
    let cost = CostModel::Steps(said);
    let sums: Vec<(Sums, Sums)> = rounds
        .iter()
        .map(|round| {
            let alone = round.alone.iter().map(|step| (&step.work[..], step.took.0));
            let served = round.served.iter().map(|step| (&step.work[..], step.took));
            (Sums::of(cost, alone), Sums::of(cost, served))
        })
        .collect();
    let (alone, served) = sums
        .iter()
        .fold((Sums::default(), Sums::default()), |(alone, served), (a, s)| (alone.with(a), served.with(s)));
    let factors: Vec<f64> = sums.iter().filter_map(|(a, s)| factor(a, s, &alone)).collect();
    // Those that another one follows at once.
    let gaps: Vec<u64> = rounds
        .iter()
        .flat_map(|round| round.served.windows(2))
        .filter(|pair| pair[1].began == pair[0].ended)
        .map(|pair| (pair[1].began - pair[0].began).saturating_sub(pair[0].took))
        .collect();
    let steps = served.all().steps;
    let Some(middle) = median(factors.clone()).filter(|_| steps >= ENOUGH && !gaps.is_empty()) else {
        bail!("only {steps} steps were seen while a node served: too few to tell what that costs");
    };
    let kinds = Kind::ALL.into_iter().zip(alone.0.iter().zip(&served.0));
    Ok(Serving {
        factor: (middle * 1000.0).round().clamp(100.0, 10_000.0) as u32,
        between: Span(gaps.iter().sum::<u64>() / gaps.len() as u64),
        steps,
        rounds: factors,
        kinds: kinds
            .filter_map(|(kind, (alone, served))| Some((kind, served.steps, alone.level(), served.level()?)))
            .collect(),
    })
}

/// Of a round, with `all` of the engine alone in all rounds.
fn factor(alone: &Sums, served: &Sums, all: &Sums) -> Option<f64> {
    let mut said = 0.0;
    for (kind, sum) in served.0.iter().enumerate().filter(|(_, sum)| sum.steps > 0) {
        said += sum.said * alone.level(kind)? / all.level(kind)?;
    }
    (said > 0.0).then(|| served.all().took / said)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use policies::cost::SlicePrices;

    use super::*;

    /// Steps of a token take `ns`, and a row more costs nothing.
    fn said(ns: u64) -> StepCosts {
        StepCosts::new(&[(1, Span(ns)), (64, Span(ns))], SlicePrices::default()).unwrap()
    }

    const DECODE: Work = Work { start: 9, tokens: 1 };
    const PREFILL: Work = Work { start: 0, tokens: 32 };

    fn alone(work: Work, took: u64) -> Measured {
        Measured { work: vec![work], took: Span(took) }
    }

    /// Steps of the node, each `between` after the one before.
    fn served(count: u64, work: Work, took: u64, between: u64) -> Vec<Served> {
        let at = |n: u64| n * (took + between);
        (0..count).map(|n| Served { work: vec![work], began: at(n), ended: at(n + 1), took }).collect()
    }

    #[test]
    fn a_machine_that_gets_slower_changes_no_factor() {
        let round = |slow: u64, steps: u64| Round {
            alone: vec![alone(DECODE, 1000 * slow); 30],
            served: served(steps, DECODE, 1100 * slow, 50),
        };
        let steady = compare(&[round(1, 40), round(1, 40)], said(1000)).unwrap();
        assert_eq!((steady.factor, steady.between, steady.steps), (1100, Span(50), 80));
        // The fit of both rounds is in their middle; how much was served in each makes no difference.
        for (first, second) in [(40, 40), (400, 40), (40, 400)] {
            let drifted = compare(&[round(1, first), round(2, second)], said(1500)).unwrap();
            assert_eq!(drifted.factor, 1100, "{drifted:?}");
        }
        // One round of three in which the machine changed halfway is outvoted.
        let torn = Round { alone: vec![alone(DECODE, 1000); 30], served: served(40, DECODE, 3300, 50) };
        assert_eq!(compare(&[round(1, 40), torn, round(1, 40)], said(1000)).unwrap().factor, 1100);
    }

    #[test]
    fn a_steady_drift_is_undone_by_rounds_that_begin_in_turn() {
        // Speeds of alone, served, served, alone: 10, 11, 12, 13 tenths.
        let rounds = [(1000, 1210), (1300, 1320)]
            .map(|(a, s)| Round { alone: vec![alone(DECODE, a); 30], served: served(40, DECODE, s, 50) });
        let found = compare(&rounds, said(1150)).unwrap();
        // 1.1 but for what is of second order.
        assert!((1095..=1125).contains(&found.factor), "{found:?}");
    }

    #[test]
    fn another_mix_of_kinds_changes_no_factor() {
        // The fit is off by kind: prompts take half as much again, decodes what is said. Alone mostly prompts were
        // measured, in the node mostly decodes.
        let mut round = Round { alone: vec![alone(PREFILL, 1500); 90], served: Vec::new() };
        round.alone.extend(vec![alone(DECODE, 1000); 10]);
        round.served = served(90, DECODE, 1000, 0);
        round.served.extend(served(10, PREFILL, 1500, 0));
        let slower = Round {
            alone: round.alone.iter().map(|s| Measured { took: Span(s.took.0 * 2), ..s.clone() }).collect(),
            served: served(100, DECODE, 2000, 0),
        };
        let found = compare(&[round, slower], said(1000)).unwrap();
        let levels = found.rounds.clone();
        // Of the first 0.9 · 1 and 0.1 · 1.5, of the second 1, at the mean of both speeds.
        assert!((levels[0] - 1.5 * 1.05).abs() < 0.001 && (levels[1] - 1.5).abs() < 0.001, "{found:?}");
        let of = |kind| found.kinds.iter().find(|(one, ..)| *one == kind).cloned().unwrap();
        assert_eq!(of(Kind::Decode).1, 190);
        assert!((of(Kind::Prefill).2.unwrap() - 2.25).abs() < 0.001, "{found:?}");
        assert!(found.kinds.iter().all(|(kind, ..)| *kind != Kind::Mixed));
    }

    #[test]
    fn too_few_steps_say_nothing() {
        let round =
            |steps| Round { alone: vec![alone(DECODE, 1000)], served: served(steps, DECODE, 1000, 0) };
        assert!(compare(&[round(19)], said(1000)).unwrap_err().to_string().contains("only 19 steps"));
        assert!(compare(&[], said(1000)).is_err());
        // A round without any, and a kind that was not measured alone.
        let other = Round { alone: vec![alone(PREFILL, 1000)], served: Vec::new() };
        assert_eq!(compare(&[round(30), other], said(1000)).unwrap().factor, 1000);
        let mut unknown = round(30);
        unknown.alone = vec![alone(PREFILL, 1000)];
        assert_eq!(compare(&[unknown], said(1000)).unwrap().factor, 1000);
    }
}
