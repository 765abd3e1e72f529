//! Machines whose speed is known from second to second, from what nodes wrote of their steps.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sim::{Report, Scenario, SimError, run};

/// When the first request of the log came, in microseconds from 1970.
const START: u64 = 1_800_000_000_000_000;

/// Requests of one step each, one every half second, for eight seconds; their node wrote the log.
fn trace(folder: &Path) -> PathBuf {
    let mut text = String::new();
    for number in 0..16 {
        // What it says of milliseconds is from another start of the node.
        let (at, unix) = (7 + number, START + number * 500_000);
        let line =
            format!(r#"{{"timestamp": {at}, "unix_us": {unix}, "input_length": 1, "output_length": 1}}"#);
        writeln!(text, "{line}").expect("a string takes it");
    }
    write(folder, "requests.jsonl", &text)
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("the folder takes it");
    path
}

/// A step of one slice of one token, so many seconds after the first request.
fn step(node: &str, after: f64, took_ms: u64) -> String {
    let unix = START.saturating_add_signed((after * 1e6) as i64);
    let took = took_ms * 1_000_000;
    format!(
        "{{\"unix_us\": {unix}, \"node\": \"{node}\", \"prefill\": [], \"decode\": [1, 0], \"took_ns\": {took}}}\n"
    )
}

/// A step takes 10 ms by what the scenario says, and a message no time.
fn scenario(folder: &Path, speed: &[&Path]) -> Scenario {
    let text = format!(
        "[cost]\nspeed = {speed:?}\n[cost.affine]\nstep-overhead = \"10ms\"\n[workload]\ntrace = {:?}\n\
         [cluster]\nworkers = 1\nnetwork = \"0s\"\n",
        trace(folder)
    );
    Scenario::from_toml(&text, "test").expect("a scenario")
}

fn ttft(report: &Report) -> (f64, f64, f64) {
    let p = report.ttft_ms;
    let round = |ms: f64| (ms * 100.0).round() / 100.0;
    (round(p.p50), round(p.mean), round(p.max))
}

#[test]
fn steps_take_what_they_took_that_second() {
    let folder = tempfile::tempdir().unwrap();
    // As fast as it should be, from the third second on half as fast, from the sixth on twice as fast. What was before the
    // first request was of others.
    let text =
        [step("a", -5.0, 90), step("a", 0.2, 10), step("a", 2.0, 30), step("a", 2.9, 10), step("a", 5.5, 5)];
    let steps = write(folder.path(), "steps.jsonl", &text.concat());
    let report = run(&scenario(folder.path(), &[&steps])).unwrap();
    // Requests at 0 to 1.5 s, at 2 to 4.5 s, and at 5 to 7.5 s.
    assert_eq!(ttft(&report), (10.0, 11.88, 20.0), "4 of 10, 6 of 20 and 6 of 5");
    let slowed = report.workers[0].slowed.unwrap();
    assert!((slowed - 190.0 / 160.0).abs() < 1e-6, "{slowed}");
    assert!(report.to_table().contains("steps took 1.188 of what is said of them"), "{}", report.to_table());
    // The same again, and nothing of it where no speed is known.
    let again = run(&scenario(folder.path(), &[&steps])).unwrap();
    assert_eq!(again.trace, report.trace);
    let plain = run(&scenario(folder.path(), &[])).unwrap();
    assert_eq!((ttft(&plain), plain.workers[0].slowed), ((10.0, 10.0, 10.0), None));
    assert!(!plain.to_json().unwrap().contains("slowed") && !plain.to_table().contains("recorded speed"));
}

/// The pause between steps is no work, and the machine's speed is not that of the pause.
#[test]
fn the_pause_between_steps_stays() {
    let folder = tempfile::tempdir().unwrap();
    let steps = write(folder.path(), "steps.jsonl", &step("a", 0.0, 20));
    let text = "[cost.steps]\nrows = [1]\ntook = [\"10ms\"]\nbetween = \"3ms\"";
    let mut paused = scenario(folder.path(), &[&steps]);
    paused.cost.steps = Scenario::from_toml(text, "test").unwrap().cost.steps;
    paused.cost.affine = None;
    assert_eq!(ttft(&run(&paused).unwrap()), (23.0, 23.0, 23.0));
}

/// Machines are numbered as they come, and workers are those machines in turn, whatever file they are in.
#[test]
fn workers_are_the_machines_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let one = write(folder.path(), "one.jsonl", &[step("a", 0.0, 20), step("b", 0.0, 30)].concat());
    let other =
        write(folder.path(), "other.jsonl", &format!("\n{}\n\n{}", step("c", 0.0, 40), step("a", 0.1, 20)));
    let mut scenario = scenario(folder.path(), &[&one, &other]);
    (scenario.cluster.workers, scenario.cluster.choice) = (5, config::Choice::RoundRobin);
    let slowed: Vec<f64> = run(&scenario).unwrap().workers.iter().map(|w| w.slowed.unwrap()).collect();
    assert_eq!(slowed, [2.0, 3.0, 4.0, 2.0, 3.0]);
}

/// A trace without dates begins with the first step.
#[test]
fn a_trace_without_dates_begins_with_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let steps = write(folder.path(), "steps.jsonl", &[step("a", 100.0, 10), step("a", 104.5, 20)].concat());
    let lines: String = (0..16)
        .map(|n| format!("{{\"timestamp\": {}, \"input_length\": 1, \"output_length\": 1}}\n", 7 + n * 500))
        .collect();
    let mut scenario = scenario(folder.path(), &[&steps]);
    scenario.workload.trace = Some(write(folder.path(), "plain.jsonl", &lines));
    assert_eq!(ttft(&run(&scenario).unwrap()), (10.0, 15.0, 20.0));
}

#[test]
fn what_is_no_speed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: &str| {
        let steps = write(folder.path(), "steps.jsonl", text);
        let error = run(&scenario(folder.path(), &[&steps])).unwrap_err().to_string();
        assert!(error.contains("cost.speed (--speed)") && error.contains("steps.jsonl"), "{error}");
        error
    };
    for (text, part) in [
        ("", "no step is in it from the trace's first request on"),
        (&step("a", -0.1, 10)[..], "no step is in it"),
        (&format!("{}{{\"unix_us\": 1", step("a", 0.0, 10))[..], "line 2: EOF while parsing"),
        ("{\"timestamp\": 1}", "line 1: unknown field `timestamp`"),
        ("{\"unix_us\": -1}", "line 1: invalid value"),
        ("hello", "line 1: expected value: use what a node wrote with --record-steps"),
        (
            &step("a", 0.0, 10).replace("[1, 0]", "[2000000, 0]")[..],
            "line 1: `prefill` and `decode` have 2000000",
        ),
        (&step("a", 0.0, 10).replace("[1, 0]", "[1, 5000000000]")[..], "line 1: `decode` has 5000000000"),
        (&step("a", 0.0, 10).replace("18000", "190000")[..], "`unix_us`"),
    ] {
        let error = refused(text);
        assert!(error.contains(part), "{error}");
    }
    let missing = folder.path().join("none.jsonl");
    let error = run(&scenario(folder.path(), &[&missing])).unwrap_err();
    assert!(matches!(&error, SimError::ReadSteps { path, .. } if *path == missing), "{error}");
    let text = "[cost]\nspeed = [\"steps.jsonl\"]\n[cost.curve]\nprefill-ms = { constant = 1.0 }";
    let error = run(&Scenario::from_toml(text, "test").unwrap()).unwrap_err().to_string();
    assert!(error.contains("`cost.speed` is set with cost.curve: leave it out"), "{error}");
}
