//! Transfers of what the sender holds, which computes nothing for them.

use super::*;

const WANTED: Wanted = Wanted { tokens: 160, page_tokens: PAGE, cached_pages: 2, pages: true, held: true };

fn held(tokens: u32, first: u32, count: u32) -> ReceiverEvent {
    let bytes = u64::from(count) * 1000;
    ReceiverEvent::Last { tokens, first, count, bytes, drawn: false, ends: false }
}

fn committed(fx: &[ReceiverEffect]) -> Option<(u32, u32)> {
    fx.iter().find_map(|e| match e {
        ReceiverEffect::Commit { tokens, pages, ends: false } => Some((*tokens, *pages)),
        _ => None,
    })
}

#[test]
fn all_some_or_less_than_is_here_may_come() {
    for (there, arrive) in [(10, 8), (6, 4), (2, 0), (1, 0)] {
        let mut asks = Decode::wanting(WANTED, config(64, 64));
        let mut holds = Prefill::new(2, 62, config(64, 64));
        asks.on(ReceiverEvent::Accepted);
        let mut fx = holds.on(SenderEvent::Prefilled { tokens: there * PAGE, ends: false });
        if arrive > 0 {
            assert_eq!(fx, [SenderEffect::Export { first: 2, count: arrive }]);
            fx = holds.on(SenderEvent::Exported { first: 2, count: arrive });
        }
        let tokens = there * PAGE;
        assert_eq!(fx, [SenderEffect::SendLast { first: 2, count: arrive, tokens }]);
        let mut fx = asks.on(held(tokens, 2, arrive));
        if arrive > 0 {
            fx = asks.on(imported(2, arrive));
        }
        assert_eq!(committed(&fx), Some((there.max(2) * PAGE, there.max(2))), "{there} pages there");
        assert!(fx.contains(&ReceiverEffect::Ack));
    }
}

#[test]
fn b76_the_end_of_the_holder_leaves_what_has_come() {
    let mut asks = Decode::wanting(WANTED, config(8, 4));
    asks.on(ReceiverEvent::Accepted);
    asks.on(pages(2, 3));
    asks.on(imported(2, 3));
    let fx = asks.does(|m, now, fx| m.link_lost(now, fx));
    assert_eq!(fx[0], ReceiverEffect::Fallback { valid_pages: 5, why: Cause::LinkLost });
}

#[test]
fn what_no_sound_holder_says_is_not_used() {
    let wrong = |event| {
        let mut asks = Decode::wanting(WANTED, config(64, 64));
        asks.on(ReceiverEvent::Accepted);
        match asks.on(event)[..] {
            [ReceiverEffect::CancelPeer(_), ReceiverEffect::Fallback { valid_pages, why }, ..] => {
                (valid_pages, why)
            }
            ref fx => panic!("{fx:?}"),
        }
    };
    let expected = WANTED.tokens;
    assert_eq!(
        wrong(held(176, 2, 9)),
        (2, Cause::WrongTokens { expected, got: 176 }),
        "more than was asked for"
    );
    assert_eq!(
        wrong(held(90, 2, 4)),
        (2, Cause::WrongTokens { expected, got: 90 }),
        "a page that is not full"
    );
    assert_eq!(wrong(held(96, 2, 3)), (2, Cause::WrongPages), "a page less than it says");
    assert_eq!(wrong(held(96, 3, 3)), (2, Cause::OutOfOrder));
}
