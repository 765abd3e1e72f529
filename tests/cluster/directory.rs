//! The directory of prefixes knows what each worker really holds, whoever is restarted.

use serde_json::Value;

use super::{COMPLETIONS, completion};
use crate::harness::cluster::Cluster;
use crate::harness::wait_for;

/// Pages that hold reusable content and that nobody holds: of an idle worker, all that can be found there.
const CACHED: &str = "actor_node_kv_pages_cached";
/// Tokens of a page.
const PAGE: i64 = 16;
const PROMPTS: u32 = 8;

/// Rows of `c1`'s directory, once all that is there is known and nobody else is listed.
fn directory(cluster: &Cluster, workers: &[&str]) -> Vec<Value> {
    wait_for(&format!("c1 to know the pages of {workers:?}"), || {
        let view = cluster["c1"].client().get("/v1/directory").ok()?.json();
        let rows = view["workers"].as_array()?.clone();
        let known = |row: &Value| {
            let name = row["id"].as_str()?.split('#').next()?;
            let known = row["current"].as_bool()? && row["pages"].as_f64()? == cluster[name].figure(CACHED);
            (known && workers.contains(&name)).then_some(())
        };
        (rows.len() == workers.len() && rows.iter().all(|row| known(row).is_some())).then_some(rows)
    })
}

/// A prompt of some 600 tokens of its own.
fn prompt(number: u32) -> String {
    format!("{number}{number} is what this prompt begins with. ")
        + &"The rest of it is like this. ".repeat(20)
}

/// What one placement expected and what came of it.
#[derive(Debug)]
struct Served {
    worker: String,
    /// Tokens of the prompt that the chosen worker holds, as `cache-aware` saw it.
    predicted: i64,
    real: i64,
}

fn ask(cluster: &Cluster, number: u32) -> Served {
    let mut request = completion(&prompt(number), 4);
    request["include_stages"] = true.into();
    let answer = cluster["g1"].client().post(COMPLETIONS, &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    let placed = &body["stages"][0]["stages"];
    let stages = placed.as_array().unwrap_or_else(|| panic!("stages in {body:#}"));
    let stage = stages.iter().find(|s| s["policy"] == "cache-aware").expect("cache-aware is asked");
    Served {
        worker: answer.header("x-served-by").expect("x-served-by").to_owned(),
        predicted: stage["numbers"]["hit-tokens"].as_f64().expect("hit-tokens") as i64,
        real: body["usage"]["prompt_tokens_details"]["cached_tokens"].as_i64().expect("cached_tokens"),
    }
}

/// All prompts once more. Hits are those that were predicted, within a page; gives who served which.
fn ask_all(cluster: &Cluster) -> Vec<Served> {
    let served: Vec<Served> = (0..PROMPTS).map(|number| ask(cluster, number)).collect();
    for one in &served {
        assert!((one.predicted - one.real).abs() <= PAGE, "{one:?}");
    }
    served
}

/// B70, B36: a new controller hears from the workers what they hold; a new life of a worker holds nothing.
#[test]
fn b70_what_workers_hold_is_known_after_every_restart() {
    let mut cluster = Cluster::of(&["c1", "g1", "w1", "w2"]);
    let follows = |cluster: &Cluster| {
        wait_for("g1 to follow c1", || (cluster.view("g1")["leader"] == "c1").then_some(()));
    };
    follows(&cluster);
    directory(&cluster, &["w1", "w2"]);
    for number in 0..PROMPTS {
        ask(&cluster, number);
        directory(&cluster, &["w1", "w2"]);
    }
    let warm = ask_all(&cluster);
    assert!(warm.iter().all(|s| s.real > 500), "{warm:?}");
    let homes: Vec<&str> = warm.iter().map(|s| s.worker.as_str()).collect();
    assert!(homes.contains(&"w1") && homes.contains(&"w2"), "cold prompts go by load: {homes:?}");

    cluster["c1"].kill();
    cluster["c1"].restart();
    cluster.until_whole();
    follows(&cluster);
    let rows = directory(&cluster, &["w1", "w2"]);
    assert!(rows.iter().all(|row| row["pages"].as_u64() > Some(30)), "{rows:?}");
    for (again, home) in ask_all(&cluster).iter().zip(&homes) {
        assert_eq!(again.worker, *home);
        assert!(again.real > 500, "{again:?}");
    }

    cluster["w1"].kill();
    directory(&cluster, &["w2"]);
    cluster["w1"].restart();
    cluster.until_whole();
    let rows = directory(&cluster, &["w1", "w2"]);
    assert_eq!(rows[0]["pages"], 0, "{rows:?}");
    for (again, home) in ask_all(&cluster).iter().zip(&homes) {
        assert!(*home == "w1" || (again.worker == "w2" && again.real > 500), "{again:?} at home in {home}");
    }
}
