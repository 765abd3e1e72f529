//! B36: a worker of the same name that comes and goes.

use super::{Routed, ask, completion, text};
use crate::harness::wait_for;

/// Two hundred rounds are for the core's own tests; these are processes.
const ROUNDS: usize = 20;

#[test]
fn b36_lives_of_a_worker_leave_nothing_in_the_directory() {
    let mut cluster = Routed::of(&["c1", "g1", "w1"], &[]);
    let client = cluster["g1"].client();
    let pages = |cluster: &Routed| cluster["c1"].client().get("/v1/directory").unwrap().json();
    assert_eq!(pages(&cluster)["pages"], 0);
    let prompt = |round: usize, i: usize| completion(&text(&format!("round {round}, {i}"), 1000), 2);
    let mut resident = 0;
    for round in 0..ROUNDS {
        for i in 0..5 {
            assert_eq!(ask(&client, &prompt(round, i)).cached(), 0);
        }
        cluster.settle();
        let known = pages(&cluster);
        assert!(known["pages"].as_u64().unwrap() >= 5 * 62, "{known}");
        assert!(known["pages"].as_u64().unwrap() <= 5 * 64, "of this life alone: {known}");

        cluster["w1"].kill();
        wait_for("w1 to leave the directory", || cluster.directory().is_empty().then_some(()));
        wait_for("its pages to be swept up", || (pages(&cluster)["pages"] == 0).then_some(()));
        cluster["w1"].restart();
        cluster.until_whole();
        cluster.settle();
        let rows = cluster.directory();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["pages"], 0, "a new life holds nothing: {rows:?}");
        if round == ROUNDS / 2 {
            resident = cluster["c1"].resident();
        }
    }
    // Warm before, cold now, and known to be.
    let reborn = ask(&client, &prompt(ROUNDS - 1, 0));
    assert_eq!((reborn.predicted(), reborn.cached()), (0, 0));
    assert_eq!(reborn.action("cache-aware"), "cold");
    let grown = cluster["c1"].resident().saturating_sub(resident);
    assert!(grown < 8 << 20, "ten lives more, and the controller has grown by {grown} bytes");
}
