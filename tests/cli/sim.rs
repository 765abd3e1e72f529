//! `actor-node sim`: the cores in virtual time.

use serde_json::Value;

use super::{ok, run};

fn report(args: &[&str]) -> Value {
    let out = ok(&[&["sim", "--json"], args].concat(), &[]);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e} in {out}"))
}

/// The hash of all events of a run.
fn hash(report: &Value) -> &str {
    let hash = report["trace"].as_str().unwrap_or_else(|| panic!("no trace in {report}"));
    assert!(hash.len() == 16 && report["finished"].as_u64().unwrap() > 0, "{report}");
    hash
}

/// The same seed gives the same trace, another seed another one.
#[test]
fn a_seed_names_a_run() {
    let args = ["--requests", "200", "--rate", "20"];
    let run = |seed: &str| report(&[&args[..], &["--seed", seed]].concat());
    let first = run("7");
    assert_eq!(run("7"), first);
    assert_ne!(hash(&run("8")), hash(&first));
    assert_eq!(first["requests"], 200);
}

#[test]
fn a_run_prints_percentiles() {
    let table = ok(&["sim", "--seed", "1", "--requests", "100"], &[]);
    for word in ["TTFT", "p50", "p99"] {
        assert!(table.to_lowercase().contains(&word.to_lowercase()), "{word} in {table}");
    }
    let same = ok(&["sim", "--seed", "1", "--requests", "100"], &[]);
    assert_eq!(table, same);
    let ttft = |workers: &str| {
        let report = report(&["--seed", "1", "--requests", "300", "--rate", "1000", "--workers", workers]);
        report["ttft_ms"]["p99"].as_f64().unwrap()
    };
    assert!(ttft("8") < ttft("1"), "more workers, less waiting");
}

#[test]
fn a_wrong_scenario_is_named() {
    let said = run(&["sim", "no-such-scenario.toml"], &[]);
    assert!(said.code.is_some_and(|code| code != 0), "{said:?}");
    assert!(said.err.contains("no-such-scenario.toml"), "{said:?}");
    assert_eq!(said.err.matches("No such file").count(), 1, "{said:?}");
}
