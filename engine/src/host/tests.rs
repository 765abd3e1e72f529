use std::sync::mpsc::{Receiver, channel};

use policies::kv::PageLayout;

use super::*;

/// Longest wait for something that happens at once unless it is broken.
const DEADLINE: Duration = Duration::from_secs(60);

/// Answers steps with their numbers; keeps one byte a page.
#[derive(Debug)]
struct Echo {
    pages: Vec<u8>,
    /// Step 13 panics.
    unlucky: bool,
    /// Each step waits for a signal.
    gate: Option<Receiver<()>>,
}

const LAYOUT: PageLayout =
    PageLayout { page_tokens: 16, layers: 1, kv_heads: 1, head_dim: 8, element_bytes: 2 };

impl Engine for Echo {
    fn kv(&self) -> KvInfo {
        KvInfo { layout: LAYOUT, pages: self.pages.len() as u32 }
    }

    fn step(&mut self, plan: &StepPlan) -> Result<StepOutcome, EngineError> {
        if let Some(gate) = &self.gate {
            gate.recv().map_err(|e| EngineError::Step(e.to_string()))?;
        }
        assert!(!(self.unlucky && plan.step == 13), "thirteen");
        Ok(StepOutcome { step: plan.step, ..StepOutcome::default() })
    }

    fn export(&self, page: PageId, out: &mut [u8]) -> Result<(), EngineError> {
        let content =
            self.pages.get(page.index()).ok_or_else(|| EngineError::Page(format!("no page {page}")))?;
        out.fill(*content);
        Ok(())
    }

    fn import(&mut self, page: PageId, content: &[u8]) -> Result<(), EngineError> {
        let own =
            self.pages.get_mut(page.index()).ok_or_else(|| EngineError::Page(format!("no page {page}")))?;
        *own = content[0];
        Ok(())
    }
}

fn echo() -> Echo {
    Echo { pages: vec![0; 4], unlucky: true, gate: None }
}

fn start(engine: Echo) -> (EngineHost, Receiver<StepReport>) {
    let (reports, received) = channel();
    let report = move |report| {
        // The test may have ended.
        let _ = reports.send(report);
    };
    (EngineHost::start(Box::new(engine), Box::new(report)).unwrap(), received)
}

fn plan(step: u64) -> StepPlan {
    StepPlan { step, ..StepPlan::default() }
}

#[test]
fn steps_are_reported_in_order() {
    let (host, reports) = start(echo());
    for step in 1..=5 {
        host.submit(plan(step)).unwrap();
        let report = reports.recv_timeout(DEADLINE).unwrap();
        assert_eq!(report.step, step);
        assert_eq!(report.result.unwrap().step, step);
    }
    assert_eq!(host.age(), None);
    assert_eq!(host.kv().layout, LAYOUT);
}

#[test]
fn a_second_step_at_a_time_is_refused() {
    let (open, gate) = channel();
    let (host, reports) = start(Echo { gate: Some(gate), ..echo() });
    host.submit(plan(1)).unwrap();
    let refused = host.submit(plan(2)).unwrap_err().to_string();
    assert!(refused.contains("step 2"), "{refused}");
    open.send(()).unwrap();
    assert_eq!(reports.recv_timeout(DEADLINE).unwrap().step, 1);
    open.send(()).unwrap();
    host.submit(plan(3)).unwrap();
    assert_eq!(reports.recv_timeout(DEADLINE).unwrap().step, 3);
}

#[test]
fn pages_travel_both_ways_between_steps() {
    let (host, _reports) = start(echo());
    let (done, outcome) = channel();
    let content = vec![7; LAYOUT.page_bytes()];
    let sender = done.clone();
    host.import(vec![(PageId(2), content.clone())], move |r| sender.send(r.map(|()| vec![])).unwrap());
    outcome.recv_timeout(DEADLINE).unwrap().unwrap();
    let sender = done.clone();
    let blank = || vec![1; LAYOUT.page_bytes()];
    host.export(vec![(PageId(0), blank()), (PageId(2), blank())], move |r| sender.send(r).unwrap());
    let pages = outcome.recv_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(pages, [vec![0; LAYOUT.page_bytes()], content]);
    host.export(vec![(PageId(9), blank())], move |r| done.send(r).unwrap());
    assert!(matches!(outcome.recv_timeout(DEADLINE).unwrap(), Err(EngineError::Page(_))));
}

#[test]
fn a_panic_is_reported_now_and_later() {
    let (host, reports) = start(echo());
    host.submit(plan(13)).unwrap();
    let report = reports.recv_timeout(DEADLINE).unwrap();
    let Err(EngineError::Stopped(why)) = report.result else { panic!("{report:?}") };
    assert!(why.contains("thirteen"), "{why}");
    let Err(EngineError::Stopped(why)) = host.submit(plan(14)) else { panic!("accepted") };
    assert!(why.contains("thirteen"), "{why}");
    assert_eq!(host.stopped(), Some(why));
    let (done, outcome) = channel();
    host.export(vec![(PageId(0), vec![0; LAYOUT.page_bytes()])], move |r| done.send(r).unwrap());
    assert!(matches!(outcome.recv_timeout(DEADLINE).unwrap(), Err(EngineError::Stopped(_))));
    assert_eq!(host.age(), None, "a dead engine is not a slow one");
}

#[test]
fn what_waits_when_the_engine_panics_is_answered() {
    let (open, gate) = channel();
    let (host, reports) = start(Echo { gate: Some(gate), ..echo() });
    host.submit(plan(13)).unwrap();
    let (done, outcome) = channel();
    host.export(vec![(PageId(0), vec![0; LAYOUT.page_bytes()])], move |r| done.send(r).unwrap());
    open.send(()).unwrap();
    assert!(matches!(reports.recv_timeout(DEADLINE).unwrap().result, Err(EngineError::Stopped(_))));
    assert!(matches!(outcome.recv_timeout(DEADLINE).unwrap(), Err(EngineError::Stopped(_))));
}

#[test]
fn a_stuck_step_ages_and_can_be_given_up() {
    let (open, gate) = channel();
    let (host, _reports) = start(Echo { gate: Some(gate), ..echo() });
    host.submit(plan(1)).unwrap();
    let begun = Instant::now();
    let mut last = Duration::ZERO;
    while last < Duration::from_millis(5) {
        assert!(begun.elapsed() < DEADLINE, "the step under way has no age");
        last = host.age().unwrap_or(last);
        std::thread::yield_now();
    }
    assert!(host.stopped().is_none(), "slow is not dead");
    host.detach();
    drop(open);
}
