use super::*;

/// The pool that has a prompt is gone: it is computed, at once where that is known and after a time limit where it is not.
#[test]
fn a_pool_that_is_gone_costs_its_copies_and_no_request() {
    let mut pd = with_pool(&["u1"], &[("ENGINE__KV_PAGES", "40")]);
    let first = asked(&prompt(1, 320), 3);
    let cold = answered(&pd, &first);
    until_kept(&pd, 20);
    drop(answered(&pd, &asked(&prompt(2, 600), 3)));
    let life = pd.incarnation("s1");
    pd["s1"].kill();
    // It may be known by now, or not.
    let warm = answered(&pd, &first);
    assert_eq!(warm["choices"], cold["choices"]);
    pd.until_lost(&["c1", "g1"], "s1", life, std::time::Instant::now());
    drop(answered(&pd, &asked(&prompt(3, 600), 3)));
    let again = answered(&pd, &first);
    assert_eq!((&again["choices"], &stage(&again)["action"]), (&cold["choices"], &json!("no_pool")));
    assert_idle(&pd, &["c1", "g1", "u1"]);
}

/// B66: what is on disk is found again by the next process, and fetched.
#[test]
fn a_pool_that_is_restarted_has_what_is_on_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("pages");
    let keys = [("POOL__DISK", folder.to_str().unwrap()), ("POOL__DISK_SIZE", "64MiB")];
    let mut pd = Pd::of(&[], &POOLS);
    pd.node("s1", "pool", &[], &keys);
    pd.worker("u1", &FAKE);
    pd.until_whole();
    pd.until_known(&["u1"]);
    until_kept(&pd, 0);
    let first = asked(&prompt(1, 320), 3);
    let cold = answered(&pd, &first);
    until_kept(&pd, 20);
    // Told to stop, it writes what it has in RAM.
    pd["s1"].signal("TERM");
    assert!(pd["s1"].wait().success(), "{}", pd["s1"].log());
    pd["s1"].restart();
    pd.until_whole();
    until_kept(&pd, 20);
    pd["u1"].kill();
    pd.worker("u2", &FAKE);
    pd.until_known(&["u2"]);
    let warm = answered(&pd, &first);
    assert_eq!((&warm["choices"], cached_of(&warm)), (&cold["choices"], 319), "{}", pd["s1"].log());
    assert_eq!(pd["s1"].figure_where(GIVEN, "tier=\"disk\""), 20.0);
    assert_idle(&pd, &["c1", "g1", "u2", "s1"]);
}

/// The worker that is asked for pages, or asks for them, is gone: the pool is left with what was complete, and holds nothing
/// for anybody.
#[test]
fn a_worker_that_is_gone_leaves_nothing_at_a_pool() {
    let mut pd = with_pool(&["u1"], &[]);
    for salt in 0..4 {
        drop(answered(&pd, &asked(&prompt(salt, 600), 1)));
    }
    pd["u1"].kill();
    pd.worker("u2", &FAKE);
    pd.until_known(&["u2"]);
    let alone = Node::ready(&FAKE);
    for salt in 0..4 {
        let request = asked(&prompt(salt, 600), 3);
        assert_eq!(answered(&pd, &request)["choices"], alone.client().ok(COMPLETIONS, &request)["choices"]);
    }
    until_kept(&pd, 4 * 37);
    assert_idle(&pd, &["c1", "g1", "u2", "s1"]);
}
