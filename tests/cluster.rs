//! Clusters of real processes: how nodes join, whom they turn away, what is lost and found again.

// One leads, none is there, both are; a controller that stalls.
mod controllers;
// Any order, any seeds, any number of restarts.
mod join;
// What is lost when, and that it comes back.
mod membership;
// Names, cookies, page sizes, ports.
mod refuse;
// What a node tells about itself and the others.
mod status;
// Certificates.
mod tls;
// Requests of every kind, their answers, and streams that are compared with them.
pub(crate) mod streams;
// What a cluster answers is what one node answers.
mod serve;
// Streams whose worker is lost.
mod resume;
// SIGTERM to each kind of node.
mod drain;
// Clients that do not read.
mod credit;
// Engines that panic, stall or are busy for long.
mod engine_loss;
// A minute of workers that come and go.
mod churn;
// Who holds which pages, and who is told.
mod directory;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::harness::cluster::Cluster;
use crate::harness::http::only;
use crate::harness::node::HTTP_REQUESTS;
use crate::harness::wait_for;

const COMPLETIONS: &str = "/v1/completions";

/// Makes the fake engine take its time: a stream of 40 tokens lasts at least 0.2 s.
const SLOW: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "5ms");

/// A greedy completion.
fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 7})
}

/// Asserts that a gateway serves; gives the worker that did.
fn served_by(cluster: &Cluster, gateway: &str) -> String {
    let answer = cluster[gateway].client().post(COMPLETIONS, &completion("who is there", 3));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-served-by").expect("x-served-by").to_owned()
}

/// Waits until `watcher` knows how many KV pages a worker has: its load comes with its first report.
fn until_kv_is_known(cluster: &Cluster, watcher: &str, worker: &str) {
    wait_for(&format!("{watcher} to know the pages of {worker}"), || {
        let row = cluster.row(watcher, worker)?;
        (row["worker"]["kv_pages_total"].as_u64()? > 0).then_some(())
    });
}

/// Asserts that each of `watchers` sees exactly these nodes as there.
fn assert_there(cluster: &Cluster, watchers: &[&str], names: &[&str]) {
    for watcher in watchers {
        let view = cluster.view(watcher);
        let mut there: Vec<&str> = view["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["state"] == "ready" || row["state"] == "joined")
            .map(|row| row["name"].as_str().unwrap())
            .collect();
        there.sort_unstable();
        assert_eq!(there, names, "{watcher} sees {view:#}");
    }
}

/// Clients that stream one after the other, each answer compared with that of an undisturbed cluster.
struct Traffic {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<u32>>,
}

impl Traffic {
    /// Starts with four clients, and waits until they are at it.
    fn start(cluster: &Cluster, gateway: &str) -> Self {
        let client = cluster[gateway].client();
        let request = completion("Steady traffic", 40);
        let expected = only(&client.ok(COMPLETIONS, &request));
        let before = cluster[gateway].figure_where(HTTP_REQUESTS, COMPLETIONS);
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..4)
            .map(|_| {
                let (stop, client, request, expected) =
                    (stop.clone(), client.clone(), request.clone(), expected.clone());
                std::thread::spawn(move || {
                    let mut answers = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let streamed = crate::harness::http::join(&client.stream(COMPLETIONS, &request));
                        assert_eq!(streamed.choices, std::slice::from_ref(&expected));
                        answers += 1;
                    }
                    answers
                })
            })
            .collect();
        let traffic = Self { stop, clients };
        traffic.flows(cluster, gateway, before);
        traffic
    }

    /// Waits until the gateway has answered some requests since it had answered `before`.
    fn flows(&self, cluster: &Cluster, gateway: &str, before: f64) {
        wait_for("answers", || {
            assert!(self.clients.iter().all(|c| !c.is_finished()), "a client failed; see its panic");
            // The looks at the figure are not counted with the rest: by path.
            let answered = cluster[gateway].figure_where(HTTP_REQUESTS, COMPLETIONS);
            (answered >= before + 6.0).then_some(())
        });
    }

    /// Waits for some more answers.
    fn goes_on(&self, cluster: &Cluster, gateway: &str) {
        self.flows(cluster, gateway, cluster[gateway].figure_where(HTTP_REQUESTS, COMPLETIONS));
    }

    /// Ends it; every answer was right.
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            assert!(client.join().expect("a client fails") > 0, "a client had no answer");
        }
    }
}
