//! What the steps of an engine were made of and how long they took, for whoever asks: in the node's own log, each of them,
//! and in the log of steps (`log.record-steps`), some, from which a simulation sees how fast the machine was when.
//!
//! A line of the latter:
//!
//! | key | |
//! |---|---|
//! | `unix_us` | microseconds from 1970 to the step's beginning |
//! | `node` | the name of the node whose engine it was |
//! | `prefill` | `[tokens before, tokens]` of each sequence of which several tokens were computed |
//! | `decode` | how many sequences of which one was, and how many tokens were before those in all |
//! | `took_ns` | nanoseconds in the engine |
//!
//! Time is a matter of sums over the single tokens, and so is a line: it is as short with hundreds of streams as with one.

use std::path::Path;
use std::sync::Arc;

use config::ids::WorkerId;
use policies::step::StepPlan;
use policies::time::{Span, Time};
use serde::Serialize;
use tracing::info;

use crate::clock;
use crate::lines::Lines;

/// Target of the log lines, at level `trace`, that tell of each step what is in it (`START+TOKENS` of each slice) and how
/// long it took. Times are nanoseconds.
pub(crate) const STEPS: &str = "actor_node::steps";

/// From a step in the file to the next at least: enough of them to know a machine's speed within a second, and few enough
/// for days.
const EVERY: Span = Span::from_millis(100);

/// The file of one node; it outlives the workers that are restarted.
#[derive(Debug)]
pub struct StepLog(Lines<Line>);

#[derive(Debug, Serialize)]
struct Line {
    unix_us: u64,
    node: String,
    #[serde(flatten)]
    content: Content,
    took_ns: u64,
}

/// What is in a step.
#[derive(Debug, Default, Serialize)]
struct Content {
    prefill: Vec<[u32; 2]>,
    decode: [u64; 2],
}

impl Content {
    fn of(plan: &StepPlan) -> Self {
        let mut content = Self::default();
        for slice in &plan.slices {
            match slice.tokens.len() as u32 {
                1 => {
                    content.decode[0] += 1;
                    content.decode[1] += u64::from(slice.start);
                }
                tokens => content.prefill.push([slice.start, tokens]),
            }
        }
        content
    }
}

impl StepLog {
    /// Opens the file, or makes it; what it has stays.
    ///
    /// # Errors
    /// A file that cannot be opened for writing.
    pub async fn open(path: &Path) -> std::io::Result<Arc<Self>> {
        let lines = Lines::open("log.record-steps", path).await?;
        info!(path = %path.display(), "steps of the engine are recorded");
        Ok(Arc::new(Self(lines)))
    }
}

/// Follows the steps of one scheduler.
#[derive(Debug)]
pub(crate) struct Steps {
    file: Option<Arc<StepLog>>,
    /// When a step may be in the file again.
    due: Time,
    /// The step under way that will be: its number, when it began, and what is in it.
    under_way: Option<(u64, Time, Content)>,
}

impl Steps {
    pub(crate) const fn new(file: Option<Arc<StepLog>>) -> Self {
        Self { file, due: Time::ZERO, under_way: None }
    }

    /// The engine is about to be handed a step.
    pub(crate) fn begins(&mut self, now: Time, plan: &StepPlan) {
        if tracing::enabled!(target: STEPS, tracing::Level::TRACE) {
            let slices: Vec<String> =
                plan.slices.iter().map(|s| format!("{}+{}", s.start, s.tokens.len())).collect();
            tracing::trace!(target: STEPS, step = plan.step, at = now.0, slices = slices.join(" "), "begins");
        }
        if self.file.is_some() && now >= self.due {
            self.due = now + EVERY;
            self.under_way = Some((plan.step, now, Content::of(plan)));
        }
    }

    /// A step of this worker has ended, and was computed.
    pub(crate) fn ended(&mut self, now: Time, worker: &WorkerId, step: u64, took: Span) {
        tracing::trace!(target: STEPS, step, at = now.0, took = took.0, "ended");
        // One that failed does not come to this, and is replaced by the next that is due.
        if let Some(file) = &self.file
            && let Some((_, began, content)) = self.under_way.take_if(|(number, ..)| *number == step)
        {
            let (unix_us, node) = (clock::unix_us(began), worker.node.to_string());
            file.0.add(Line { unix_us, node, content, took_ns: took.0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use config::ids::{Attempt, RequestId};
    use policies::step::{SeqKey, Slice};
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;

    fn steps() -> (Steps, mpsc::Receiver<Line>) {
        let (lines, written) = Lines::channel("log.record-steps", 8);
        (Steps::new(Some(Arc::new(StepLog(lines)))), written)
    }

    fn plan(step: u64, slices: &[(u32, u32)]) -> StepPlan {
        let slice = |&(start, tokens): &(u32, u32)| Slice {
            seq: SeqKey { request: RequestId::new(1, 1), attempt: Attempt(0), choice: 0 },
            tokens: (0..tokens).collect(),
            start,
            block_table: Vec::new(),
            draws: Vec::new(),
            prompt_logprobs: None,
        };
        StepPlan { step, copies: Vec::new(), slices: slices.iter().map(slice).collect() }
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn run(steps: &mut Steps, ms: u64, plan: &StepPlan) {
        steps.begins(at(ms), plan);
        steps.ended(at(ms + 3), &WorkerId::new("w".into(), 1), plan.step, Span(2_000_000));
    }

    #[test]
    fn some_steps_are_written_down_with_what_was_in_them() {
        let (mut steps, mut written) = steps();
        for (number, ms) in [(1, 0), (2, 40), (3, 99), (4, 100), (5, 230), (6, 329)] {
            run(&mut steps, ms, &plan(number, &[(70, 1), (0, 2 * number as u32), (9, 1), (30, 3)]));
        }
        let mut lines = Vec::new();
        while let Ok(line) = written.try_recv() {
            lines.push(serde_json::to_value(line).unwrap());
        }
        let prefill: Vec<&Value> = lines.iter().map(|line| &line["prefill"]).collect();
        assert_eq!(
            prefill,
            [&json!([[0, 2], [30, 3]]), &json!([[0, 8], [30, 3]]), &json!([[0, 10], [30, 3]])]
        );
        assert_eq!(lines[1]["decode"], json!([2, 79]));
        assert_eq!(lines[1]["took_ns"], 2_000_000);
        assert_eq!(lines[1]["node"], "w");
        let since = |a: usize, b: usize| {
            lines[b]["unix_us"].as_u64().unwrap() - lines[a]["unix_us"].as_u64().unwrap()
        };
        assert_eq!((since(0, 1), since(1, 2)), (100_000, 130_000));
        // The clock that others have too: after this was written, and within the range of a date.
        assert!(lines[0]["unix_us"].as_u64().unwrap() > 1_700_000_000_000_000);
    }

    /// A step that failed tells nothing, and does not keep the next one from being told.
    #[test]
    fn steps_that_fail_are_left_out() {
        let (mut steps, mut written) = steps();
        steps.begins(at(0), &plan(1, &[(0, 9)]));
        run(&mut steps, 50, &plan(2, &[(0, 8)]));
        run(&mut steps, 150, &plan(3, &[(0, 7)]));
        let line = serde_json::to_value(written.try_recv().unwrap()).unwrap();
        assert_eq!((&line["prefill"], &line["decode"]), (&json!([[0, 7]]), &json!([0, 0])));
        assert!(written.try_recv().is_err());
    }

    #[test]
    fn without_a_file_nothing_is_kept() {
        let mut steps = Steps::new(None);
        run(&mut steps, 0, &plan(1, &[(0, 9)]));
        assert!(steps.under_way.is_none());
    }
}
