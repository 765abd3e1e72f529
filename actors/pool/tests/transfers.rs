//! Pages of a worker that go to a pool and come back to another worker.

use tokio::net::TcpListener;

use super::nodes::{Nodes, PAGE, prompt, sized, until};
use super::*;
use crate::pool::transfers::{TAKEN_AT_ONCE, WISHES};

/// They come back as they were, and nothing of what came is computed again.
#[tokio::test(flavor = "multi_thread")]
async fn pages_go_to_a_pool_and_come_back_to_another_worker() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(100, None)).await;
    let second = nodes.pool(sized(100, None)).await;
    let start = prompt(1, 20 * PAGE);
    let whole = [start.clone(), prompt(2, 3 * PAGE + 5)].concat();
    // Nothing is there yet: that costs nothing but the question.
    let expected = nodes.ask(&a, &whole, Some(&pool.id), None).await;
    assert_eq!(expected.cached, 0);
    nodes.store(&pool, &a, &start);
    until("it is stored", || async { pool.stats().await.pages == 20 }).await;
    assert_eq!(pool.until_idle().await.counts.stored, 20);
    let got = nodes.ask(&b, &whole, Some(&pool.id), None).await;
    assert_eq!((got.tokens, got.cached), (expected.tokens.clone(), 20 * PAGE));
    // And from there to another pool, which has the same bytes then.
    nodes.store(&second, &b, &start);
    until("it is stored", || async { second.stats().await.pages == 20 }).await;
    let pages = pool.pages(&a.at, &start).await;
    assert_eq!(pages.len(), 20);
    assert!(pages.iter().all(|page| page.iter().any(|byte| *byte != 0)), "pages of something");
    assert_eq!(pages, second.pages(&a.at, &start).await);
    // What is here already is not sent again, and what a worker holds no more is not missed.
    nodes.store(&pool, &a, &whole);
    until("the rest is stored", || async { pool.stats().await.pages == 23 }).await;
    nodes.store(&pool, &a, &whole);
    nodes.store(&pool, &b, &prompt(99, 50 * PAGE));
    let stats = pool.until_idle().await;
    assert_eq!((stats.counts.stored, stats.pages), (23, 23));
    assert_eq!(pool.pages(&a.at, &start).await, pages);
    for worker in [&a, &b] {
        worker.until_idle().await;
    }
}

/// A pool computes nothing: whoever asks for that computes by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_computes_no_prompt() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(100, None)).await;
    let asked = prompt(3, 20 * PAGE);
    let expected = nodes.ask(&a, &asked, None, None).await;
    assert_eq!(nodes.ask(&b, &asked, None, Some(&pool.id)).await, expected);
    assert_eq!(pool.until_idle().await.counts.looked_up, 0);
}

/// RAM for three pages, and a run of forty: those that RAM has no room for are on disk, and come back from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ram_does_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(3, Some((folder.path(), 200)))).await;
    let asked = prompt(4, 40 * PAGE + 1);
    let expected = nodes.ask(&a, &asked, None, None).await;
    nodes.store(&pool, &a, &asked);
    until("it is stored", || async { pool.stats().await.pages == 40 }).await;
    let stats = pool.until_idle().await;
    assert!(stats.ram.pages <= 3 && stats.disk.pages >= 37, "{stats:?}");
    let got = nodes.ask(&b, &asked, Some(&pool.id), None).await;
    assert_eq!((got.tokens, got.cached), (expected.tokens.clone(), 40 * PAGE));
    let stats = pool.until_idle().await;
    assert!(stats.counts.given_disk >= 37 && stats.ram.pages <= 3, "{stats:?}");

    // After a restart all that was written is only on disk.
    pool.pool.cast(PoolMsg::Close).unwrap();
    until("it is flushed", || async { call_t!(pool.pool, PoolMsg::IsFlushed, 60_000).unwrap() }).await;
    pool.pool.stop(None);
    pool.ended.await.unwrap();
    let pool = nodes.pool(sized(3, Some((folder.path(), 200)))).await;
    assert_eq!((pool.stats().await.pages, pool.stats().await.ram.pages), (40, 0));
    let c = nodes.worker().await;
    let got = nodes.ask(&c, &asked, Some(&pool.id), None).await;
    assert_eq!((got.tokens, got.cached), (expected.tokens, 40 * PAGE));
    // A run that is longer than all that a pool keeps is not begun, and drops nothing.
    let small = nodes.pool(sized(10, None)).await;
    let short = prompt(5, 5 * PAGE);
    nodes.ask(&a, &short, None, None).await;
    nodes.store(&small, &a, &short);
    until("it is stored", || async { small.stats().await.pages == 5 }).await;
    nodes.store(&small, &a, &asked);
    assert_eq!(small.until_idle().await.counts.stored, 5);
}

/// Prompts are read while they are stored, and while others come for which pages have to leave: what is given is a part of the
/// prompt's start that is whole, and the answer is the right one (B65, B72).
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_read_while_they_come_and_go() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    // As much as one prompt takes.
    let pool = nodes.pool(sized(20, None)).await;
    let mut fetched = 0;
    for salt in 0..60 {
        let (asked, other) = (prompt(500 + salt, 20 * PAGE + 4), prompt(700 + salt, 20 * PAGE));
        let expected = nodes.ask(&a, &asked, None, None).await;
        nodes.ask(&a, &other, None, None).await;
        nodes.store(&pool, &a, &asked);
        if salt % 3 > 0 {
            until("it is stored", || async { pool.stats().await.puts == 0 }).await;
        }
        if salt % 2 > 0 {
            nodes.store(&pool, &a, &other);
        }
        let got = nodes.ask(&b, &asked, Some(&pool.id), None).await;
        assert_eq!(got.tokens, expected.tokens, "{salt}");
        fetched += got.cached;
    }
    assert!(fetched > 0, "something was there");
    let stats = pool.until_idle().await;
    assert!(stats.ram.pages <= 20, "{stats:?}");
    b.until_idle().await;
}

/// One tenant's pages are no other's, also where the prompts are the same (B73).
#[tokio::test(flavor = "multi_thread")]
async fn tenants_share_no_pages() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(100, None), &a).await;
    let asked = prompt(12, 20 * PAGE + 1);
    nodes.tenant = Some("a".into());
    let expected = nodes.ask(&a, &asked, None, None).await;
    nodes.store(&pool, &a, &asked);
    until("it is stored", || async { pool.stats().await.pages == 20 }).await;
    for (tenant, cached) in [(Some("b"), 0), (None, 0), (Some("ab"), 0), (Some("a"), 20 * PAGE)] {
        nodes.tenant = tenant.map(Into::into);
        let got = nodes.ask(&b, &asked, Some(&pool.id), None).await;
        assert_eq!((got.tokens, got.cached), (expected.tokens.clone(), cached), "{tenant:?}");
    }
    pool.until_idle().await;
}

/// A file is gone, and another one damaged: what comes before it is given, the rest is computed, and the pages that followed it
/// are stored again by the next one (B76).
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_lost_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = Nodes::start().await;
    let a = nodes.worker().await;
    let pool = nodes.pool(sized(2, Some((folder.path(), 200))), &a).await;
    let asked = prompt(13, 40 * PAGE + 1);
    let expected = nodes.ask(&a, &asked, None, None).await;
    let file = |page: usize| {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let name = name_of(&a, &asked, page);
        folder.path().join(hex(&a.at.fingerprint.0)).join(hex(&name.0) + ".page")
    };
    let harms: [&dyn Fn(); 2] = [&|| std::fs::remove_file(file(20)).unwrap(), &|| {
        let mut raw = std::fs::read(file(20)).unwrap();
        let end = raw.len() - 1;
        raw[end] ^= 1;
        std::fs::write(file(20), raw).unwrap();
    }];
    for harm in harms {
        nodes.store(&pool, &a, &asked);
        until("it is stored", || async { pool.stats().await.pages == 40 }).await;
        pool.until_idle().await;
        until("it is written", || async { pool.stats().await.disk.pages >= 38 }).await;
        harm();
        let b = nodes.worker().await;
        let got = nodes.ask(&b, &asked, Some(&pool.id), None).await;
        assert_eq!(got.tokens, expected.tokens);
        // No message is given in part.
        assert!((16..=20).contains(&(got.cached / PAGE)), "{} tokens came", got.cached);
        assert_eq!(pool.until_idle().await.pages, 20);
        b.until_idle().await;
    }
}

fn name_of(at: &super::nodes::Member, asked: &[u32], page: usize) -> PageHash {
    policies::kv::page_hashes(&at.at.fingerprint, PAGE as u32, asked)[page]
}

/// Two workers are to give the same prefix at once: one does.
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_store_one_prefix_at_once() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(100, None)).await;
    let asked = prompt(6, 30 * PAGE);
    let expected = nodes.ask(&a, &asked, None, None).await;
    assert_eq!(nodes.ask(&b, &asked, None, None).await, expected);
    for _ in 0..10 {
        nodes.store(&pool, &a, &asked);
        nodes.store(&pool, &b, &asked);
    }
    until("it is stored", || async { pool.stats().await.pages == 30 }).await;
    let stats = pool.until_idle().await;
    assert_eq!((stats.counts.stored, stats.counts.ignored), (30, 0), "{stats:?}");
}

/// A disk that is full in the middle of a store: the pool goes on in RAM, what was written is read, and it says so once.
#[tokio::test(flavor = "multi_thread")]
#[cfg(target_os = "linux")]
async fn a_disk_that_is_full_during_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let create = Create(Arc::new({
        let files = Arc::clone(&files);
        move |path| {
            let file = (Create::default().0)(path)?;
            if files.fetch_add(1, Ordering::Relaxed) >= 20 {
                OpenOptions::new().write(true).open("/dev/full")
            } else {
                Ok(file)
            }
        }
    }));
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let args = PoolArgs { create, ..sized(4, Some((folder.path(), 500))) };
    let pool = nodes.pool(args).await;
    let (first, second) = (prompt(7, 15 * PAGE + 1), prompt(8, 40 * PAGE + 1));
    let expected = nodes.ask(&a, &first, None, None).await;
    nodes.ask(&a, &second, None, None).await;
    nodes.store(&pool, &a, &first);
    until("it is stored", || async { pool.stats().await.pages == 15 }).await;
    pool.until_idle().await;
    nodes.store(&pool, &a, &second);
    until("the disk is full", || async { pool.stats().await.paused }).await;
    let stats = pool.until_idle().await;
    assert!(stats.counts.no_space >= 2 && stats.counts.pauses == 1, "{stats:?}");
    // Some of the older pages made room before it was given up; what is left of them is read and right.
    let got = nodes.ask(&b, &first, Some(&pool.id), None).await;
    assert_eq!(got.tokens, expected.tokens);
    let whole = pool.pages(&a.at, &second).await;
    assert!(stats.pages > 0 && whole.len() + got.cached / PAGE > 0, "{stats:?}");
    pool.until_idle().await;
}

/// A pool under load loses wishes, never memory; and a worker that is gone takes its wishes along.
#[tokio::test(flavor = "multi_thread")]
async fn wishes_are_bounded_and_go_with_their_worker() {
    let mut nodes = Nodes::start().await;
    let a = nodes.worker().await;
    let pool = nodes.pool(sized(1000, None)).await;
    // Whoever dials it waits until it answers, which it does not.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = super::nodes::Member {
        id: WorkerId::new("mute".into(), 3),
        door: a.door.clone(),
        at: policies::placement::KvPeer { address: silent.local_addr().unwrap().to_string(), ..a.at.clone() },
    };
    for salt in 0..100 {
        nodes.store(&pool, &mute, &prompt(100 + salt, 5 * PAGE));
    }
    let most = [0, TAKEN_AT_ONCE, WISHES];
    until("as many wait as may", || async {
        call_t!(pool.pool, PoolMsg::Transfers, 60_000).unwrap() == most
    })
    .await;
    assert_eq!(pool.stats().await.puts, TAKEN_AT_ONCE as u64);
    // An older life of it is no news.
    pool.pool.cast(PoolMsg::OwnerLost(WorkerId::new("mute".into(), 2))).unwrap();
    assert_eq!(call_t!(pool.pool, PoolMsg::Transfers, 60_000).unwrap(), most);
    pool.pool.cast(PoolMsg::OwnerLost(mute.id.clone())).unwrap();
    pool.until_idle().await;
    // Others are served.
    let asked = prompt(9, 10 * PAGE);
    nodes.ask(&a, &asked, None, None).await;
    nodes.store(&pool, &a, &asked);
    until("it is stored", || async { pool.stats().await.pages == 10 }).await;
}

/// A pool that is being stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pool_gives_what_it_has_and_takes_nothing() {
    let mut nodes = Nodes::start().await;
    let (a, b) = (nodes.worker().await, nodes.worker().await);
    let pool = nodes.pool(sized(100, None)).await;
    let asked = prompt(10, 10 * PAGE + 3);
    let expected = nodes.ask(&a, &asked, None, None).await;
    nodes.store(&pool, &a, &asked);
    until("it is stored", || async { pool.stats().await.pages == 10 }).await;
    pool.pool.cast(PoolMsg::Close).unwrap();
    let other = prompt(11, 10 * PAGE);
    nodes.ask(&a, &other, None, None).await;
    nodes.store(&pool, &a, &other);
    let got = nodes.ask(&b, &asked, Some(&pool.id), None).await;
    assert_eq!((got.tokens, got.cached), (expected.tokens, 10 * PAGE));
    assert_eq!(pool.until_idle().await.pages, 10);
}
