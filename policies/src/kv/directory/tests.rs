use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::rng::Rng;

fn worker(n: u64, life: u64) -> WorkerId {
    WorkerId::new(format!("w{n}").as_str().into(), life)
}

/// Pages of random hashes.
fn page(n: u64) -> PageHash {
    PageHash((u128::from(n) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes())
}

/// Pages that all have the same home, in few parts.
fn crowded(n: u64) -> PageHash {
    let mut bytes = [0; 16];
    bytes[0] = n as u8;
    bytes[8] = (n % 3) as u8;
    PageHash(bytes)
}

fn pages(of: impl IntoIterator<Item = u64>) -> Vec<PageHash> {
    of.into_iter().map(page).collect()
}

fn stored(pages: Vec<PageHash>) -> KvEvent {
    KvEvent::Stored { parent: None, pages, tokens: Vec::new() }
}

/// A member that has told everything.
fn joined(directory: &mut Directory, worker: &WorkerId, pages: &[PageHash]) {
    assert!(directory.join(worker));
    assert_eq!(directory.snapshot(worker, 0, 0, 1, pages), Feed::Applied);
}

fn hits(directory: &Directory, pages: &[PageHash], workers: &[WorkerId]) -> Vec<u32> {
    let mut out = vec![99];
    directory.hits(pages, workers, &mut out);
    out
}

#[test]
fn a_hit_is_the_run_of_pages_from_the_first_one_on() {
    let mut directory = Directory::new();
    let (a, b, c, d) = (worker(1, 1), worker(2, 1), worker(3, 1), worker(4, 1));
    joined(&mut directory, &a, &pages(0..40));
    joined(&mut directory, &b, &pages((0..20).chain(21..40)));
    joined(&mut directory, &c, &pages(1..40));
    let asked = [c.clone(), a.clone(), d, b.clone(), a.clone()];
    assert_eq!(hits(&directory, &pages(0..60), &asked), [0, 40, 0, 20, 40]);
    assert_eq!(hits(&directory, &pages(0..7), &asked), [0, 7, 0, 7, 7]);
    assert_eq!(hits(&directory, &[], &asked), [0; 5]);
    assert_eq!(hits(&directory, &pages(0..60), &[]), [0; 0]);
    assert_eq!(directory.holders(&page(20)), [a.clone(), c]);
    assert_eq!(directory.holders(&page(0)), [a, b]);
    assert_eq!(directory.holders(&page(40)), []);
    directory.check().unwrap();
}

#[test]
fn events_change_what_is_held_in_their_order() {
    let mut directory = Directory::new();
    let w = worker(1, 1);
    joined(&mut directory, &w, &[]);
    let events = [
        stored(pages(0..9)),
        KvEvent::Removed { pages: pages([8, 7, 77]) },
        stored(pages([7])),
        stored(pages([0])),
    ];
    assert_eq!(directory.events(&w, 1, &events), Feed::Applied);
    assert_eq!(hits(&directory, &pages(0..20), std::slice::from_ref(&w)), [8]);
    assert_eq!((directory.pages(), directory.workers()[0].pages), (8, 8));
    let events = [stored(pages(8..12)), KvEvent::Cleared, stored(pages(0..3))];
    assert_eq!(directory.events(&w, 2, &events), Feed::Applied);
    assert_eq!(hits(&directory, &pages(0..20), std::slice::from_ref(&w)), [3]);
    directory.check().unwrap();
}

#[test]
fn b84_after_a_gap_a_snapshot_sets_everything_right() {
    let mut directory = Directory::new();
    let w = worker(1, 1);
    joined(&mut directory, &w, &pages(0..4));
    assert_eq!(directory.events(&w, 1, &[stored(pages(4..6))]), Feed::Applied);
    assert_eq!(directory.events(&w, 1, &[stored(pages(6..9))]), Feed::Stale, "twice");
    // Number 2 says that pages 4 and 5 are gone, and is lost.
    assert_eq!(directory.events(&w, 3, &[stored(pages(6..9))]), Feed::Gap { expected: 2 });
    assert_eq!(directory.events(&w, 4, &[]), Feed::Waiting);
    assert_eq!(
        hits(&directory, &pages(0..9), std::slice::from_ref(&w)),
        [6],
        "what was known goes on counting"
    );
    assert!(!directory.workers()[0].current);
    assert_eq!(directory.snapshot(&w, 0, 0, 1, &pages(0..1)), Feed::Stale, "an old one");
    assert_eq!(directory.snapshot(&w, 4, 0, 1, &pages((0..4).chain(6..9))), Feed::Applied);
    assert_eq!(hits(&directory, &pages(0..9), std::slice::from_ref(&w)), [4]);
    assert_eq!(directory.events(&w, 4, &[stored(pages(4..5))]), Feed::Stale, "it is in the snapshot");
    assert_eq!(directory.events(&w, 5, &[stored(pages(4..5))]), Feed::Applied);
    assert_eq!(hits(&directory, &pages(0..9), std::slice::from_ref(&w)), [5]);
    directory.check().unwrap();
}

#[test]
fn a_snapshot_that_does_not_come_is_asked_for_again() {
    let mut directory = Directory::new();
    let (lost, there, late) = (worker(1, 1), worker(2, 1), worker(3, 1));
    assert!(directory.join(&lost));
    joined(&mut directory, &there, &[]);
    assert_eq!(directory.overdue(), [], "it was asked just now");
    assert!(directory.join(&late));
    assert_eq!(directory.overdue(), std::slice::from_ref(&lost));
    assert_eq!(directory.events(&lost, 1, &[]), Feed::Waiting);
    assert_eq!(directory.overdue(), [lost.clone(), late.clone()]);
    assert_eq!(directory.snapshot(&lost, 1, 0, 1, &[]), Feed::Applied);
    assert_eq!(directory.events(&there, 2, &[]), Feed::Gap { expected: 1 });
    assert_eq!(directory.overdue(), std::slice::from_ref(&late));
    directory.remove(&late);
    assert_eq!(directory.overdue(), [there]);
}

#[test]
fn a_snapshot_in_parts_counts_when_it_is_complete() {
    let mut directory = Directory::new();
    let w = worker(1, 1);
    let asked = std::slice::from_ref(&w);
    joined(&mut directory, &w, &pages(0..2));
    assert_eq!(directory.events(&w, 2, &[]), Feed::Gap { expected: 1 });
    assert_eq!(directory.snapshot(&w, 2, 0, 3, &pages(0..3)), Feed::Waiting);
    assert_eq!(hits(&directory, &pages(0..9), asked), [2]);
    directory.check().unwrap();
    assert_eq!(directory.snapshot(&w, 2, 2, 3, &pages(6..9)), Feed::Gap { expected: 1 }, "one is missing");
    assert_eq!(directory.snapshot(&w, 2, 1, 3, &pages(3..6)), Feed::Gap { expected: 1 }, "too late");
    assert_eq!(directory.snapshot(&w, 2, 3, 3, &[]), Feed::Gap { expected: 1 }, "there is no such part");
    assert_eq!(directory.snapshot(&w, 2, 0, 0, &[]), Feed::Gap { expected: 1 });
    assert_eq!(directory.snapshot(&w, 2, 0, 3, &pages(50..60)), Feed::Waiting);
    // A newer one starts over.
    assert_eq!(directory.snapshot(&w, 3, 0, 2, &pages(0..3)), Feed::Waiting);
    assert_eq!(directory.snapshot(&w, 3, 1, 2, &pages(3..6)), Feed::Applied);
    assert_eq!(hits(&directory, &pages(0..9), asked), [6]);
    assert_eq!(directory.holders(&page(55)), []);
    // What is known overtakes the parts.
    assert_eq!(directory.snapshot(&w, 3, 0, 2, &pages(0..3)), Feed::Waiting);
    assert_eq!(directory.events(&w, 4, &[stored(pages(6..7))]), Feed::Applied);
    assert_eq!(directory.snapshot(&w, 3, 1, 2, &pages(3..6)), Feed::Stale);
    assert_eq!(hits(&directory, &pages(0..9), asked), [7]);
    while directory.tidy(64) {}
    assert_eq!(directory.pages(), 7);
    directory.check().unwrap();
}

#[test]
fn b36_a_new_life_starts_at_nothing_and_an_old_one_is_not_heard() {
    let mut directory = Directory::new();
    let (old, new) = (worker(1, 1), worker(1, 2));
    joined(&mut directory, &old, &pages(0..9));
    assert!(!directory.join(&old), "it is a member");
    assert!(directory.join(&new));
    let asked = [old.clone(), new.clone()];
    assert_eq!(hits(&directory, &pages(0..9), &asked), [0, 0]);
    assert!(!directory.join(&old));
    assert_eq!(directory.events(&old, 1, &[stored(pages(0..9))]), Feed::Stale);
    assert_eq!(directory.snapshot(&old, 7, 0, 1, &pages(0..9)), Feed::Stale);
    directory.remove(&old);
    assert_eq!(directory.snapshot(&new, 0, 0, 1, &pages(0..5)), Feed::Applied);
    assert_eq!((directory.pages_of(&old), directory.pages_of(&new)), (0, 5));
    assert_eq!(hits(&directory, &pages(0..9), &asked), [0, 5]);
    directory.remove(&new);
    assert_eq!(hits(&directory, &pages(0..9), &asked), [0, 0]);
    assert_eq!(
        directory.events(&new, 1, &[stored(pages(0..9))]),
        Feed::Stale,
        "late news of a removed worker"
    );
    assert_eq!((directory.pages(), directory.bytes(), directory.workers()), (0, 0, vec![]));
    directory.check().unwrap();
}

/// 200 lives of one name, with 100 prefixes of 62 pages each, beside a worker that stays.
#[test]
fn b36_churn_leaves_nothing_behind() {
    let mut directory = Directory::new();
    let stays = worker(0, 1);
    joined(&mut directory, &stays, &pages(0..1000));
    let (baseline, mut most) = (directory.bytes(), 0);
    for life in 1..=200 {
        let w = worker(1, life);
        joined(&mut directory, &w, &[]);
        let own = |prefix: u64| pages((0..62).map(|i| 1_000_000 + (life * 100 + prefix) * 62 + i));
        for prefix in 0..100 {
            assert_eq!(directory.events(&w, prefix + 1, &[stored(own(prefix))]), Feed::Applied);
        }
        assert_eq!(hits(&directory, &own(99), std::slice::from_ref(&w)), [62]);
        most = most.max(directory.pages());
        directory.remove(&w);
        assert!(directory.holders(&own(0)[0]).is_empty());
    }
    assert!(most < 1000 + 6 * 6200, "swept while others tell: {most} pages at most");
    while directory.tidy(8) {}
    assert_eq!(directory.pages(), 1000);
    assert!(directory.bytes() <= baseline * 2, "{} bytes, {baseline} before", directory.bytes());
    assert_eq!(hits(&directory, &pages(0..1000), &[stays, worker(1, 200)]), [1000, 0]);
    directory.check().unwrap();
}

#[test]
fn more_workers_than_a_map_has_sets() {
    let mut directory = Directory::new();
    let workers: Vec<WorkerId> = (0..200).map(|n| worker(n, 1)).collect();
    for (n, w) in (0..).zip(&workers) {
        joined(&mut directory, w, &pages(0..=n));
    }
    assert_eq!(
        hits(&directory, &pages(0..150), &workers),
        (0..200).map(|n| 150.min(n + 1)).collect::<Vec<_>>()
    );
    assert_eq!(directory.holders(&page(0)).len(), 200);
    directory.check().unwrap();
    workers.iter().for_each(|w| directory.remove(w));
    assert_eq!((directory.pages(), directory.bytes()), (0, 0));
}

#[test]
fn the_check_sees_what_is_broken() {
    let mut directory = Directory::new();
    joined(&mut directory, &worker(1, 1), &pages(0..9));
    joined(&mut directory, &worker(2, 1), &pages(0..9));
    let mut broken = directory.clone();
    broken.add(Slot { group: 0, slot: 40 }, &pages(0..1));
    assert_eq!(broken.check().unwrap_err().name, "directory_map");
    let mut broken = directory.clone();
    broken.lives.remove(&worker(2, 1).node);
    assert_eq!(broken.check().unwrap_err().name, "directory_sets");
    let mut broken = directory;
    broken.lives.get_mut(&worker(2, 1).node).unwrap().held = broken.lives[&worker(1, 1).node].held;
    assert_eq!(broken.check().unwrap_err().name, "directory_owner");
}

/// A worker as it is, and what the directory should know of it.
#[derive(Default)]
struct Truth {
    life: u64,
    seq: u64,
    pages: BTreeSet<PageHash>,
    known: BTreeSet<PageHash>,
    current: bool,
}

/// A random history of joins, losses, lost messages and snapshots; what is known is compared after each step.
fn history(seed: u64, page: fn(u64) -> PageHash, names: u64) {
    let mut rng = Rng::new(seed);
    let mut directory = Directory::new();
    let mut members: BTreeMap<u64, Truth> = BTreeMap::new();
    let mut lives = 0;
    for _ in 0..400 {
        let name = rng.below(names);
        let id = |t: &Truth| worker(name, t.life);
        let some = |rng: &mut Rng| (0..=rng.below(12)).map(|_| page(rng.below(120))).collect::<Vec<_>>();
        match (members.get_mut(&name), rng.below(12)) {
            (None, _) | (_, 0) => {
                lives += 1;
                let truth = Truth { life: lives, ..Truth::default() };
                assert!(directory.join(&id(&truth)));
                members.insert(name, truth);
            }
            (Some(truth), 1) => {
                directory.remove(&id(truth));
                members.remove(&name);
            }
            (Some(truth), 2..=4) => {
                let parts = 1 + rng.below(3) as u32;
                let all: Vec<PageHash> = truth.pages.iter().copied().collect();
                for part in 0..parts {
                    let share = all.iter().copied().skip(part as usize).step_by(parts as usize);
                    let fed =
                        directory.snapshot(&id(truth), truth.seq, part, parts, &share.collect::<Vec<_>>());
                    assert_eq!(fed, if part + 1 == parts { Feed::Applied } else { Feed::Waiting });
                    directory.check().unwrap();
                }
                (truth.known, truth.current) = (truth.pages.clone(), true);
            }
            (Some(truth), what) => {
                let event = match what {
                    5 if rng.below(4) == 0 => KvEvent::Cleared,
                    5..=7 => KvEvent::Removed { pages: some(&mut rng) },
                    _ => stored(some(&mut rng)),
                };
                match &event {
                    KvEvent::Cleared => truth.pages.clear(),
                    KvEvent::Removed { pages } => pages.iter().for_each(|p| _ = truth.pages.remove(p)),
                    KvEvent::Stored { pages, .. } => truth.pages.extend(pages),
                }
                truth.seq += 1;
                if rng.below(20) == 0 {
                    truth.current = false;
                } else {
                    let fed = directory.events(&id(truth), truth.seq, &[event]);
                    assert_eq!(fed == Feed::Applied, truth.current, "{fed:?}");
                    if truth.current {
                        truth.known.clone_from(&truth.pages);
                    }
                }
            }
        }
        if rng.below(8) == 0 {
            directory.tidy(rng.below(300) as usize);
        }
        directory.check().unwrap();
        let prompt: Vec<PageHash> = (0..rng.below(30)).map(page).collect();
        let workers: Vec<WorkerId> = members.iter().map(|(n, t)| worker(*n, t.life)).collect();
        let run = |t: &Truth| prompt.iter().take_while(|p| t.known.contains(p)).count() as u32;
        assert_eq!(hits(&directory, &prompt, &workers), members.values().map(run).collect::<Vec<_>>());
        let any = page(rng.below(120));
        let mut holders: Vec<WorkerId> =
            members.iter().filter(|(_, t)| t.known.contains(&any)).map(|(n, t)| worker(*n, t.life)).collect();
        holders.sort();
        assert_eq!(directory.holders(&any), holders);
        for view in directory.workers() {
            let truth = members.values().find(|t| t.life == view.worker.incarnation).unwrap();
            assert_eq!(view.pages, truth.known.len() as u64);
            assert_eq!(directory.pages_of(&view.worker), truth.known.len());
        }
    }
    while directory.tidy(256) {}
    directory.check().unwrap();
    let left: Vec<WorkerId> = directory.workers().into_iter().map(|v| v.worker).collect();
    left.iter().for_each(|w| directory.remove(w));
    assert_eq!((directory.pages(), directory.bytes()), (0, 0));
}

#[test]
fn every_history_is_known_exactly() {
    for seed in 0..60 {
        let (page, names) = (if seed % 2 == 0 { page } else { crowded }, if seed % 3 == 0 { 150 } else { 5 });
        if let Err(panic) = std::panic::catch_unwind(move || history(seed, page, names)) {
            println!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
