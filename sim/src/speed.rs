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

/// Slices of a step at most; a node has fewer sequences.
const SLICES: usize = 1_000_000;

/// A step as a node wrote it down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    unix_us: u64,
    node: String,
    slices: Vec<[u32; 2]>,
    took_ns: u64,
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
        if line.slices.len() > SLICES {
            return Err(format!("`slices` has {} of them: use up to {SLICES}", line.slices.len()));
        }
        let began = line.unix_us.checked_mul(1000).ok_or("`unix_us` is too late")?;
        let start = *self.start.get_or_insert(began);
        // Steps before the first request are of other requests.
        let Some(at) = began.checked_sub(start) else { return Ok(()) };
        let known = self.names.len();
        let machine = *self.names.entry(line.node).or_insert(known);
        if machine == self.sums.len() {
            self.sums.push(vec![SpeedSums::default(); self.costs.len()]);
        }
        let work = || line.slices.iter().map(|&[start, tokens]| Work { start, tokens });
        for (sums, cost) in self.sums[machine].iter_mut().zip(self.costs) {
            let said = Span(cost.step(work()).0.saturating_sub(cost.between().0));
            sums.add(Time(at), Span(line.took_ns), said);
        }
        Ok(())
    }
}
