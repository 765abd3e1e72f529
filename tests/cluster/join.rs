//! Joining: any order, any seeds, any number of restarts.

use crate::harness::cluster::Cluster;

/// A whole cluster: every node sees every other, and the gateway serves what the worker has.
#[test]
fn nodes_of_all_roles_form_a_cluster_and_serve() {
    let cluster = Cluster::of(&["c1", "g1", "w1"]);
    let client = cluster["g1"].client();
    let request = serde_json::json!({"model": "default", "prompt": "hello", "max_tokens": 4});
    let answer = client.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-served-by"), Some("w1"));
}
