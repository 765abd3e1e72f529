//! Policies of a worker are replaced while it works.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::json;

use super::{COMPLETIONS, Filed, RELOADS, ask, text, with};
use crate::harness::http::only;
use crate::harness::wait_for;

const GOOD: [&str; 6] = [
    "[runtime]\nworker-policy = \"priority\"\n",
    "[runtime]\nworker_policy = [\"fair\", \"keep-session\"]\n[worker-policy.fair]\noutput-weight = 3\n",
    "[runtime]\nworker-policy = \"offload\"\n[worker-policy.offload]\nbusy-tokens = 0\n",
    "[runtime]\nworker-policy = \"deadline\"\n[worker-policy.deadline]\nrefuse-hopeless = false\n",
    "",
    "[runtime]\nworker-policy = \"priority\"\n[worker-policy.priority]\nage-every = \"1s\"\npreempt = false\n",
];
const BAD: [(&str, &str); 4] = [
    ("[runtime]\nworker-policy = [\"fair\", \"priority\"]\n", "there is one order"),
    ("[runtime]\nworker-policy = \"offloaded\"\n", "runtime.worker-policy"),
    ("[worker-policy.fair]\ninput-weight = 5000\n", "worker-policy.fair.input-weight"),
    ("[worker-policy.keep-session]\nmax-keep = \"soon\"\n", "worker-policy.keep-session.max-keep"),
];

#[test]
fn reloads_swap_policies_and_fail_no_request() {
    let filed = Filed::start("", &[("ENGINE__FAKE__STEP_OVERHEAD", "1ms"), ("RUNTIME__MAX_RUNNING", "3")]);
    let (stop, served) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for n in 0..10 {
            let (filed, stop, served) = (&filed, &stop, &served);
            scope.spawn(move || {
                let client = filed.node.client();
                let body = ask(&text(&format!("client {n}"), 60), 30);
                let body = with(
                    body,
                    json!({"priority": n % 3, "props": {"deadline-ms": "5m", "keep-ms": "1s"}, "user": "u"}),
                );
                let expected = only(&client.ok(COMPLETIONS, &body));
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(only(&client.ok(COMPLETIONS, &body)), expected);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stopped = Stop(&stop);
        for round in 0..15 {
            let before = served.load(Ordering::Relaxed);
            filed.write(GOOD[round % GOOD.len()]);
            let report = filed.reload();
            assert_eq!(report["reloaded"], true, "{report}");
            assert_eq!(report["needs_restart"], json!([]), "{report}");
            assert_ne!(report["applied"], json!([]), "{report}");
            let (text, why) = BAD[round % BAD.len()];
            filed.write(text);
            let report = filed.reload();
            assert!(
                report["reloaded"] == false && report["error"].as_str().unwrap().contains(why),
                "{report}"
            );
            wait_for("requests to go on", || (served.load(Ordering::Relaxed) > before + 10).then_some(()));
        }
    });
    assert_eq!(filed.node.figure_where(RELOADS, "result=\"reloaded\""), 15.0);
    filed.write("");
    filed.reload();
    filed.node.assert_idle();
}
