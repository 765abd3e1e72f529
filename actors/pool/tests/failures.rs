//! Page sets, pools and workers that end in the middle of a transfer with a pool.

use ractor::call_t;

use super::nodes::{Member, Nodes, PAGE, PoolNode, prompt, sized, until};
use crate::pool::PoolMsg;
use crate::pool::transfers::GIVEN_AT_ONCE;
use crate::worker::pages::chaos::{Death, Plan, is_planned, plan};
use crate::worker::pages::{self, Asker, End, KvMsg};

const DEATHS: [Death; 3] = [Death::Panic, Death::Kill, Death::Whole];

/// Before which message the page set that takes pages fails, and before which the one that gives them.
const TAKES: [&str; 5] = ["linked", "accepted", "pages", "imported", "last"];
const GIVES: [&str; 5] = ["submitted", "prefilled", "exported", "credit", "ack"];

fn moments() -> impl Iterator<Item = (End, &'static str, Death)> {
    let takes = TAKES.into_iter().map(|before| (End::Receiver, before));
    let gives = GIVES.into_iter().map(|before| (End::Sender, before));
    takes.chain(gives).flat_map(|(end, before)| DEATHS.map(|death| (end, before, death)))
}

async fn until_struck(generation: u64, what: &str) {
    until(&format!("it comes to that: {what}"), || async { !is_planned(generation) }).await;
}

/// What is at the pool of a prompt is what another pool has of it, and is its start.
async fn is_right(pool: &PoolNode, whole: &[Vec<u8>], like: &Member, asked: &[u32], what: &str) -> usize {
    let pages = pool.pages(&like.at, asked).await;
    assert!(whole.starts_with(&pages), "{what}");
    pages.len()
}

/// A pool stores pages. Whatever ends meanwhile, and wherever it stands: what was complete stays, nothing is pending, neither
/// end holds anything, and the next one that stores the prompt stores the rest (B71).
#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_in_a_store_loses_no_more_than_that() {
    let mut nodes = Nodes::start().await;
    let mut a = nodes.worker().await;
    let b = nodes.worker().await;
    let mut pool = nodes.pool(sized(10_000, None)).await;
    let reference = nodes.pool(sized(10_000, None)).await;
    for (salt, (end, before, death)) in (1000..).zip(moments()) {
        let what = format!("{end:?} before `{before}`, {death:?}");
        let asked = prompt(salt, 12 * PAGE);
        let expected = nodes.ask(&a, &asked, None, None).await;
        assert_eq!(nodes.ask(&b, &asked, None, None).await.tokens, expected.tokens);
        nodes.store(&reference, &b, &asked);
        until("it is stored", || async { reference.pages(&b.at, &asked).await.len() == 12 }).await;
        let whole = reference.pages(&b.at, &asked).await;
        let generation = pool.id.incarnation;
        plan(generation, Plan { end, before, nth: 1, death });
        nodes.store(&pool, &a, &asked);
        until_struck(generation, &what).await;
        match (end, death) {
            (End::Receiver, Death::Whole) => {
                pool.ended.await.unwrap();
                pool = nodes.pool(sized(10_000, None)).await;
            }
            (End::Sender, Death::Whole) => {
                // One that nobody says is gone: its links are.
                a = nodes.worker().await;
                nodes.ask(&a, &asked, None, None).await;
            }
            _ => {}
        }
        pool.until_idle().await;
        a.until_idle().await;
        let kept = is_right(&pool, &whole, &a, &asked, &what).await;
        if before == "ack" {
            assert_eq!(kept, 12, "{what}");
        }
        nodes.store(&pool, &b, &asked);
        until("it is stored", || async { pool.pages(&b.at, &asked).await.len() == 12 }).await;
        assert_eq!(is_right(&pool, &whole, &a, &asked, &what).await, 12);
        pool.until_idle().await;
        b.until_idle().await;
    }
}

/// A worker fetches from a pool what that holds of a prompt. Whatever ends there meanwhile, or in the worker: the answer is the
/// right one, the rest is computed, and neither end holds anything (B69, B72, B76).
#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_in_a_fetch_the_rest_is_computed() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let mut pool = nodes.pool(sized(10_000, None)).await;
    // The end of the worker that asks takes the request along, which its gateway places again.
    let there = |(end, _, death): &(End, &str, Death)| *end == End::Sender || *death != Death::Whole;
    for (salt, (end, before, death)) in (2000..).zip(moments().filter(there)) {
        let what = format!("{end:?} before `{before}`, {death:?}");
        let asked = prompt(salt, 12 * PAGE + 5);
        let expected = nodes.ask(&a, &asked, None, None).await;
        nodes.store(&pool, &a, &asked);
        until("it is stored", || async { pool.pages(&a.at, &asked).await.len() == 12 }).await;
        pool.until_idle().await;
        let generation = b.id.incarnation;
        plan(generation, Plan { end, before, nth: 1, death });
        let got = nodes.ask(&b, &asked, Some(&pool.id), None).await;
        assert_eq!(got.tokens, expected.tokens, "{what}");
        until_struck(generation, &what).await;
        if death == Death::Whole {
            pool.ended.await.unwrap();
            pool = nodes.pool(sized(10_000, None)).await;
        }
        pool.until_idle().await;
        b.until_idle().await;
    }
}

/// A worker is given up, or the pool is about to stop, at some moment of a store: the put ends with both page sets, and what was
/// complete stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_called_off_leaves_nothing_under_way() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(10_000, None)).await;
    let mut cut = 0;
    for salt in 0..40 {
        let asked = prompt(6000 + salt, 40 * PAGE);
        nodes.ask(&a, &asked, None, None).await;
        nodes.ask(&b, &asked, None, None).await;
        let before = pool.stats().await.pages;
        nodes.store(&pool, &a, &asked);
        until("so many pages are here", || async {
            pool.stats().await.pages >= before + u64::from(salt) % 20
        })
        .await;
        pool.pool.cast(PoolMsg::OwnerLost(a.id.clone())).unwrap();
        pool.until_idle().await;
        a.until_idle().await;
        cut += u64::from(pool.stats().await.pages < before + 40);
        nodes.store(&pool, &b, &asked);
        until("the rest is stored", || async { pool.stats().await.pages == before + 40 }).await;
        pool.until_idle().await;
    }
    assert!(cut > 0, "none was called off in time");
    let asked = prompt(7000, 300 * PAGE);
    nodes.ask(&a, &asked, None, None).await;
    let before = pool.stats().await.pages;
    nodes.store(&pool, &a, &asked);
    until("some are here", || async { pool.stats().await.pages > before }).await;
    pool.pool.cast(PoolMsg::Close).unwrap();
    pool.until_idle().await;
    a.until_idle().await;
}

/// A worker ends while it fetches pages from a pool, wherever it stands: the pool holds nothing for it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_in_a_fetch_leaves_nothing_at_the_pool() {
    let mut nodes = Nodes::start().await;
    let a = nodes.worker().await;
    let pool = nodes.pool(sized(10_000, None)).await;
    let asked = prompt(4000, 12 * PAGE + 5);
    let expected = nodes.ask(&a, &asked, None, None).await;
    nodes.store(&pool, &a, &asked);
    until("it is stored", || async { pool.stats().await.pages == 12 }).await;
    for before in TAKES {
        let b = nodes.worker().await;
        plan(b.id.incarnation, Plan { end: End::Receiver, before, nth: 1, death: Death::Whole });
        nodes.submit(&b, &asked, Some(&pool.id), None);
        until_struck(b.id.incarnation, before).await;
        pool.until_idle().await;
    }
    let c = nodes.worker().await;
    let got = nodes.ask(&c, &asked, Some(&pool.id), None).await;
    assert_eq!((got.tokens, got.cached), (expected.tokens, 12 * PAGE));
}

/// No more page sets give pages at a time than the pool has set itself, and each gives its place up when it ends.
#[tokio::test(flavor = "multi_thread")]
async fn readers_are_bounded() {
    let mut nodes = Nodes::start().await;
    let a = nodes.worker().await;
    let pool = nodes.pool(sized(100, None)).await;
    let asked = prompt(5000, 12 * PAGE);
    nodes.ask(&a, &asked, None, None).await;
    nodes.store(&pool, &a, &asked);
    until("it is stored", || async { pool.stats().await.pages == 12 }).await;
    pool.until_idle().await;
    let mut sets = Vec::new();
    for _ in 0..GIVEN_AT_ONCE + 20 {
        // One without a transfer keeps quiet.
        let set = pages::of_request(pool.pool.get_cell()).await.unwrap();
        let (fingerprint, layout) = (a.at.fingerprint, a.at.layout);
        let asker = Asker { worker: a.id.clone(), fingerprint, layout, first_page: 0 };
        let spec = Box::new(nodes.spec(&a.at, &asked, 1));
        let message = Box::new(KvMsg::Hold { spec, asker, set: set.clone() });
        pool.pool.cast(PoolMsg::Kv { set: set.get_id(), message }).unwrap();
        sets.push(set);
    }
    let figures = || async { call_t!(pool.pool, PoolMsg::Transfers, 60_000).unwrap() };
    assert_eq!(figures().await, [GIVEN_AT_ONCE, 0, 0]);
    assert_eq!(pool.stats().await.readers, GIVEN_AT_ONCE as u64);
    for set in sets {
        set.kill();
    }
    pool.until_idle().await;
    // Pages are free to leave again.
    let others = prompt(5001, 100 * PAGE);
    nodes.ask(&a, &others, None, None).await;
    nodes.store(&pool, &a, &others);
    until("it is stored", || async { pool.pages(&a.at, &others).await.len() == 100 }).await;
}

/// The port of a pool fails: its links are gone, and it is there again by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_fails_is_started_again() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(100, None)).await;
    let asked = prompt(3000, 12 * PAGE + 5);
    let expected = nodes.ask(&a, &asked, None, None).await;
    for _ in 0..2 {
        let is = |cell: &ractor::ActorCell| cell.is_message_type_of::<crate::kv::KvPortMsg>() == Some(true);
        let port = || pool.pool.get_children().into_iter().find(|cell| is(cell));
        let before = port().unwrap();
        before.kill();
        until("there is another", || async { port().is_some_and(|now| now.get_id() != before.get_id()) })
            .await;
    }
    nodes.store(&pool, &a, &asked);
    until("it is stored", || async { pool.stats().await.pages == 12 }).await;
    let got = nodes.ask(&b, &asked, Some(&pool.id), None).await;
    assert_eq!((got.tokens, got.cached), (expected.tokens, 12 * PAGE));
}
