use std::path::PathBuf;

use super::*;

fn small() -> SimArgs {
    SimArgs {
        scenario: Some(PathBuf::from("scenarios/small.toml")),
        requests: Some(20),
        ..SimArgs::default()
    }
}

#[test]
fn the_command_that_repeats_a_seed_has_all_that_was_given() {
    let args = SimArgs { rate: Some(2.5), workers: Some(3), seeds: Some(9), ..small() };
    let want = "actor-node sim scenarios/small.toml --seed 4 --requests 20 --rate 2.5 --workers 3";
    assert_eq!(repeat(&args, 4), want);
    let compare = SimArgs { compare: vec!["a.toml".into(), "b.toml".into()], ..SimArgs::default() };
    assert_eq!(repeat(&compare, 1), "actor-node sim --seed 1 --compare a.toml b.toml");
}

#[test]
fn several_seeds_have_a_mean_and_a_range() {
    let args = SimArgs { seeds: Some(3), ..small() };
    let table = run_cli(&args).unwrap();
    for part in ["mean", "least", "most", "TTFT", "3, no invariant broken"] {
        assert!(table.contains(part), "{part} is missing in {table}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&run_cli(&SimArgs { json: true, ..args }).unwrap()).unwrap();
    let reports = json["arms"][0]["reports"].as_array().unwrap();
    let seeds: Vec<u64> = reports.iter().map(|r| r["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [7, 8, 9]);
}

#[test]
fn files_side_by_side_have_names_that_differ() {
    let args = SimArgs { compare: vec!["scenarios/small.toml".into()], ..small() };
    let names: Vec<String> = arms(&args).unwrap().into_iter().map(|arm| arm.name).collect();
    assert_eq!(names, ["1. small", "2. small"]);
    let table = run_cli(&args).unwrap();
    assert!(table.contains("1. small") && table.contains("2. small"), "{table}");
    assert!(table.contains("1.00×"), "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&run_cli(&SimArgs { json: true, ..args }).unwrap()).unwrap();
    let arms = json["arms"].as_array().unwrap();
    assert_eq!(arms.len(), 2);
    assert_eq!(arms[0]["report"], arms[1]["report"]);
    assert_eq!(arms[0]["scenario"]["workload"]["requests"], 20);
}
