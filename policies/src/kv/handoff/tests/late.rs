//! Receivers that have their pages when the sender begins, or later.

use super::*;

fn waiting(tokens: u32, config: HandoffConfig) -> Decode {
    let mut d = Decode::unreserved(tokens, config);
    d.on(ReceiverEvent::Accepted);
    assert_eq!(d.on(ReceiverEvent::Begun), [ReceiverEffect::Reserve]);
    d
}

fn ask_later() -> Asked {
    Asked { window: 0, reserved: false, ..asked() }
}

#[test]
fn pages_are_reserved_when_the_sender_begins_and_sent_when_they_are() {
    let mut d = waiting(100, config(4, 4));
    d.ignores(KEY, ReceiverEvent::Begun);
    let fx = d.on(ReceiverEvent::Reserved { cached_pages: 2 });
    assert_eq!(fx, [ReceiverEffect::Open { first_page: 2, window: 4 }]);
    d.ignores(KEY, ReceiverEvent::Reserved { cached_pages: 2 });
    assert_eq!(d.on(pages(2, 4)), [ReceiverEffect::Import { first: 2, count: 4 }]);
    assert_eq!(d.on(imported(2, 4)), [ReceiverEffect::GrantCredit(1)]);
    d.on(last(100, 6, 1));
    let fx = d.on(imported(6, 1));
    assert_eq!(fx[..2], [ReceiverEffect::Commit { tokens: 100, pages: 7, ends: false }, ReceiverEffect::Ack]);

    let mut p = Prefill::asked(ask_later(), config(4, 4));
    assert_eq!(p.on(SenderEvent::Begun), [SenderEffect::Announce]);
    assert_eq!(p.on(SenderEvent::Begun), [], "once");
    assert_eq!(p.on(SenderEvent::Computed { pages: 4 }), [], "there are no pages to send to");
    assert_eq!(p.on(SenderEvent::Prefilled { tokens: 100, ends: false }), []);
    let fx = p.on(SenderEvent::Opened { first_page: 2, window: 4 });
    assert_eq!(fx, [SenderEffect::Open { first_page: 2 }, SenderEffect::Export { first: 2, count: 4 }]);
    p.ignores(KEY, SenderEvent::Opened { first_page: 0, window: 4 });
}

#[test]
fn what_was_lost_before_there_was_a_receiver_is_not_sent() {
    let mut p = Prefill::asked(ask_later(), config(4, 4));
    p.on(SenderEvent::Begun);
    p.on(SenderEvent::Computed { pages: 5 });
    p.on(SenderEvent::Computed { pages: 0 });
    let fx = p.on(SenderEvent::Opened { first_page: 0, window: 4 });
    assert_eq!(fx, [SenderEffect::Open { first_page: 0 }], "it is computed again first");
    let fx = p.on(SenderEvent::Computed { pages: 3 });
    assert_eq!(fx, [SenderEffect::Export { first: 0, count: 3 }]);
}

#[test]
fn whoever_waits_for_room_says_that_it_is_there() {
    let limits = config(4, 4);
    let lease = limits.lease;
    let mut d = waiting(100, limits);
    let mut p = Prefill::asked(ask_later(), limits);
    for _ in 0..20 {
        let due = d.machine.next_deadline().unwrap();
        assert!(due < p.machine.next_deadline().unwrap(), "before the sender gives up");
        (d.now, p.now) = (due, due);
        assert_eq!(d.does(|m, now, fx| m.tick(now, fx)), [ReceiverEffect::GrantCredit(0)]);
        assert_eq!(p.on(SenderEvent::Credit { pages: 0 }), []);
    }
    assert!(d.now > ms(0) + lease + lease, "longer than any lease");
    assert_eq!(
        d.on(ReceiverEvent::Reserved { cached_pages: 0 }),
        [ReceiverEffect::Open { first_page: 0, window: 4 }]
    );
}

#[test]
fn a_lost_sender_leaves_the_one_that_waits_for_room_to_itself() {
    for begun in [false, true] {
        let mut d = Decode::unreserved(100, config(4, 4));
        d.on(ReceiverEvent::Accepted);
        if begun {
            d.on(ReceiverEvent::Begun);
        }
        let fx = d.does(|m, now, fx| m.link_lost(now, fx));
        assert_eq!(fx[0], ReceiverEffect::Fallback { valid_pages: 0, why: Cause::LinkLost });
        d.ignores(KEY, ReceiverEvent::Reserved { cached_pages: 0 });
    }
}

#[test]
fn a_client_that_leaves_while_there_is_no_room_ends_both() {
    let mut d = waiting(100, config(4, 4));
    let fx = d.does(|m, now, fx| m.cancel(now, fx));
    assert_eq!(fx[..2], [ReceiverEffect::CancelPeer(Cause::Own), ReceiverEffect::Free]);
    let mut p = Prefill::asked(ask_later(), config(4, 4));
    p.on(SenderEvent::Prefilled { tokens: 100, ends: false });
    assert_eq!(p.on(SenderEvent::PeerCancelled)[0], SenderEffect::Release);
}

/// A sender that never begins is given up like one that stops.
#[test]
fn a_turn_that_does_not_come_is_not_waited_for() {
    let limits = config(4, 4);
    let mut d = Decode::unreserved(100, limits);
    d.on(ReceiverEvent::Accepted);
    d.now = d.machine.next_deadline().unwrap();
    let fx = d.does(|m, now, fx| m.tick(now, fx));
    let given_up = ReceiverEffect::Fallback { valid_pages: 0, why: Cause::NoProgress };
    assert_eq!(fx[..2], [ReceiverEffect::CancelPeer(Cause::NoProgress), given_up]);
}

/// What comes before there are pages to write it to is not written.
#[test]
fn nothing_is_taken_before_there_are_pages() {
    for event in [pages(0, 1), last(100, 0, 0)] {
        let mut d = waiting(100, config(4, 4));
        let fx = d.on(event);
        let given_up = ReceiverEffect::Fallback { valid_pages: 0, why: Cause::OverCredit };
        assert_eq!(fx[..2], [ReceiverEffect::CancelPeer(Cause::OverCredit), given_up], "{event:?}");
    }
}
