//! One test a case that was reported of other systems (what they have in common is in the names).

use super::*;

/// B65, B76: a page is found when all of it is there, not before.
#[test]
fn a_page_is_visible_when_it_is_complete() {
    let mut rig = Rig::new(limits(8, None));
    let put = rig.begin("w", "abc").unwrap().put;
    assert_eq!(rig.has("abc"), 0);
    rig.arrive(put, 0);
    assert_eq!((rig.has("abc"), rig.get("abc")), (1, 1));
    rig.arrive(put, 1);
    rig.arrive(put, 2);
    assert_eq!(rig.ended[&put], (3, PutEnd::Complete));
    assert_eq!(rig.get("abcd"), 3);
}

/// B66: what was flushed is found after a restart, with nothing left over; what a kill left is consistent.
#[test]
fn a_restart_finds_what_was_written() {
    let mut rig = Rig::new(limits(40, Some(50)));
    for text in ["aaaa", "aabb", "bcde", "c"] {
        rig.put(text);
    }
    assert!(rig.files.is_empty(), "RAM is not full");
    rig.does(|store, now, fx| store.close(now, fx));
    assert_eq!(rig.begin("w", "dd"), Err(PutRefusal::Closing));
    while !rig.store.is_flushed(rig.now) {
        assert!(rig.disk(None).is_some());
    }
    let mut rig = rig.restarted(limits(40, Some(50)));
    for text in ["aaaa", "aabb", "bcde", "c"] {
        assert_eq!(rig.get(text), text.len());
    }
    assert_eq!((rig.files.len(), rig.store.announce().contents.len()), (11, 4), "aa is shared");
    // Pages of which the ones before are missing, and more than fit, are deleted before anything is written.
    rig.files.insert(key(chain("zz")[1]), Some(chain("zz")[0]));
    let mut rig = rig.restarted(limits(40, Some(5)));
    assert_eq!(rig.store.stats().disk.pages, 5);
    rig.settle();
    assert_eq!(rig.files.len(), 5);
    assert!(!rig.files.contains_key(&key(chain("zz")[1])));
}

/// B67: the first time that the disk is full some of it is given up; when that does not help nothing is written for a
/// while, and then one page is tried. Puts and gets go on.
#[test]
fn a_full_disk_is_pressure() {
    let mut rig = Rig::new(limits(2, Some(100)));
    rig.put("abcdefgh");
    rig.put("rs");
    rig.settle();
    let files = rig.files.len();
    assert_eq!(files, 8, "{:?}", rig.files);
    let put = rig.begin("w", "xyz").unwrap().put;
    rig.arrive(put, 0);
    rig.arrive(put, 1);
    assert!(matches!(rig.disk(Some(DiskError::NoSpace)), Some(Order::Write(..))));
    assert_eq!(rig.store.stats().counts.evicted_disk, 1, "the oldest leaf was given up");
    while rig.store.stats().counts.pauses == 0 {
        let order = *rig.orders.front().unwrap();
        let full = matches!(order, Order::Write(..)).then_some(DiskError::NoSpace);
        rig.disk(full);
    }
    assert_eq!(rig.reports, [(DiskJob::Write, DiskError::NoSpace)], "once");
    // Nothing waits for the disk now.
    rig.arrive(put, 2);
    rig.put("klm");
    assert_eq!(rig.orders.iter().filter(|o| matches!(o, Order::Write(..))).count(), 0);
    let there = rig.has("abcdefgh");
    assert!(there >= 5 && rig.get("abcdefgh") == there, "reads go on");
    // It is tried when the time is up, with one page, and goes on when that succeeds.
    let due = rig.store.next_deadline().unwrap();
    assert!(due > rig.now);
    rig.now = due;
    rig.does(|store, now, fx| store.tick(now, fx));
    rig.put("nopq");
    rig.settle();
    let stats = rig.store.stats();
    assert!(!stats.paused && stats.counts.pauses == 1 && rig.has_file("n"), "{stats:?}");
}

/// B67: the cap holds whatever comes.
#[test]
fn the_disk_holds_what_it_may() {
    let mut rig = Rig::new(limits(2, Some(5)));
    for n in 0..40_u8 {
        let text: String =
            [b'a' + n % 26, b'a' + n / 26, n].iter().map(|b| *b as char).filter(char::is_ascii).collect();
        rig.put(&text);
        assert!(rig.files.len() <= 6, "{:?}", rig.files);
    }
    rig.settle();
    assert_eq!(rig.store.stats().disk.pages, rig.files.len() as u64);
    assert!(rig.files.len() <= 5);
}

/// B68: a file that is gone is a page that is gone; one that may not be touched is left alone, counted and told once.
#[test]
fn files_that_are_gone_or_forbidden_are_nothing_to_fail_about() {
    let mut rig = Rig::new(limits(1, Some(20)));
    rig.put("abcd");
    rig.put("wxyz");
    rig.put("q");
    rig.settle();
    rig.files.remove(&key(chain("abc")[2]));
    let hit = rig.look_up("abcd");
    let reader = hit.reader.unwrap();
    rig.grant(reader, 4);
    rig.settle();
    assert_eq!((hit.pages, rig.given[&reader].len(), rig.cut[&reader]), (4, 2, 2));
    rig.release(reader);
    assert_eq!((rig.has("abcd"), rig.has_file("abcd")), (2, false), "what follows it is gone too");
    assert_eq!(rig.store.stats().counts.lost, 1);
    assert_eq!(rig.put("abcd"), (4, PutEnd::Complete), "it can be put again");
    // Two that this process may not read.
    let before = rig.store.stats().stuck_bytes;
    for text in ["wxyz", "abcd"] {
        let reader = rig.look_up(text).reader.unwrap();
        rig.grant(reader, 1);
        while let Some(order) = rig.orders.front().copied() {
            rig.disk(matches!(order, Order::Read(..)).then_some(DiskError::Permission));
        }
        assert_eq!(rig.cut.get(&reader), Some(&0), "{text}");
        rig.release(reader);
    }
    let stats = rig.store.stats();
    assert_eq!(
        (rig.reports.as_slice(), stats.counts.permission),
        (&[(DiskJob::Read, DiskError::Permission)][..], 2)
    );
    assert_eq!(stats.stuck_bytes, before + 24, "the files take room");
    // Deleting fails: likewise.
    let mut rig = Rig::new(limits(1, Some(2)));
    rig.put("ab");
    let put = rig.begin("w", "cdefgh").map(|begun| begun.put);
    let Err(PutRefusal::TooLarge { .. }) = put else { panic!("{put:?}") };
    for text in ["c", "d", "e"] {
        let put = rig.begin("w", text).unwrap().put;
        rig.arrive(put, 0);
        while let Some(order) = rig.orders.front().copied() {
            rig.disk(matches!(order, Order::Delete(_)).then_some(DiskError::Permission));
        }
        assert_eq!(rig.ended[&put], (1, PutEnd::Complete));
    }
    let stats = rig.store.stats();
    assert!(stats.stuck_bytes > 0 && stats.counts.permission > 1, "{stats:?}");
    assert_eq!(rig.reports, [(DiskJob::Delete, DiskError::Permission)]);
}

/// B69: a reader keeps its pages while they are given, however long the disk takes; one that does nothing loses them, and
/// is told.
#[test]
fn a_slow_read_keeps_its_pages() {
    let mut rig = Rig::new(limits(2, Some(20)));
    rig.put("abcdef");
    rig.put("xy");
    rig.settle();
    let reader = rig.look_up("abcdef").reader.unwrap();
    rig.grant(reader, 6);
    for _ in 0..5 {
        rig.now = rig.now + Span::from_secs(100);
        rig.does(|store, now, fx| store.tick(now, fx));
    }
    assert!(rig.cut.is_empty(), "it waits for us");
    rig.settle();
    assert_eq!(rig.given[&reader].len(), 6);
    rig.now = rig.now + Span::from_secs(100);
    rig.does(|store, now, fx| store.tick(now, fx));
    assert_eq!(rig.cut[&reader], 0);
    let ignored = rig.store.stats().counts.ignored;
    rig.grant(reader, 1);
    assert_eq!(rig.store.stats().counts.ignored, ignored + 1);
}

/// B70: whoever joins is told everything, in an order in which it can be found, and then what changes.
#[test]
fn contents_are_told_anew_with_an_epoch() {
    let mut rig = Rig::new(limits(5, None));
    rig.put("abcd");
    rig.put("ab2");
    let all = rig.store.announce();
    assert_eq!(all.epoch, 2);
    let mut pages: Vec<PageHash> = Vec::new();
    for (fingerprint, event) in &all.contents {
        let KvEvent::Stored { parent, pages: more, .. } = event else { panic!("{event:?}") };
        assert!(*fingerprint == rig::FP && parent.is_none_or(|p| pages.contains(&p)), "{all:?}");
        pages.extend(more);
    }
    pages.sort_unstable();
    let mut held: Vec<PageHash> = rig.told.iter().map(|key| key.hash).collect();
    held.sort_unstable();
    assert_eq!(pages, held);
    // Another page changes what was told: `Rig::listen` checks.
    rig.put("z");
    assert_eq!(rig.store.stats().pages, 5);
}

/// B71: what a dead writer has begun is in nobody's way, and what was complete stays.
#[test]
fn a_dead_writer_blocks_nothing() {
    let mut rig = Rig::new(limits(8, None));
    let first = rig.begin("w1", "abc").unwrap().put;
    rig.arrive(first, 0);
    assert_eq!(rig.begin("w2", "abc"), Err(PutRefusal::UnderWay));
    rig.does(|store, now, fx| store.owner_lost(now, &WorkerId::new("w1".into(), 2), fx));
    assert_eq!(rig.begin("w2", "abc"), Err(PutRefusal::UnderWay), "that was an older life");
    rig.does(|store, now, fx| store.owner_lost(now, &owner("w1"), fx));
    assert_eq!(rig.ended[&first], (1, PutEnd::OwnerLost));
    let second = rig.begin("w2", "abc").unwrap();
    assert_eq!(second.first, 1);
    rig.arrive(first, 1);
    rig.arrive(second.put, 1);
    rig.arrive(second.put, 2);
    assert_eq!(rig.ended[&second.put], (3, PutEnd::Complete));
    // Without word of its death, after the lease.
    let third = rig.begin("w3", "xyz").unwrap().put;
    rig.now = rig.store.next_deadline().unwrap();
    rig.does(|store, now, fx| store.tick(now, fx));
    assert_eq!(rig.ended[&third], (0, PutEnd::Idle));
    assert_eq!(rig.put("xyz"), (3, PutEnd::Complete));
}

/// B72: what was found stays until it is used, also where RAM holds no more than that.
#[test]
fn what_was_found_stays() {
    let text = "abcdefghijklmn";
    let mut rig = Rig::new(limits(14, None));
    rig.put(text);
    let readers: Vec<ReaderId> = (0..200).map(|_| rig.look_up(text).reader.unwrap()).collect();
    assert_eq!(rig.put("xyz"), (0, PutEnd::NoRoom));
    for reader in readers {
        rig.grant(reader, 99);
        assert_eq!(rig.given[&reader].len(), 14);
        rig.release(reader);
    }
    assert_eq!(rig.put("xyz"), (3, PutEnd::Complete));
    assert_eq!(rig.has(text), 11, "from its end");
}

/// B73: pages of another fingerprint (tenant, adapter) are other pages.
#[test]
fn no_tenant_finds_the_pages_of_another() {
    let mut rig = Rig::new(limits(8, None));
    rig.put("abc");
    let others = FP_OF_B.of_tenant(Some(&"b".into()));
    assert_eq!(rig.store.holds(&others, &chain("abc")), 0);
    let run = Run { fingerprint: others, parent: None, pages: chain("abc"), page_bytes: 10 };
    let begun = rig.does(|store, now, _| store.begin(now, &owner("w"), run)).unwrap();
    assert_eq!(begun.first, 0);
    rig.arrive(begun.put, 0);
    assert_eq!((rig.store.holds(&others, &chain("abc")), rig.has("abc")), (1, 3));
}

const FP_OF_B: Fingerprint = rig::FP;

/// B74: a page is found only after the page that it follows.
#[test]
fn a_page_is_its_name_and_what_it_follows() {
    let mut rig = Rig::new(limits(8, None));
    rig.put("abc");
    let [a, b, c] = chain("abc")[..] else { panic!() };
    assert_eq!(rig.store.holds(&rig::FP, &[b, c]), 0);
    assert_eq!(rig.store.holds(&rig::FP, &[a, c]), 1);
    let run = |parent, pages: &[PageHash]| Run {
        fingerprint: rig::FP,
        parent,
        pages: pages.to_vec(),
        page_bytes: 10,
    };
    let mut refused = |run| rig.does(|store, now, _| store.begin(now, &owner("w"), run)).unwrap_err();
    assert_eq!(refused(run(None, &[b])), PutRefusal::Mismatch);
    assert_eq!(refused(run(Some(a), &[c])), PutRefusal::Mismatch);
    assert_eq!(refused(run(Some(b), &[c])), PutRefusal::Known);
    assert_eq!(refused(run(Some(chain("x")[0]), &chain("xy")[1..])), PutRefusal::NoParent);
    // A run that names a page twice ends there.
    let [x, y] = chain("xy")[..] else { panic!() };
    let put = rig.does(|store, now, _| store.begin(now, &owner("w"), run(None, &[x, y, x]))).unwrap().put;
    (0..3).for_each(|index| rig.arrive(put, index));
    assert_eq!(rig.ended[&put], (2, PutEnd::OutOfOrder));
}

/// B76: a run ends where a page cannot be had.
#[test]
fn a_reader_gets_what_was_read() {
    let text = "abcdefghijkl";
    let mut rig = Rig::new(limits(1, Some(20)));
    rig.put(text);
    rig.put("x");
    rig.settle();
    let (one, two) = (rig.look_up(text).reader.unwrap(), rig.look_up(text).reader.unwrap());
    rig.grant(one, 5);
    rig.grant(two, 12);
    let mut reads = 0;
    while let Some(order) = rig.orders.front().copied() {
        reads += u32::from(matches!(order, Order::Read(..)));
        let bad = matches!(order, Order::Read(_, page) if page == key(chain(text)[7]));
        rig.disk(bad.then_some(DiskError::Missing));
    }
    assert_eq!((rig.given[&one].len(), rig.given[&two].len()), (5, 7));
    assert_eq!((rig.cut[&one], rig.cut[&two]), (7, 7));
    assert!(reads <= 12, "both waited for the same reads: {reads}");
    rig.grant(one, 9);
    rig.settle();
    assert_eq!(rig.given[&one].len(), 7);
}

use super::rig::Order;
