//! What goes to disk, and in which order.

use super::rig::Order;
use super::*;

fn writes(rig: &Rig) -> Vec<PageKey> {
    rig.orders
        .iter()
        .filter_map(|o| if let Order::Write(_, key, _) = o { Some(*key) } else { None })
        .collect()
}

#[test]
fn a_page_is_written_after_the_one_it_follows_and_dropped_before_it() {
    let mut rig = Rig::new(limits(3, Some(20)));
    rig.put("abc");
    assert!(rig.orders.is_empty());
    // Room is needed: the oldest page that may leave is the last one.
    let put = rig.begin("w", "xy").unwrap().put;
    rig.arrive(put, 0);
    assert_eq!(writes(&rig), [key(chain("a")[0]), key(chain("ab")[1])], "20 bytes at a time");
    assert_eq!((rig.has("x"), rig.store.stats().waiting_bytes), (0, 10));
    rig.disk(None);
    rig.disk(None);
    assert_eq!((writes(&rig), rig.has("x")), (vec![key(chain("abc")[2])], 0));
    rig.disk(None);
    assert_eq!((rig.has("x"), rig.store.stats().ram.pages), (1, 3));
    rig.arrive(put, 1);
    rig.settle();
    assert_eq!((rig.has("xy"), rig.has("abc")), (2, 3));
    assert_eq!(rig.get("abc"), 3);
}

#[test]
fn pages_are_written_early_where_that_is_wished() {
    let all = limits(8, Some(20));
    let mut rig = Rig::new(PoolLimits { disk: all.disk.map(|d| DiskLimits { write_above: 0, ..d }), ..all });
    rig.put("abcd");
    rig.settle();
    assert_eq!((rig.files.len(), rig.store.stats().ram.pages), (4, 4));
}

#[test]
fn what_was_used_once_may_not_be_worth_a_write() {
    let all = limits(3, Some(20));
    let mut rig = Rig::new(PoolLimits { disk: all.disk.map(|d| DiskLimits { min_uses: 2, ..d }), ..all });
    rig.put("abc");
    assert_eq!(rig.get("ab"), 2);
    rig.put("xyz");
    rig.settle();
    assert!(rig.has_file("ab") && !rig.has_file("abc") && !rig.has_file("x"), "{:?}", rig.files);
}

#[test]
fn more_than_may_wait_is_not_waited_for() {
    let mut rig = Rig::new(limits(4, Some(20)));
    rig.put("abcd");
    let put = rig.begin("w", "xyz").unwrap().put;
    rig.arrive(put, 0);
    rig.arrive(put, 1);
    assert_eq!((rig.has("xyz"), rig.has("abcd")), (0, 4));
    rig.arrive(put, 2);
    assert_eq!((rig.has("xyz"), rig.has("abcd")), (1, 3), "dropped unwritten");
    rig.settle();
    assert_eq!((rig.ended[&put], rig.has("abcd")), ((3, PutEnd::Complete), 3));
}

#[test]
fn what_the_disk_deletes_for_its_age_is_not_written_again_until_it_is_used() {
    let all = limits(8, Some(3));
    let mut rig = Rig::new(PoolLimits { disk: all.disk.map(|d| DiskLimits { write_above: 0, ..d }), ..all });
    for text in ["a", "b", "c", "d", "e"] {
        rig.put(text);
        rig.settle();
    }
    assert_eq!((rig.store.stats().counts.written, rig.files.len()), (5, 3));
    assert!(!rig.has_file("a") && rig.has("a") == 1);
    assert_eq!(rig.get("a"), 1);
    rig.settle();
    assert!(rig.has_file("a") && !rig.has_file("c"), "{:?}", rig.files);
}

#[test]
fn a_page_whose_parent_could_not_be_written_is_not_kept_on_disk() {
    let mut rig = Rig::new(limits(2, Some(20)));
    rig.put("ab");
    let put = rig.begin("w", "x").unwrap().put;
    rig.arrive(put, 0);
    assert_eq!(writes(&rig).len(), 2);
    rig.disk(Some(DiskError::Permission));
    rig.disk(None);
    rig.settle();
    assert!(!rig.has_file("a") && !rig.has_file("ab"), "{:?}", rig.files);
    assert_eq!((rig.has("x"), rig.has("ab")), (1, 1), "the leaf was dropped");
    assert_eq!(rig.reports, [(DiskJob::Write, DiskError::Permission)]);
}

#[test]
fn a_run_longer_than_ram_goes_through_to_disk() {
    let mut rig = Rig::new(limits(3, Some(40)));
    assert_eq!(rig.put("abcdefghijklmn"), (14, PutEnd::Complete));
    assert_eq!(rig.get("abcdefghijklmn"), 14);
    let mut rig = Rig::new(limits(3, None));
    let begun = rig.begin("w", "abc").unwrap();
    (0..3).for_each(|i| rig.arrive(begun.put, i));
    assert_eq!(rig.begin("w", "abcd").unwrap_err(), PutRefusal::TooLarge { bytes: 40, limit: 30 });
}

#[test]
fn a_page_that_is_lost_ends_the_put_that_follows_it() {
    let mut rig = Rig::new(limits(1, Some(20)));
    rig.put("ab");
    rig.put("z");
    rig.settle();
    let begun = rig.begin("w", "abcd").unwrap();
    assert_eq!(begun.first, 2);
    let reader = rig.look_up("ab").reader.unwrap();
    rig.grant(reader, 2);
    rig.files.clear();
    rig.settle();
    assert_eq!((rig.cut[&reader], rig.ended[&begun.put]), (0, (2, PutEnd::ParentLost)));
}

/// Does all that the disk was asked to; it holds `most` files, and is full then.
fn settle_with(rig: &mut Rig, most: usize) {
    while let Some(order) = rig.orders.front() {
        let full = matches!(order, Order::Write(_, key, _) if !rig.files.contains_key(key) && rig.files.len() >= most);
        rig.disk(full.then_some(DiskError::NoSpace));
    }
}

/// A disk that is smaller than `pool.disk-size`, or shared with others: it is full all the time, and a pool has to live with it
/// as with a smaller one.
#[test]
fn a_disk_that_stays_full_is_a_smaller_one_and_said_to_be_full_once() {
    let all = limits(4, Some(1000));
    let mut rig = Rig::new(PoolLimits { disk: all.disk.map(|d| DiskLimits { write_above: 0, ..d }), ..all });
    let put = |rig: &mut Rig, n: u32, most| {
        let text: String =
            char::from_u32(0x21 + n % 90).into_iter().chain(char::from_u32(0x21 + n / 90)).collect();
        let begun = rig.begin("w", &text).unwrap();
        for index in 0..2 {
            rig.arrive(begun.put, index);
            settle_with(rig, most);
        }
        text
    };
    let texts: Vec<String> = (0..200).map(|n| put(&mut rig, n, 20)).collect();
    let counts = rig.store.stats().counts;
    assert!((1..=3).contains(&counts.no_space), "{counts:?}");
    assert!(counts.written >= 350 && counts.pauses == 0, "{counts:?}");
    assert_eq!(rig.reports, [(DiskJob::Write, DiskError::NoSpace)]);
    assert!(rig.files.len() >= 16, "{:?}", rig.files);
    // The latest are there, from disk too.
    for text in &texts[texts.len() - 4..] {
        assert_eq!(rig.get(text), 2);
    }
    // It is tried for more after five seconds each time: prompts come six seconds apart.
    let tried = |rig: &mut Rig, from: u32, most| {
        let before = rig.store.stats().counts.no_space;
        for n in from..from + 100 {
            rig.now = rig.now + Span::from_secs(6);
            put(rig, n, most);
        }
        rig.store.stats().counts.no_space - before
    };
    let times = tried(&mut rig, 200, 20);
    assert!((50..=100).contains(&times), "{times} times in ten minutes");
    assert_eq!(rig.reports.len(), 1, "it is known");
    // There is more room: it is used, and that it is full is news again afterwards.
    tried(&mut rig, 300, 60);
    assert!(rig.files.len() >= 50, "{}", rig.files.len());
    assert_eq!(rig.reports.len(), 2, "{:?}", rig.reports);
}

/// Nothing of a pool's is there that could make room: it is tried as one that fails, and used as soon as it takes a page.
#[test]
fn a_disk_that_is_full_of_what_is_not_ours_is_used_when_there_is_room() {
    let all = limits(4, Some(1000));
    let mut rig = Rig::new(PoolLimits { disk: all.disk.map(|d| DiskLimits { write_above: 0, ..d }), ..all });
    let put = |rig: &mut Rig, n: u32, most| {
        rig.now = rig.now + Span::from_secs(6);
        let text = char::from_u32(0x21 + n).unwrap().to_string();
        let begun = rig.begin("w", &text).unwrap();
        rig.arrive(begun.put, 0);
        settle_with(rig, most);
    };
    (0..20).for_each(|n| put(&mut rig, n, 0));
    let counts = rig.store.stats().counts;
    assert!(counts.written == 0 && counts.no_space > 5 && counts.pauses > 3, "{counts:?}");
    assert_eq!(rig.reports, [(DiskJob::Write, DiskError::NoSpace)]);
    (20..30).for_each(|n| put(&mut rig, n, 1000));
    assert!(rig.files.len() >= 9, "{:?}", rig.files);
}

/// A disk that takes nothing keeps what it has.
#[test]
fn a_disk_that_takes_nothing_loses_nothing_of_what_it_has() {
    for window in [10, 20, 40, 80] {
        let all = limits(2, Some(50));
        let disk = all.disk.map(|d| DiskLimits { write_window: window, ..d });
        let mut rig = Rig::new(PoolLimits { disk, incoming: 1000, ..all });
        rig.put("abcd");
        let before = rig.files.len();
        for text in ["p", "q", "r", "s", "t", "u", "v", "w", "x", "y"] {
            let begun = rig.begin("w", text).unwrap();
            rig.arrive(begun.put, 0);
            settle_with(&mut rig, 0);
        }
        assert_eq!(rig.store.stats().counts.pauses, 1);
        assert!(before >= 2 && rig.files.len() >= before, "{window}, {before}: {:?}", rig.files);
    }
}
