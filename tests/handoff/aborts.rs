use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::harness::http::Raw;

/// B47 and the leak check: a thousand clients that leave at any moment, while others get what one node gives.
#[test]
fn a_thousand_aborts_leave_nothing() {
    let pace = [("ENGINE__FAKE__PREFILL_PER_TOKEN", "20us"), ("ENGINE__FAKE__STEP_OVERHEAD", "200us")];
    let pd = Pd::of(&["p1", "d1"], &pace);
    let base = &pd["g1"].base;
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if n >= 1000 {
                        return;
                    }
                    let body = asked(&prompt(n % 300, 33 + n % 250), 40);
                    if n.is_multiple_of(50) {
                        assert_eq!(answer_of(&pd["g1"], &body), answer_of(reference(), &body));
                        continue;
                    }
                    let mut raw = Raw::post(base, COMPLETIONS, &with(&body, json!({"stream": true})));
                    // At once, while the prompt is computed or on its way, or in the middle of the answer.
                    match n % 4 {
                        0 => {}
                        1 => _ = raw.head(),
                        _ => _ = raw.read_events(n % 7),
                    }
                }
            });
        }
    });
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
    assert!(pd.committed("d1") > 20.0);
}
