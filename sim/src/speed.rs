//! How fast the machines of workers were when, from what nodes wrote down of their steps (`log.record-steps`).
//!
//! Times are those of the wall clock: the run's start is when the trace's first request came, where the trace says it
//! (`unix_us`), else when the first step began. Machines are numbered in the order in which they first appear; the workers
//! of a run are those machines in turn, so that a run may have more workers than were recorded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use policies::cost::{CostModel, Speed, SpeedSums, Work};
use policies::time::{Span, Time};
use serde::Deserialize;

use crate::SimError;
use crate::scenario::Scenario;
use crate::workload::trace;

/// Sequences of a step at most; a node has fewer.
const SEQUENCES: u64 = 1_000_000;

/// A step as a node wrote it down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    unix_us: u64,
    node: String,
    /// Sequences of which several tokens were computed: tokens before, and how many.
    prefill: Vec<[u32; 2]>,
    /// Sequences of which one was, and tokens before those in all.
    decode: [u64; 2],
    took_ns: u64,
}

impl Line {
    /// What was computed. All costs are sums over single tokens, so that these may have any contexts with the same sum.
    ///
    /// # Errors
    /// More than there can be.
    fn work(&self) -> Result<Vec<Work>, String> {
        let [count, before] = self.decode;
        let sequences = count.saturating_add(self.prefill.len() as u64);
        if sequences > SEQUENCES {
            return Err(format!("`prefill` and `decode` have {sequences} sequences: use up to {SEQUENCES}"));
        }
        let (each, more) = (before.checked_div(count).unwrap_or(0), before.checked_rem(count).unwrap_or(0));
        if each >= u64::from(u32::MAX) {
            return Err(format!("`decode` has {before} tokens before {count}: use less than 2^32 for each"));
        }
        let alone = (0..count).map(|n| Work { start: each as u32 + u32::from(n < more), tokens: 1 });
        Ok(self.prefill.iter().map(|&[start, tokens]| Work { start, tokens }).chain(alone).collect())
    }
}

/// The speeds of all machines, against each of the costs that workers have.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    /// By machine, each by the costs that it is held against.
    machines: Vec<Vec<Option<Arc<Speed>>>>,
}

impl Speeds {
    /// Reads what the scenario names, if it does; `costs` are those of its kinds of workers, in their order.
    ///
    /// # Errors
    /// A file that cannot be read, a line that is no step, or no step of a run.
    pub(crate) fn read(scenario: &Scenario, costs: &[CostModel]) -> Result<Self, SimError> {
        let files = &scenario.cost.speed;
        let mut reader = Reader { start: None, names: BTreeMap::new(), sums: Vec::new(), costs };
        if files.is_empty() {
            return Ok(Self::default());
        }
        if let Some(path) = &scenario.workload.trace {
            reader.start = trace::first_moment(path, &scenario.workload)?;
        }
        files.iter().try_for_each(|path| reader.file(path))?;
        if reader.sums.is_empty() {
            let path = files[0].clone();
            let reason =
                "no step is in it from the trace's first request on: name what the same nodes wrote then"
                    .into();
            return Err(SimError::Steps { path, line: 0, reason });
        }
        let machine = |sums: &Vec<SpeedSums>| sums.iter().map(|sums| sums.speed().map(Arc::new)).collect();
        Ok(Self { machines: reader.sums.iter().map(machine).collect() })
    }

    /// Of worker number `index`, which is of this kind; none where nothing is known of any machine.
    pub(crate) fn of(&self, index: u32, kind: usize) -> Option<Arc<Speed>> {
        let machine = self.machines.get(index as usize % self.machines.len().max(1))?;
        machine.get(kind)?.clone()
    }
}

struct Reader<'a> {
    /// Nanoseconds from 1970 to the run's start.
    start: Option<u64>,
    /// Numbers of machines.
    names: BTreeMap<String, usize>,
    sums: Vec<Vec<SpeedSums>>,
    costs: &'a [CostModel],
}

impl Reader<'_> {
    fn file(&mut self, path: &Path) -> Result<(), SimError> {
        let fail = |line, reason| SimError::Steps { path: path.to_path_buf(), line, reason };
        let read = |source| SimError::ReadSteps { path: path.to_path_buf(), source };
        let mut reader = BufReader::new(File::open(path).map_err(read)?);
        let (mut text, mut number) = (String::new(), 0);
        loop {
            text.clear();
            number += 1;
            let bytes = reader.read_line(&mut text).map_err(|source| match source.kind() {
                ErrorKind::InvalidData => fail(number, "it is no text in UTF-8".into()),
                _ => read(source),
            })?;
            if bytes == 0 {
                return Ok(());
            }
            if text.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(&text).map_err(|e| {
                let said = e.to_string();
                let said = said.split(" at line ").next().unwrap_or_default();
                fail(number, format!("{said}: use what a node wrote with --record-steps"))
            })?;
            self.step(line).map_err(|reason| fail(number, reason))?;
        }
    }

    fn step(&mut self, line: Line) -> Result<(), String> {
        let work = line.work()?;
        let began = line.unix_us.checked_mul(1000).ok_or("`unix_us` is too late")?;
        let start = *self.start.get_or_insert(began);
        // Steps before the first request are of other requests.
        let Some(at) = began.checked_sub(start) else { return Ok(()) };
        let known = self.names.len();
        let machine = *self.names.entry(line.node).or_insert(known);
        if machine == self.sums.len() {
            self.sums.push(vec![SpeedSums::default(); self.costs.len()]);
        }
        for (sums, cost) in self.sums[machine].iter_mut().zip(self.costs) {
            let said = Span(cost.step(work.iter().copied()).0.saturating_sub(cost.between().0));
            sums.add(Time(at), Span(line.took_ns), said);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use policies::cost::{Affine, Hardware, ModelShape, SlicePrices, StepCosts};

    use super::*;

    /// What is said of a step is the same, whether it is told sequence by sequence or as a line has it.
    #[test]
    fn a_line_costs_what_the_step_does() {
        let starts = [7, 900, 33, 34, 2048];
        let prefill = vec![[0, 100], [512, 64]];
        let decode = [starts.len() as u64, starts.iter().sum()];
        let line = Line { unix_us: 0, node: String::new(), prefill: prefill.clone(), decode, took_ns: 1 };
        let told: Vec<Work> = line.work().unwrap();
        let step = || {
            let alone = starts.iter().map(|&start| Work { start: start as u32, tokens: 1 });
            prefill.iter().map(|&[start, tokens]| Work { start, tokens }).chain(alone)
        };
        let prices =
            SlicePrices { per_slice: Span(11), attention_decode: Span(7), attention_prefill: Span(3) };
        let table = StepCosts::new(&[(1, Span(1000)), (200, Span(90_000))], prices).unwrap();
        let affine = Affine {
            step_overhead: Span(100),
            prefill_per_token: Span(10),
            decode_per_sequence: Span(31),
            attention_per_token: Span(2),
        };
        let model = ModelShape::named("llama-3.1-8b").unwrap();
        for cost in [
            CostModel::Steps(table),
            CostModel::Affine(affine),
            CostModel::Roofline { model, hardware: Hardware::named("h100").unwrap() },
        ] {
            assert_eq!(cost.step(told.iter().copied()), cost.step(step()), "{cost:?}");
        }
    }
}
