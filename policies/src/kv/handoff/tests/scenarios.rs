//! Known failures of such systems, one test each, and the rules of both ends.

use super::*;

fn causes(fx: &[ReceiverEffect]) -> Option<(u32, Cause)> {
    fx.iter().find_map(|e| match e {
        ReceiverEffect::Fallback { valid_pages, why } => Some((*valid_pages, *why)),
        _ => None,
    })
}

fn releases(fx: &[SenderEffect]) -> usize {
    fx.iter().filter(|e| **e == SenderEffect::Release).count()
}

#[test]
fn b42_a_first_token_that_ends_everything_moves_no_further_page() {
    let mut p = Prefill::new(0, 64, config(64, 4));
    assert_eq!(
        p.on(SenderEvent::Computed { pages: 3 }),
        [SenderEffect::Export { first: 0, count: 3 }],
        "nobody knows yet"
    );
    let fx = p.on(SenderEvent::Prefilled { tokens: 100, ends: true });
    assert_eq!(fx, [SenderEffect::SendLast { first: 0, count: 0, tokens: 100 }]);
    assert_eq!(p.on(SenderEvent::Exported { first: 0, count: 3 }), [], "dropped");
    assert_eq!(p.on(SenderEvent::Sent { first: 0, count: 0 }), []);
    assert_eq!(releases(&p.on(SenderEvent::Ack)), 1);

    let mut d = Decode::new(100, 0, config(64, 4));
    d.on(ReceiverEvent::Accepted);
    let fx = d.on(ReceiverEvent::Last { tokens: 100, first: 0, count: 0, bytes: 0, drawn: true, ends: true });
    assert_eq!(
        fx[..2],
        [ReceiverEffect::Commit { tokens: 100, pages: 0, ends: true }, ReceiverEffect::Ack],
        "the token is delivered, with no page"
    );
}

#[test]
fn b42_where_one_token_is_asked_for_no_page_is_wanted() {
    let mut p = Prefill::asked(Asked { want_pages: false, ..asked() }, config(8, 4));
    assert_eq!(p.on(SenderEvent::Computed { pages: 3 }), [], "no export");
    let fx = p.on(SenderEvent::Prefilled { tokens: 100, ends: false });
    assert_eq!(fx, [SenderEffect::SendLast { first: 0, count: 0, tokens: 100 }]);

    let wanted = Wanted { tokens: 100, page_tokens: PAGE, cached_pages: 0, pages: false, held: false };
    let mut d = Decode::wanting(wanted, config(8, 4));
    d.on(ReceiverEvent::Accepted);
    let done = ReceiverEvent::Last { tokens: 100, first: 0, count: 0, bytes: 0, drawn: true, ends: true };
    assert_eq!(d.on(done)[0], ReceiverEffect::Commit { tokens: 100, pages: 0, ends: true });

    let mut d = Decode::wanting(wanted, config(8, 4));
    assert_eq!(causes(&d.on(pages(0, 1))), Some((0, Cause::WrongPages)), "it comes unasked");
    let mut d = Decode::wanting(wanted, config(8, 4));
    let fx = d.on(last(100, 0, 0));
    assert_eq!(causes(&fx), Some((0, Cause::WrongPages)), "it would go on without pages");
}

#[test]
fn b44_the_death_of_prefill_leaves_decode_with_what_it_has() {
    let mut d = Decode::new(160, 1, config(8, 4));
    d.on(ReceiverEvent::Accepted);
    assert_eq!(d.on(pages(1, 4)), [ReceiverEffect::Import { first: 1, count: 4 }]);
    assert_eq!(d.on(pages(5, 2)), [ReceiverEffect::Import { first: 5, count: 2 }]);
    d.on(imported(1, 4));
    assert_eq!(d.does(|m, now, fx| m.link_lost(now, fx)), [], "an import is in flight");
    d.ignores(KEY, pages(7, 1));
    let fx = d.on(imported(5, 2));
    assert_eq!(causes(&fx), Some((7, Cause::LinkLost)));
    assert!(matches!(fx[1], ReceiverEffect::Done(r) if r.pages == 6 && r.bytes == 6000), "{fx:?}");
    assert_eq!(fx.len(), 2, "nobody is told: {fx:?}");
}

#[test]
fn b44_once_everything_is_here_the_death_of_prefill_is_nothing() {
    let mut d = Decode::new(40, 0, config(8, 4));
    d.on(ReceiverEvent::Accepted);
    assert_eq!(d.on(last(40, 0, 3)), [ReceiverEffect::Import { first: 0, count: 3 }]);
    assert_eq!(d.does(|m, now, fx| m.link_lost(now, fx)), []);
    d.ignores(KEY, ReceiverEvent::PeerCancelled);
    assert_eq!(d.machine.next_deadline(), None, "it waits for its own engine alone");
    let fx = d.on(imported(0, 3));
    assert_eq!(fx[0], ReceiverEffect::Commit { tokens: 40, pages: 3, ends: false });
    assert!(matches!(fx[1..], [ReceiverEffect::Done(_)]), "no acknowledgement without a link: {fx:?}");
}

#[test]
fn b45_a_refusal_is_final_at_once() {
    for code in [RefusalCode::QueueFull, RefusalCode::TooLong, RefusalCode::Failed] {
        let mut d = Decode::new(160, 2, config(8, 4));
        let fx = d.on(ReceiverEvent::Refused(code));
        assert_eq!(causes(&fx), Some((2, Cause::Refused(code))));
        assert!(!fx.iter().any(|e| matches!(e, ReceiverEffect::CancelPeer(_))), "it knows: {fx:?}");
        assert!(d.now < ms(1000));
    }
    let mut p = Sender::new(config(8, 4), KEY, asked());
    let mut fx = Vec::new();
    p.asked(ms(0), &mut fx);
    p.on(ms(1), KEY, SenderEvent::RefusedLocally(RefusalCode::QueueFull), &mut fx);
    assert_eq!(fx[1..3], [SenderEffect::Refuse(RefusalCode::QueueFull), SenderEffect::Release]);
    assert!(p.has_ended());
    // Its engine fails later on.
    let mut p = Prefill::new(0, 8, config(8, 4));
    p.on(SenderEvent::Computed { pages: 1 });
    let fx = p.on(SenderEvent::RefusedLocally(RefusalCode::Failed));
    assert_eq!(fx, [SenderEffect::CancelPeer(Cause::Refused(RefusalCode::Failed))], "an export reads pages");
    assert_eq!(releases(&p.on(SenderEvent::Exported { first: 0, count: 1 })), 1);
    let mut d = Decode::new(160, 0, config(8, 4));
    d.on(ReceiverEvent::Accepted);
    assert_eq!(causes(&d.on(ReceiverEvent::PeerCancelled)), Some((0, Cause::Peer)));
}

#[test]
fn b47_both_abort_and_the_pages_come_back() {
    let config = config(8, 4);
    // The link is a black hole: nobody hears of anything. The client goes, with an import in flight.
    let mut d = Decode::new(160, 0, config);
    d.on(ReceiverEvent::Accepted);
    d.on(pages(0, 4));
    assert_eq!(d.does(|m, now, fx| m.cancel(now, fx)), [ReceiverEffect::CancelPeer(Cause::Own)], "fenced");
    let fx = d.on(imported(0, 4));
    assert!(matches!(fx[..], [ReceiverEffect::Free, ReceiverEffect::Done(_)]), "{fx:?}");
    // A late notice for it.
    d.ignores(KEY, pages(4, 4));
    d.ignores(KEY, last(160, 4, 6));
    d.ignores(KEY, imported(0, 4));
    d.ignores(KEY, ReceiverEvent::PeerCancelled);
    assert_eq!(d.does(|m, now, fx| m.link_lost(now, fx)), []);
    assert_eq!(d.does(|m, now, fx| m.cancel(now, fx)), []);
    // The sender has computed all and waits for credit that never comes.
    let mut p = Prefill::new(0, 8, config);
    p.on(SenderEvent::Prefilled { tokens: 160, ends: false });
    p.on(SenderEvent::Exported { first: 0, count: 4 });
    p.on(SenderEvent::Sent { first: 0, count: 4 });
    p.on(SenderEvent::Exported { first: 4, count: 4 });
    p.on(SenderEvent::Sent { first: 4, count: 4 });
    let due = p.machine.next_deadline().expect("there is a lease");
    assert_eq!(due, p.now + config.lease);
    assert_eq!(p.does(|m, _, fx| m.tick(due - Span(1), fx)), []);
    let fx = p.does(|m, _, fx| m.tick(due, fx));
    assert_eq!(fx[..2], [SenderEffect::CancelPeer(Cause::Lease), SenderEffect::Release]);
    assert_eq!(p.machine.next_deadline(), None);
    p.ignores(KEY, SenderEvent::Ack);
    p.ignores(KEY, SenderEvent::Credit { pages: 8 });
    p.ignores(KEY, SenderEvent::PeerCancelled);
}

#[test]
fn b48_a_full_hit_needs_no_page_and_releases_all_the_same() {
    // Whole pages, all held: nothing but the last message. With a tail: that one page.
    for (tokens, cached, tail) in [(48, 3, 0), (40, 2, 1)] {
        let mut d = Decode::new(tokens, cached, config(8, 4));
        d.on(ReceiverEvent::Accepted);
        let mut p = Prefill::new(cached, 8, config(8, 4));
        assert_eq!(p.on(SenderEvent::Computed { pages: cached }), [], "held there already");
        let mut sends = p.on(SenderEvent::Prefilled { tokens, ends: false });
        if tail > 0 {
            assert_eq!(sends, [SenderEffect::Export { first: cached, count: tail }]);
            sends = p.on(SenderEvent::Exported { first: cached, count: tail });
        }
        assert_eq!(sends, [SenderEffect::SendLast { first: cached, count: tail, tokens }]);
        let mut fx = d.on(last(tokens, cached, tail));
        if tail > 0 {
            assert_eq!(fx, [ReceiverEffect::Import { first: cached, count: 1 }]);
            fx = d.on(imported(cached, 1));
        }
        assert_eq!(fx[0], ReceiverEffect::Commit { tokens, pages: 3, ends: false });
        assert_eq!(fx[1], ReceiverEffect::Ack);
        assert_eq!(releases(&p.on(SenderEvent::Ack)), 1, "even before the link says that it is written");
        p.ignores(KEY, SenderEvent::Sent { first: cached, count: tail });
    }
}

#[test]
fn b49_a_fallback_counts_full_pages_only() {
    let mut d = Decode::new(40, 0, config(8, 4));
    d.on(ReceiverEvent::Accepted);
    d.on(pages(0, 2));
    d.on(imported(0, 2));
    d.on(last(40, 2, 1));
    let fx = d.on(ReceiverEvent::ImportFailed { first: 2, count: 1 });
    assert_eq!(fx[0], ReceiverEffect::CancelPeer(Cause::ImportFailed), "it holds its pages until then");
    assert_eq!(causes(&fx), Some((2, Cause::ImportFailed)));
}

#[test]
fn b52_a_transfer_of_another_length_is_refused() {
    let lengths = [(0, 0), (1, 1), (99, 3), (101, 3), (512, 28)];
    for (got, count) in lengths {
        let mut d = Decode::new(100, 1, config(64, 64));
        d.on(ReceiverEvent::Accepted);
        d.on(pages(1, 3));
        d.on(imported(1, 3));
        let fx = d.on(last(got, 4, count));
        let cause = Cause::WrongTokens { expected: 100, got };
        assert_eq!(fx[0], ReceiverEffect::CancelPeer(cause));
        assert_eq!(causes(&fx), Some((1, cause)), "and nothing of it is used");
    }
    // The right count with the wrong pages, or without tokens.
    let without =
        ReceiverEvent::Last { tokens: 100, first: 4, count: 3, bytes: 0, drawn: false, ends: false };
    for (event, cause) in [
        (last(100, 4, 2), Cause::WrongPages),
        (last(100, 4, 4), Cause::WrongPages),
        (last(100, 4, u32::MAX), Cause::WrongPages),
        (last(100, 5, 2), Cause::OutOfOrder),
        (last(100, 3, 4), Cause::OutOfOrder),
        (without, Cause::NoTokens),
        (pages(4, u32::MAX), Cause::WrongPages),
        (pages(u32::MAX, u32::MAX), Cause::OutOfOrder),
        (pages(3, 2), Cause::OutOfOrder),
    ] {
        let mut d = Decode::new(100, 1, config(64, 64));
        d.on(ReceiverEvent::Accepted);
        d.on(pages(1, 3));
        d.on(imported(1, 3));
        assert_eq!(causes(&d.on(event)), Some((1, cause)), "{event:?}");
    }
}

#[test]
fn b54_another_life_of_either_end_changes_nothing() {
    let mut d = Decode::new(160, 0, config(8, 4));
    let mut p = Prefill::new(0, 8, config(8, 4));
    p.on(SenderEvent::Prefilled { tokens: 160, ends: false });
    for key in [TransferKey { generation: 2, ..KEY }, TransferKey { transfer: 8, ..KEY }] {
        d.ignores(key, ReceiverEvent::Accepted);
        d.ignores(key, ReceiverEvent::Refused(RefusalCode::Failed));
        d.ignores(key, pages(0, 1));
        d.ignores(key, last(160, 0, 10));
        d.ignores(key, ReceiverEvent::BadChecksum { first: 0 });
        d.ignores(key, ReceiverEvent::PeerCancelled);
        d.ignores(key, imported(0, 1));
        p.ignores(key, SenderEvent::Ack);
        p.ignores(key, SenderEvent::PeerCancelled);
        p.ignores(key, SenderEvent::Credit { pages: 1 });
        p.ignores(key, SenderEvent::Exported { first: 0, count: 4 });
    }
    // And a question that is answered by a process which knows nothing of it, or by none, does not wait long.
    let due = d.machine.next_deadline().expect("it waits for an answer");
    assert_eq!(due, ms(0) + config(8, 4).accept_within);
    assert_eq!(causes(&d.does(|m, _, fx| m.tick(due, fx))), Some((0, Cause::NotAccepted)));
}

#[test]
fn b58_prompts_of_many_chunks_arrive() {
    let chunk = 2 * PAGE;
    for tokens in [1, 15, 16, 17, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1, 5 * chunk] {
        for (window, message) in [(1, 1), (2, 4), (3, 2), (64, 4)] {
            let moved = network::undisturbed(tokens, PAGE, chunk, 0, config(window, message));
            assert_eq!(moved, tokens.div_ceil(PAGE), "{tokens} tokens, window {window}");
        }
    }
}

#[test]
fn pages_are_imported_once_and_in_order() {
    let mut d = Decode::new(160, 2, config(8, 4));
    d.on(ReceiverEvent::Accepted);
    d.on(pages(2, 3));
    d.ignores(KEY, pages(2, 3));
    d.ignores(KEY, pages(0, 2));
    d.ignores(KEY, pages(4, 1));
    d.ignores(KEY, pages(5, 0));
    d.ignores(KEY, imported(2, 2));
    d.on(imported(2, 3));
    d.ignores(KEY, imported(2, 3));
    d.ignores(KEY, ReceiverEvent::ImportFailed { first: 2, count: 3 });
    assert_eq!(causes(&d.on(pages(6, 1))), Some((2, Cause::OutOfOrder)));
}

#[test]
fn imports_that_finish_out_of_order_count_as_a_run() {
    let mut d = Decode::new(96, 0, config(8, 2));
    d.on(ReceiverEvent::Accepted);
    for first in [0, 2, 4] {
        d.on(pages(first, 2));
    }
    assert_eq!(d.on(imported(4, 2)), []);
    assert_eq!(d.on(imported(0, 2)), []);
    assert_eq!(
        d.on(ReceiverEvent::BadChecksum { first: 6 }),
        [ReceiverEffect::CancelPeer(Cause::BadChecksum)]
    );
    let fx = d.on(ReceiverEvent::ImportFailed { first: 2, count: 2 });
    assert_eq!(causes(&fx), Some((2, Cause::BadChecksum)), "a hole ends the run");
}

#[test]
fn credit_is_what_there_is_room_for() {
    let mut d = Decode::new(16 * 20, 0, config(4, 4));
    d.on(ReceiverEvent::Accepted);
    assert_eq!(causes(&d.on(pages(0, 5))), Some((0, Cause::OverCredit)));
    let mut d = Decode::new(16 * 6, 0, config(4, 4));
    d.on(ReceiverEvent::Accepted);
    d.on(pages(0, 1));
    d.on(pages(1, 3));
    assert_eq!(d.machine.next_deadline(), None, "without credit the sender owes nothing");
    assert_eq!(d.on(imported(0, 1)), [], "half a window at a time");
    let due = d.machine.next_deadline();
    assert_eq!(due, None);
    assert_eq!(d.on(imported(1, 3)), [ReceiverEffect::GrantCredit(2)], "what is left, and no more");
    assert_eq!(d.machine.next_deadline(), Some(d.now + config(4, 4).progress_within));
    let due = d.machine.next_deadline().expect("now it owes");
    assert_eq!(causes(&d.does(|m, _, fx| m.tick(due, fx))), Some((4, Cause::NoProgress)));
}

#[test]
fn a_sender_keeps_to_its_credit_and_to_two_messages() {
    let mut p = Prefill::new(0, 3, config(64, 2));
    assert_eq!(p.on(SenderEvent::Computed { pages: 6 }), [SenderEffect::Export { first: 0, count: 2 }]);
    assert_eq!(
        p.on(SenderEvent::Exported { first: 0, count: 2 }),
        [SenderEffect::SendPages { first: 0, count: 2 }, SenderEffect::Export { first: 2, count: 1 }],
        "the next is exported while the first is sent"
    );
    assert_eq!(p.on(SenderEvent::Exported { first: 2, count: 1 }), [], "one message at a time");
    assert_eq!(p.on(SenderEvent::Credit { pages: 3 }), [], "and no third one");
    assert_eq!(
        p.on(SenderEvent::Sent { first: 0, count: 2 }),
        [SenderEffect::SendPages { first: 2, count: 1 }, SenderEffect::Export { first: 3, count: 2 }]
    );
    p.ignores(KEY, SenderEvent::Ack);
    p.ignores(KEY, SenderEvent::Submitted);
    p.ignores(KEY, SenderEvent::Sent { first: 0, count: 2 });
    assert_eq!(p.on(SenderEvent::Exported { first: 3, count: 2 }), []);
    assert_eq!(p.on(SenderEvent::Prefilled { tokens: 97, ends: false }), []);
    p.ignores(KEY, SenderEvent::Computed { pages: 7 });
    let fx = p.on(SenderEvent::Sent { first: 2, count: 1 });
    assert_eq!(fx[0], SenderEffect::SendPages { first: 3, count: 2 });
    assert_eq!(fx[1], SenderEffect::Export { first: 5, count: 1 }, "credit for one, not the last");
    p.on(SenderEvent::Exported { first: 5, count: 1 });
    assert_eq!(
        p.on(SenderEvent::Sent { first: 3, count: 2 }),
        [SenderEffect::SendPages { first: 5, count: 1 }]
    );
    assert_eq!(p.on(SenderEvent::Credit { pages: 1 }), [SenderEffect::Export { first: 6, count: 1 }]);
    assert_eq!(p.on(SenderEvent::Sent { first: 5, count: 1 }), []);
    assert_eq!(
        p.on(SenderEvent::Exported { first: 6, count: 1 }),
        [SenderEffect::SendLast { first: 6, count: 1, tokens: 97 }]
    );
}

#[test]
fn a_pace_holds_small_messages_back_until_the_prompt_is_computed() {
    let mut p = Prefill::new(0, 64, config(64, 16));
    p.machine.pace(4, 6);
    assert_eq!(p.on(SenderEvent::Computed { pages: 3 }), []);
    assert_eq!(p.on(SenderEvent::Computed { pages: 8 }), [SenderEffect::Export { first: 0, count: 6 }]);
    p.on(SenderEvent::Exported { first: 0, count: 6 });
    assert_eq!(
        p.on(SenderEvent::Prefilled { tokens: 8 * PAGE, ends: false }),
        [SenderEffect::Export { first: 6, count: 2 }]
    );
}

#[test]
fn a_cancel_overtakes_a_failure_that_waits_for_the_fence() {
    let mut d = Decode::new(160, 0, config(8, 4));
    d.on(ReceiverEvent::Accepted);
    d.on(pages(0, 4));
    d.on(ReceiverEvent::PeerCancelled);
    assert_eq!(d.does(|m, now, fx| m.cancel(now, fx)), [], "its peer knows");
    let fx = d.on(imported(0, 4));
    assert!(matches!(fx[..], [ReceiverEffect::Free, ReceiverEffect::Done(_)]), "{fx:?}");
}

#[test]
fn b52_one_token_more_or_less_is_another_sequence() {
    let wanted = Wanted { tokens: 100, page_tokens: PAGE, cached_pages: 1, pages: true, held: false };
    for (tokens, fine) in [(99, false), (100, true), (101, false), (17, false), (0, false)] {
        let mut d = Decode::wanting(wanted, config(8, 8));
        d.on(ReceiverEvent::Accepted);
        let count = u32::div_ceil(tokens, PAGE).saturating_sub(1);
        let fx = d.on(last(tokens, 1, count));
        assert_eq!(fx == [ReceiverEffect::Import { first: 1, count }], fine, "{tokens}: {fx:?}");
        if fine {
            let fx = d.on(imported(1, count));
            assert_eq!(fx[0], ReceiverEffect::Commit { tokens, pages: count + 1, ends: false });
        }
    }
}

#[test]
fn ends_before_a_beginning_are_clean() {
    let wanted = Wanted { tokens: 5, page_tokens: PAGE, cached_pages: 9, pages: true, held: false };
    let mut d = Receiver::new(config(0, 0), KEY, wanted);
    let mut fx = Vec::new();
    d.on(ms(1), KEY, ReceiverEvent::Accepted, &mut fx);
    assert_eq!((d.ignored(), d.next_deadline()), (1, None));
    d.cancel(ms(1), &mut fx);
    assert!(matches!(fx[..], [ReceiverEffect::Free, ReceiverEffect::Done(_)]), "{fx:?}");
    enforce(d.check());
    let mut p = Sender::new(config(0, 0), KEY, Asked { page_tokens: 0, window: u32::MAX, ..asked() });
    let mut fx = Vec::new();
    p.link_lost(&mut fx);
    assert!(matches!(fx[..], [SenderEffect::Release, SenderEffect::Done(_)]), "{fx:?}");
    p.asked(ms(2), &mut fx);
    assert_eq!((fx.len(), p.ignored()), (2, 1));
    enforce(p.check());
}
