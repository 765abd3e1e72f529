//! Pages between the turns of a conversation, and that they are nobody else's.

use std::sync::Arc;

use super::driver::{Driver, config, id, prompt, request};
use crate::batch::BatchConfig;
use crate::kv::page_hashes;
use crate::order::keep_session::KeepOptions;
use crate::request::{Prop, RequestSpec, Token};
use crate::time::Span;

const LIMITS: KeepOptions = KeepOptions { max_keep: Span::from_secs(60), max_share: 0.5 };

/// A turn of a conversation whose pages stay for `ms`.
fn turn(config: &BatchConfig, number: u64, tokens: &[Token], ms: i64) -> RequestSpec {
    let mut spec = request(config, number, tokens, 4);
    spec.session = Some("talk".into());
    Arc::make_mut(&mut spec.props).insert("keep-ms".into(), Prop::Int(ms));
    spec
}

/// All tokens of a turn, its answer included, and some new ones.
fn next(driver: &Driver, spec: &RequestSpec, new: u32) -> Vec<Token> {
    let mut tokens = spec.prompt.to_vec();
    tokens.extend(driver.got(id(spec)).choices[&0].iter().map(|e| e.token));
    tokens.extend((0..new).map(|i| 90_000 + i));
    tokens
}

fn steps(driver: &mut Driver) {
    while driver.step().is_some() {}
}

/// Enough of others to take all pages.
fn flood(driver: &mut Driver, config: &BatchConfig, from: u64) {
    for number in from..from + 12 {
        driver.add(&request(config, number, &prompt(number as u32, 40), 8));
        steps(driver);
    }
}

#[test]
fn the_next_turn_computes_only_what_is_new_and_without_keeping_all_of_it() {
    for keep in [true, false] {
        let config = BatchConfig { watermark: 0.0, ..config(4, 32) };
        let mut driver = Driver::new(&config);
        driver.batch.keep_sessions(keep.then_some(LIMITS));
        let first = turn(&config, 0, &prompt(0, 40), 1000);
        driver.add(&first);
        steps(&mut driver);
        assert_eq!(driver.batch.kept(), if keep { (10, 1) } else { (0, 0) });
        flood(&mut driver, &config, 10);
        let before = driver.load().prefilled_tokens;
        let second = turn(&config, 1, &next(&driver, &first, 9), 1000);
        driver.add(&second);
        steps(&mut driver);
        let computed = driver.load().prefilled_tokens - before;
        if keep {
            // 40 prompt and 4 answer tokens are there, the last of them without keys and values, so 10 full pages.
            assert_eq!(computed, 4 + 9, "the answer's unfinished page and the new tokens");
        } else {
            assert_eq!(computed, 53, "evicted meanwhile");
        }
        driver.expect_complete(&second);
        driver.run();
    }
}

#[test]
fn kept_pages_end_by_time_by_flag_and_by_cancellation_of_the_policy() {
    let config = config(4, 64);
    let mut driver = Driver::new(&config);
    driver.batch.keep_sessions(Some(LIMITS));
    let first = turn(&config, 0, &prompt(0, 17), 20);
    driver.add(&first);
    steps(&mut driver);
    assert_eq!(driver.batch.kept(), (5, 1));
    // A millisecond a call.
    (0..30).for_each(|_| assert!(driver.plan().is_none()));
    assert_eq!(driver.batch.kept(), (0, 0));
    driver.add(&turn(&config, 1, &prompt(0, 17), 1000));
    steps(&mut driver);
    let mut last = turn(&config, 2, &prompt(0, 20), 1000);
    Arc::make_mut(&mut last.props).insert("session-final".into(), Prop::Bool(true));
    driver.add(&last);
    steps(&mut driver);
    assert_eq!(driver.batch.kept(), (0, 0));
    driver.add(&turn(&config, 3, &prompt(0, 17), 1000));
    steps(&mut driver);
    assert_eq!(driver.batch.kept().1, 1);
    driver.batch.keep_sessions(None);
    assert_eq!((driver.batch.kept(), driver.load().pages_used), ((0, 0), 0));
    // Without a session or a time nothing is kept; nor for a client that left.
    driver.batch.keep_sessions(Some(LIMITS));
    let anonymous = RequestSpec { session: None, ..turn(&config, 4, &prompt(0, 17), 1000) };
    driver.add(&anonymous);
    driver.add(&turn(&config, 5, &prompt(0, 17), 0));
    let left = turn(&config, 6, &prompt(0, 17), 1000);
    driver.add(&left);
    driver.step();
    assert!(driver.cancel(id(&left)));
    driver.run();
}

#[test]
fn kept_pages_give_way_to_running_and_waiting_requests() {
    let config = BatchConfig { watermark: 0.0, ..config(4, 16) };
    let mut driver = Driver::new(&config);
    driver.batch.keep_sessions(Some(LIMITS));
    let kept = turn(&config, 0, &prompt(0, 28), 60_000);
    driver.add(&kept);
    steps(&mut driver);
    assert_eq!(driver.batch.kept(), (7, 1));
    // Fits beside it, and then grows.
    let grows = request(&config, 1, &prompt(1, 30), 30);
    driver.add(&grows);
    steps(&mut driver);
    driver.expect_complete(&grows);
    assert_eq!((driver.batch.kept(), driver.load().preemptions), ((0, 0), 0), "nobody is preempted for it");
    driver.add(&turn(&config, 2, &prompt(0, 28), 60_000));
    steps(&mut driver);
    let big = request(&config, 3, &prompt(3, 60), 4);
    driver.add(&big);
    assert!(driver.step().is_some(), "it is admitted at once");
    assert_eq!(driver.batch.kept(), (0, 0));
    driver.run();
    driver.expect_complete(&big);
}

/// B73: whoever sends the same prompt finds nothing of another tenant's, whatever names the tenants chose.
#[test]
fn b73_tenants_find_only_their_own_pages() {
    let config = config(4, 256);
    let mut driver = Driver::new(&config);
    driver.silent = true;
    let mut ask = |number: u64, tenant: Option<&str>, own_hashes: bool| {
        let mut spec = request(&config, number, &prompt(0, 40), 2);
        spec.tenant = tenant.map(Into::into);
        let fingerprint = config.fingerprint.of_tenant(spec.tenant.as_ref());
        spec.hashes = page_hashes(&fingerprint, config.page_tokens, &spec.prompt).into();
        if own_hashes {
            spec.hashes = Arc::new([]);
        }
        driver.add(&spec);
        driver.run();
        driver.got(id(&spec)).done.unwrap().cached_tokens
    };
    let tenants =
        [None, Some("a"), Some("b"), Some("model"), Some("m"), Some("test"), Some("ab"), Some("a\0b")];
    for (number, tenant) in (0..).zip(tenants) {
        assert_eq!(ask(2 * number, tenant, false), 0, "{tenant:?}");
        assert_eq!(ask(2 * number + 1, tenant, number % 2 == 0), 36, "{tenant:?} finds its own");
    }
}
