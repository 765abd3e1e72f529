//! API keys: who may ask, and that tenants find nothing of each other (B73).

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{COMPLETIONS, Filed, ask, text, with};
use crate::harness::http::{Client, Response};
use crate::harness::node::binary;

/// A key in clear, and whose it is.
pub(super) struct Secret {
    pub(super) tenant: String,
    key: String,
    entry: String,
}

impl Secret {
    /// Made by the program itself.
    fn new(tenant: &str, weight: f64) -> Self {
        let args = ["auth", "new", tenant, "--weight", &weight.to_string()];
        let out = binary().args(args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let entry = String::from_utf8(out.stdout).unwrap();
        let key = entry.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned();
        Self { tenant: tenant.to_owned(), key, entry }
    }

    pub(super) fn post(&self, client: &Client, path: &str, body: &Value) -> Response {
        let bearer = format!("Bearer {}", self.key);
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        client.send("POST", path, &headers, body.to_string().into_bytes())
    }

    fn cached(&self, client: &Client, body: &Value) -> u64 {
        let answer = self.post(client, COMPLETIONS, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }
}

/// A folder with `keys.toml`, and the keys in clear.
pub(super) fn keys(tenants: &[(&str, f64)]) -> (TempDir, Vec<Secret>) {
    let dir = tempfile::tempdir().unwrap();
    let secrets: Vec<Secret> = tenants.iter().map(|(name, weight)| Secret::new(name, *weight)).collect();
    write(&dir, &secrets.iter().collect::<Vec<_>>());
    (dir, secrets)
}

fn write(dir: &TempDir, secrets: &[&Secret]) {
    let text: String = secrets.iter().map(|secret| secret.entry.as_str()).collect();
    std::fs::write(dir.path().join("keys.toml"), text).unwrap();
}

fn config(dir: &TempDir) -> String {
    format!("[auth]\nkeys-file = {:?}\n", dir.path().join("keys.toml"))
}

#[test]
fn without_a_known_key_nothing_is_served_and_keys_can_be_exchanged() {
    let (dir, secrets) = keys(&[("a", 1.0), ("b", 2.0)]);
    let text = config(&dir);
    let filed = Filed::start_in(dir, &text, &[]);
    let client = filed.node.client();
    let body = ask("hello", 2);
    for path in [COMPLETIONS, "/v1/chat/completions", "/v1/tokenize", "/detokenize"] {
        let error = client.post(path, &body).error(401);
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("invalid_request_error"), &json!("invalid_api_key"))
        );
    }
    client.get("/v1/models").unwrap().error(401);
    let wrong = Secret { key: format!("{}0", secrets[0].key), ..Secret::new("a", 1.0) };
    wrong.post(&client, COMPLETIONS, &body).error(401);
    for secret in &secrets {
        assert_eq!(secret.post(&client, COMPLETIONS, &body).status, 200);
    }
    for path in ["/health", "/metrics", "/liveness", "/v1/workers"] {
        assert_eq!(client.get(path).unwrap().status, 200, "{path} is not for clients alone");
    }
    // One key leaves, one comes.
    let third = Secret::new("c", 1.0);
    write(&filed.dir, &[&secrets[1], &third]);
    assert_eq!(filed.reload()["reloaded"], true);
    secrets[0].post(&client, COMPLETIONS, &body).error(401);
    assert_eq!(third.post(&client, COMPLETIONS, &body).status, 200);
    // A file that is wrong changes nothing and says why, and shows no key.
    std::fs::write(
        filed.dir.path().join("keys.toml"),
        format!("[[key]]\ntenant = \"x\"\nhash = \"{}\"\n", third.key),
    )
    .unwrap();
    let report = filed.reload();
    let why = report["error"].as_str().unwrap();
    assert!(
        report["reloaded"] == false && why.contains("auth.keys-file") && why.contains("key 1"),
        "{report}"
    );
    assert!(!why.contains(&third.key), "{why}");
    assert_eq!(third.post(&client, COMPLETIONS, &body).status, 200);
    // Without the setting everybody may ask.
    filed.write("");
    assert_eq!(filed.reload()["applied"], json!(["auth.keys-file"]));
    assert_eq!(client.post(COMPLETIONS, &body).status, 200);
}

#[test]
fn b73_a_tenant_finds_its_own_pages_and_nobody_elses() {
    let (dir, secrets) = keys(&[("a", 1.0), ("b", 1.0), ("fake", 1.0)]);
    let filed = Filed::start_in(dir, "", &[]);
    let client = filed.node.client();
    let body = ask(&text("the same for all", 320), 2);
    // Of nobody, before there were tenants.
    assert_eq!(client.post(COMPLETIONS, &body).status, 200);
    filed.write(&config(&filed.dir));
    assert_eq!(filed.reload()["reloaded"], true);
    for secret in &secrets {
        assert_eq!(secret.cached(&client, &body), 0, "{}", secret.tenant);
        assert_eq!(secret.cached(&client, &body), 304, "{}", secret.tenant);
    }
    // A client cannot say that it is somebody else.
    let forged = with(body, json!({"cache_salt": "a"}));
    secrets[1].post(&client, COMPLETIONS, &forged).error(400);
}

#[test]
fn a_hash_is_made_of_a_key_from_standard_input() {
    let secret = Secret::new("a", 1.0);
    let mut child =
        binary().args(["auth", "hash"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{}", secret.key).unwrap();
    let out = child.wait_with_output().unwrap();
    let hash = String::from_utf8(out.stdout).unwrap();
    assert!(secret.entry.contains(hash.trim()) && hash.starts_with("blake3:"), "{hash}");
}
