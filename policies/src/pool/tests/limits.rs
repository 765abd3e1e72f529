//! What is refused, and what comes out of turn.

use super::*;

#[test]
fn a_put_larger_than_everything_is_refused() {
    let mut rig = Rig::new(limits(2, Some(3)));
    assert_eq!(rig.begin("w", "abcdef"), Err(PutRefusal::TooLarge { bytes: 60, limit: 56 }));
    let run = Run { fingerprint: rig::FP, parent: None, pages: chain("a"), page_bytes: 21 };
    let refused = rig.does(|store, now, _| store.begin(now, &owner("w"), run)).unwrap_err();
    assert_eq!(refused, PutRefusal::TooLarge { bytes: 21, limit: 20 });
    assert_eq!(refused.to_string(), "21 bytes exceed the 20 bytes that this pool keeps");
    let huge = Run { fingerprint: rig::FP, parent: None, pages: chain("ab"), page_bytes: u64::MAX };
    assert!(rig.does(|store, now, _| store.begin(now, &owner("w"), huge)).is_err());
    assert_eq!(rig.begin("w", ""), Err(PutRefusal::Known), "nothing is missing");
    let none = Run { fingerprint: rig::FP, parent: None, pages: chain("a"), page_bytes: 0 };
    assert_eq!(rig.does(|store, now, _| store.begin(now, &owner("w"), none)), Err(PutRefusal::NoBytes));
}

#[test]
fn pages_come_in_order_and_not_after_the_end() {
    let mut rig = Rig::new(limits(8, None));
    let put = rig.begin("w", "abc").unwrap().put;
    rig.arrive(put, 1);
    assert_eq!(rig.ended[&put], (0, PutEnd::OutOfOrder));
    rig.arrive(put, 0);
    assert_eq!((rig.has("a"), rig.store.stats().counts.ignored), (0, 1));
    let put = rig.begin("w", "abc").unwrap().put;
    rig.does(|store, now, fx| store.arrived(now, put, 0, 9, fx));
    assert_eq!(rig.ended[&put], (0, PutEnd::OutOfOrder), "too short");
    let put = rig.begin("w", "abc").unwrap().put;
    rig.arrive(put, 0);
    rig.does(|store, now, fx| store.commit(now, put, fx));
    assert_eq!(rig.ended[&put], (1, PutEnd::Complete));
    let put = rig.begin("w", "abc").unwrap().put;
    rig.does(|store, now, fx| store.abort(now, put, fx));
    assert_eq!(rig.ended[&put], (1, PutEnd::Aborted));
    rig.does(|store, now, fx| store.abort(now, put, fx));
    rig.does(|store, now, fx| store.commit(now, put, fx));
    rig.does(|store, now, fx| store.wrote(now, OpId(99), Ok(()), fx));
    rig.does(|store, now, fx| store.read(now, OpId(99), Ok(()), fx));
    assert_eq!(rig.store.stats().counts.ignored, 5);
}

#[test]
fn a_commit_waits_for_what_has_come() {
    let mut rig = Rig::new(limits(2, Some(20)));
    rig.put("ab");
    let put = rig.begin("w", "xyz").unwrap().put;
    rig.arrive(put, 0);
    rig.does(|store, now, fx| store.commit(now, put, fx));
    assert!(!rig.ended.contains_key(&put));
    rig.arrive(put, 1);
    assert_eq!(rig.store.stats().counts.ignored, 1, "nothing comes after it");
    rig.settle();
    assert_eq!((rig.ended[&put], rig.has("x")), ((1, PutEnd::Complete), 1));
}

#[test]
fn a_reader_gets_what_it_does_not_have_in_its_own_time() {
    let mut rig = Rig::new(limits(8, None));
    rig.put("abcd");
    let hit = rig.does(|store, now, _| store.look_up(now, &owner("r"), &rig::FP, &chain("abcdef"), 4));
    assert_eq!(hit, Hit { pages: 4, reader: None });
    let hit = rig.does(|store, now, _| store.look_up(now, &owner("r"), &rig::FP, &chain("abcdef"), 0));
    let reader = hit.reader.unwrap();
    rig.grant(reader, 1);
    assert_eq!(rig.given[&reader].len(), 1);
    rig.grant(reader, 99);
    assert_eq!(rig.given[&reader].len(), 4);
    rig.does(|store, now, fx| store.owner_lost(now, &owner("r"), fx));
    assert_eq!(rig.cut[&reader], 0);
    rig.release(reader);
    assert_eq!(rig.store.stats().readers, 0);
}
