//! Two tenants that flood one worker, one with short prompts and one with long ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::identity::{Secret, keys};
use super::{COMPLETIONS, Filed, ask, text};
use crate::harness::wait_for;

/// Both have more requests waiting than run at once.
const CLIENTS: usize = 12;
const RUNNING: &str = "3";

/// Asks again and again; adds what was computed for it to `service`, drawn tokens twice.
fn flood(
    filed: &Filed,
    secret: &Secret,
    prompt: usize,
    service: &AtomicU64,
    stop: &AtomicBool,
    client: usize,
) {
    let http = filed.node.client();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("{} {client} {round}", secret.tenant);
        let answer = secret.post(&http, COMPLETIONS, &ask(&text(&name, prompt), 8));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let usage = &answer.json()["usage"];
        let computed = usage["prompt_tokens"].as_u64().unwrap();
        let drawn = usage["completion_tokens"].as_u64().unwrap();
        service.fetch_add(computed + 2 * drawn, Ordering::Relaxed);
    }
}

fn shares(weight: f64) -> f64 {
    let (dir, secrets) = keys(&[("short", weight), ("long", 1.0)]);
    let config = format!(
        "[runtime]\nworker-policy = \"fair\"\nprefix-cache = false\nmax-running = {RUNNING}\n[auth]\nkeys-file = {:?}\n",
        dir.path().join("keys.toml")
    );
    let filed = Filed::start_in(dir, &config, &[("ENGINE__FAKE__STEP_OVERHEAD", "1ms")]);
    let (short, long, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let mut measured = (0, 0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            for (secret, prompt, service) in [(&secrets[0], 20, &short), (&secrets[1], 400, &long)] {
                let (filed, stop) = (&filed, &stop);
                scope.spawn(move || flood(filed, secret, prompt, service, stop, client));
            }
        }
        // Leaves the beginning out, when not all of them had come.
        let now = || (short.load(Ordering::Relaxed), long.load(Ordering::Relaxed));
        let from = wait_for("all to have come", || Some(now()).filter(|(s, l)| *s > 2_000 && *l > 2_000));
        let to = wait_for("enough to be served", || Some(now()).filter(|(s, l)| s.min(l) > &40_000));
        measured = (to.0 - from.0, to.1 - from.1);
        stop.store(true, Ordering::Relaxed);
    });
    filed.node.assert_idle();
    measured.0 as f64 / measured.1 as f64
}

#[test]
fn tenants_get_the_same_whatever_their_prompts_are_like() {
    let ratio = shares(1.0);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_tenant_of_twice_the_weight_gets_twice_as_much() {
    let ratio = shares(2.0) / 2.0;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
