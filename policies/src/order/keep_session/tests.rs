//! What is kept, and that it never is too much.

use super::*;
use crate::rng::Rng;

fn session(tenant: Option<&str>, name: &str) -> SessionKey {
    SessionKey { tenant: tenant.map(TenantId::from), session: name.into() }
}

fn pages(range: std::ops::Range<u32>) -> Vec<PageId> {
    range.map(PageId).collect()
}

#[test]
fn a_longer_turn_replaces_the_shorter_one() {
    let mut ledger = KeepSession::new(KeepOptions::default(), 100);
    let a = session(None, "a");
    assert_eq!(ledger.keep(Time(0), a.clone(), &pages(0..5), Span(10)), (5, vec![]));
    assert_eq!(ledger.keep(Time(5), a.clone(), &pages(0..8), Span(10)), (8, vec![pages(0..5)]));
    assert_eq!((ledger.pages(), ledger.sessions()), (8, 1));
    assert_eq!(ledger.release_expired(Time(14)), None);
    assert_eq!(ledger.release_expired(Time(15)), Some(pages(0..8)));
    assert_eq!((ledger.release(&a), ledger.release_expired(Time(99))), (None, None));
}

#[test]
fn the_oldest_gives_way_and_a_long_turn_is_cut() {
    let mut ledger = KeepSession::new(KeepOptions { max_share: 0.5, ..KeepOptions::default() }, 20);
    let keep = |ledger: &mut KeepSession, name: &str, range| {
        ledger.keep(Time(0), session(Some("t"), name), &pages(range), Span(5))
    };
    assert_eq!(keep(&mut ledger, "a", 0..4), (4, vec![]));
    assert_eq!(keep(&mut ledger, "b", 4..8), (4, vec![]));
    assert_eq!(keep(&mut ledger, "c", 8..12), (4, vec![pages(0..4)]));
    assert_eq!(keep(&mut ledger, "d", 0..15), (10, vec![pages(4..8), pages(8..12)]));
    assert_eq!(ledger.set_options(KeepOptions { max_share: 0.25, ..KeepOptions::default() }), [pages(0..10)]);
    ledger.check().unwrap();
}

#[test]
fn the_time_is_cut_and_tenants_are_apart() {
    let limits = KeepOptions { max_keep: Span(100), ..KeepOptions::default() };
    let mut ledger = KeepSession::new(limits, 100);
    ledger.keep(Time(0), session(Some("a"), "s"), &pages(0..3), Span(u64::MAX));
    ledger.keep(Time(0), session(Some("b"), "s"), &pages(3..6), Span(50));
    ledger.keep(Time(0), session(None, "s"), &pages(6..9), Span::ZERO);
    assert_eq!(ledger.sessions(), 2);
    assert_eq!(ledger.release_expired(Time(60)), Some(pages(3..6)));
    assert_eq!(ledger.release(&session(Some("b"), "s")), None);
    assert_eq!(ledger.release_expired(Time(100)), Some(pages(0..3)));
}

#[test]
fn the_limits_are_never_exceeded() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let total = 1 + rng.below(60) as u32;
        let limits = KeepOptions { max_keep: Span(1 + rng.below(200)), max_share: rng.unit() };
        let mut ledger = KeepSession::new(limits, total);
        let mut now = Time(0);
        // A page that was taken is given back exactly once.
        let mut held: Vec<PageId> = Vec::new();
        let drop = |held: &mut Vec<PageId>, gone: Vec<PageId>| {
            for page in gone {
                let at = held.iter().position(|p| *p == page).unwrap();
                held.swap_remove(at);
            }
        };
        for _ in 0..200 {
            now = now + Span(rng.below(40));
            let of = session(None, &format!("s{}", rng.below(8)));
            match rng.below(6) {
                0 => ledger.release(&of).into_iter().for_each(|gone| drop(&mut held, gone)),
                1 => ledger.release_oldest().into_iter().for_each(|gone| drop(&mut held, gone)),
                _ => {
                    let first = rng.below(40) as u32;
                    let taken = pages(first..first + rng.below(20) as u32);
                    let (count, gone) = ledger.keep(now, of, &taken, Span(rng.below(300)));
                    gone.into_iter().for_each(|gone| drop(&mut held, gone));
                    held.extend(&taken[..count]);
                }
            }
            while let Some(gone) = ledger.release_expired(now) {
                drop(&mut held, gone);
            }
            ledger.check().unwrap();
            assert!(f64::from(ledger.pages()) <= f64::from(total) * limits.max_share);
            assert_eq!(held.len(), ledger.pages() as usize);
            let mut all: Vec<PageId> = ledger.all().collect();
            all.sort_unstable();
            held.sort_unstable();
            assert_eq!(all, held);
            assert!(ledger.kept.values().all(|kept| kept.until <= now + limits.max_keep));
        }
    }
}
