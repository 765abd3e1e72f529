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

const ARMS: &str = "
[workload]
requests = 20
rate = 50.0
[cluster]
workers = 2
[slo]
ttft = '100s'
inter-token = '1ns'
[[arm]]
name = 'first'
[[arm]]
name = 'more'
cluster.workers = 4
slo.inter-token = '100s'
";

#[test]
fn json_has_all_figures_of_the_runs_and_the_table_has_their_ratios() {
    let folder = tempfile::tempdir().unwrap();
    let (file, html) = (folder.path().join("arms.toml"), folder.path().join("page.html"));
    std::fs::write(&file, ARMS).unwrap();
    let args = SimArgs { scenario: Some(file), html: Some(html.clone()), ..SimArgs::default() };
    let reports: Vec<Report> =
        arms(&args).unwrap().iter().map(|arm| crate::run(&arm.scenario).unwrap()).collect();
    let json: serde_json::Value =
        serde_json::from_str(&run_cli(&SimArgs { json: true, ..args.clone() }).unwrap()).unwrap();
    for (arm, report) in json["arms"].as_array().unwrap().iter().zip(&reports) {
        let alone: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert!(arm["report"] == alone, "the report of {} is another", arm["name"]);
        assert_eq!(alone["ttft_ms"]["p99"].as_f64().unwrap(), report.ttft_ms.p99);
        assert_eq!(alone["series"]["seconds"].as_array().unwrap().len(), report.series.seconds.len());
    }
    // The slowest of many tokens is never within a nanosecond, and always within a hundred seconds.
    let good: Vec<u64> = reports.iter().map(|r| r.goodput.unwrap().requests).collect();
    assert!(good[0] < 3 && good[1] == reports[1].finished, "{good:?}");
    let table = run_cli(&args).unwrap();
    let row = table.lines().find(|line| line.contains("TTFT, ms")).unwrap();
    let numbers: Vec<f64> =
        row.split_whitespace().filter_map(|word| word.trim_end_matches('×').parse().ok()).collect();
    let [first, second, ratio] = numbers[..] else { panic!("{row}") };
    assert!((ratio - second / first).abs() < 0.006, "{row}");
    assert!((first - reports[0].ttft_ms.mean).abs() < 0.001, "{row}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("<h2>Summary</h2>") && page.contains(&reports[1].trace), "{page}");
}

#[test]
fn the_file_of_a_value_that_makes_no_sense_is_named() {
    let error = run_cli(&SimArgs { workers: Some(0), ..small() }).unwrap_err().to_string();
    assert!(error.starts_with("the scenario scenarios/small.toml: `cluster.workers` is 0: use 1"), "{error}");
    // No file, none to name.
    let error = run_cli(&SimArgs { workers: Some(0), ..SimArgs::default() }).unwrap_err().to_string();
    assert!(error.starts_with("`cluster.workers` is 0"), "{error}");
}

#[test]
fn the_arm_that_makes_no_sense_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("arms.toml");
    std::fs::write(&file, ARMS.replace("cluster.workers = 4", "cluster.workers = 0")).unwrap();
    let error = run_cli(&SimArgs { scenario: Some(file), ..SimArgs::default() }).unwrap_err().to_string();
    assert!(error.contains("arm `more`: the scenario "), "{error}");
    assert!(error.contains("arms.toml: `cluster.workers` is 0"), "{error}");
}

#[test]
fn a_page_that_cannot_be_written_is_named() {
    let args = SimArgs { html: Some("no/such/folder/page.html".into()), ..small() };
    let error = run_cli(&args).unwrap_err().to_string();
    assert!(error.contains("no/such/folder/page.html"), "{error}");
}
