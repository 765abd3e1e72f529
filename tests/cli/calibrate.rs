//! `actor-node calibrate`, with an engine whose costs are known.

use super::ok;

/// A key's value in what is printed, in milliseconds or as it is.
fn value(text: &str, key: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
    let value = line.unwrap_or_else(|| panic!("no {key} in {text}")).trim_matches('"');
    let units = [("ns", 1e-6), ("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    let unit =
        units.into_iter().find_map(|(unit, ms)| Some(value.strip_suffix(unit)?.parse::<f64>().ok()? * ms));
    unit.unwrap_or_else(|| value.parse().unwrap_or_else(|e| panic!("{e}: {key} = {value}")))
}

/// What is printed is a part of a scenario, and serving is measured in turns by a node that serves.
#[test]
fn what_steps_cost_is_measured_alone_and_in_a_node_that_serves() {
    let folder = tempfile::tempdir().unwrap();
    let steps = folder.path().join("steps.jsonl");
    let costs = [
        ("ACTOR_NODE_ENGINE__FAKE__STEP_OVERHEAD", "4ms"),
        ("ACTOR_NODE_ENGINE__FAKE__PREFILL_PER_TOKEN", "20us"),
        ("ACTOR_NODE_ENGINE__FAKE__DECODE_PER_SEQUENCE", "1ms"),
    ];
    let args = [
        "calibrate",
        "--engine",
        "fake",
        "--rounds",
        "2",
        "--serve",
        "4s",
        "--steps",
        steps.to_str().unwrap(),
    ];
    let text = ok(&args, &costs);
    // A machine that is slow makes steps longer and never shorter.
    let serving = value(&text, "serving");
    assert!((0.8..10.0).contains(&serving) && value(&text, "between") < 1000.0, "{text}");
    assert!(value(&text, "# step-overhead") > 1.0, "{text}");
    for kind in ["cost.steps  prefill", "cost.steps  decode", "cost.steps  mixed", "cost.affine mixed"] {
        assert!(text.contains(kind), "{kind} in {text}");
    }
    // A factor a round, and what it is of the kinds of steps that clients bring about.
    let rounds =
        text.lines().find_map(|line| line.split_once("round by round: ")).map(|(_, factors)| factors);
    let factors: Vec<f64> =
        rounds.unwrap_or_default().trim_end_matches('.').split(", ").flat_map(str::parse).collect();
    assert!(factors.len() == 2 && (factors.iter().sum::<f64>() / 2.0 - serving).abs() < 0.002, "{text}");
    assert!(text.lines().any(|line| line.starts_with("#   decode ") && line.contains("; alone: ")), "{text}");
    let lines = std::fs::read_to_string(&steps).unwrap();
    assert!(lines.lines().count() > 100 && lines.contains("\"slices\":[["), "{lines}");

    let scenario = folder.path().join("scenario.toml");
    std::fs::write(&scenario, format!("{text}\n[workload]\nrequests = 20\n")).unwrap();
    assert!(ok(&["sim", scenario.to_str().unwrap()], &[]).contains("20 arrived, 20 finished"));
}
