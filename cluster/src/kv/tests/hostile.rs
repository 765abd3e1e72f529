//! Bytes that are no messages: never a panic, never a wait for ever, never a message that was not sent.

use std::io::Cursor;

use super::*;
use crate::kv::frame::{PREFIX_BYTES, Prefix};

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(LIMIT, work).await.expect("it ends") })
}

/// What was received is the beginning of what was sent, and then there was an error.
fn refused_at(bytes: Vec<u8>, sent: &[Outbound], whole: usize) {
    let settings = settings();
    let (got, end) = run(receive_all(Cursor::new(bytes), settings.clone()));
    let was: Vec<_> = got.iter().map(said).collect();
    drop(got);
    assert_eq!(was, sent[..whole].iter().map(meant).collect::<Vec<_>>());
    assert!(end.is_err(), "what was changed has not been noticed");
    assert_eq!(out(&settings), 0, "every page is back");
}

/// Cut after every number of bytes: the messages before are there, and nothing of the one that was cut.
#[test]
fn a_connection_that_is_cut_anywhere() {
    let sent = messages();
    let (bytes, starts) = run(bytes_of(&sent));
    for cut in 0..bytes.len() {
        let whole = starts.iter().filter(|start| **start <= cut).count() - 1;
        if starts.contains(&cut) {
            let (got, end) = run(receive_all(Cursor::new(bytes[..cut].to_vec()), settings()));
            assert_eq!((got.len(), end), (whole, Ok(())), "an end between two messages is orderly");
        } else {
            refused_at(bytes[..cut].to_vec(), &sent, whole);
        }
    }
}

/// One bit anywhere: in a prefix, a header, a page.
#[test]
fn every_bit_counts() {
    let sent = messages();
    let (bytes, starts) = run(bytes_of(&sent));
    let random = |n: usize| n.wrapping_mul(2_654_435_761) >> 7;
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (random(at) % 8);
        refused_at(bytes, &sent, starts.iter().filter(|start| **start <= at).count() - 1);
    }
}

#[test]
fn a_changed_page_is_named() {
    let sent = [pages_from(5, 3)];
    let (mut bytes, _) = run(bytes_of(&sent));
    let at = bytes.len() - LAYOUT.page_bytes() - 1;
    bytes[at] ^= 0x10;
    let (got, end) = run(receive_all(Cursor::new(bytes), settings()));
    assert_eq!((got.len(), end), (0, Err(KvError::Checksum { page: 6 })));
}

/// What a prefix announces is held against its limits before anything of it is read or allocated.
#[test]
fn what_a_prefix_announces_is_limited() {
    let (bytes, _) = run(bytes_of(&[pages_from(0, 1)]));
    let error_with = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        // Nothing follows: an error about the field shows that nothing was waited for.
        let prefix: [u8; PREFIX_BYTES] = bytes[..PREFIX_BYTES].try_into().expect("a prefix");
        Prefix::decode(&prefix, Some(&LAYOUT)).expect_err("refused")
    };
    let field = |error: &KvError| match error {
        KvError::Malformed { field, .. } | KvError::TooMuch { field, .. } | KvError::Layout { field, .. } => {
            *field
        }
        other => panic!("{other:?}"),
    };
    let put = |at: usize, n: u32| move |b: &mut [u8]| b[at..at + 4].copy_from_slice(&n.to_le_bytes());
    type Change<'a> = &'a dyn Fn(&mut [u8]);
    let cases: [(&str, Change<'_>); 11] = [
        ("magic", &|b| b[..4].copy_from_slice(b"GET ")),
        ("version", &|b| b[4] = 1),
        ("kind", &|b| b[6] = 0),
        ("kind", &|b| b[6] = 12),
        ("reserved", &|b| b[7] = 1),
        ("reserved", &|b| b[20] = 1),
        ("header", &put(8, MAX_HEADER_BYTES as u32 + 1)),
        ("header", &put(8, u32::MAX)),
        ("pages", &put(12, MAX_PAGES as u32 + 1)),
        ("page_bytes", &put(16, LAYOUT.page_bytes() as u32 + 1)),
        ("page_bytes", &put(12, 0)),
    ];
    for (name, change) in cases {
        let error = error_with(change);
        assert_eq!(field(&error), name, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let ack = run(bytes_of(&[one_of_each().remove(6).into()])).0;
    let mut ack: [u8; PREFIX_BYTES] = ack[..PREFIX_BYTES].try_into().expect("a prefix");
    ack[12] = 1;
    assert_eq!(field(&Prefix::decode(&ack, Some(&LAYOUT)).unwrap_err()), "pages");

    let huge = PageLayout { head_dim: 1 << 20, ..LAYOUT };
    let mut prefix: [u8; PREFIX_BYTES] = bytes[..PREFIX_BYTES].try_into().expect("a prefix");
    prefix[12] = 3;
    prefix[16..20].copy_from_slice(&(huge.page_bytes() as u32).to_le_bytes());
    let error = Prefix::decode(&prefix, Some(&huge)).unwrap_err();
    assert_eq!(field(&error), "body", "{error}");
    assert_eq!((max_pages(&huge), max_pages(&LAYOUT)), (2, MAX_PAGES));
}

#[test]
fn golden_prefix() {
    let (bytes, _) = run(bytes_of(&[pages_from(0, 2)]));
    let header = bytes.len() - PREFIX_BYTES - 2 * LAYOUT.page_bytes();
    let expected =
        [b"AKVP", [3, 0, 4, 0].as_slice(), &[header as u8, 0, 0, 0], &[2, 0, 0, 0], &[0, 1, 0, 0], &[0; 4]];
    assert_eq!(bytes[..24], expected.concat());
    let sum = xxhash_rust::xxh3::xxh3_64(&[&bytes[..24], &bytes[PREFIX_BYTES..][..header]].concat());
    assert_eq!(bytes[24..PREFIX_BYTES], sum.to_le_bytes());
}

/// A peer of the same cluster that runs another release: right magic, right checksum, other contents.
fn dressed(kind: Kind, header: &[u8], bodies: &[u8], pages: usize) -> Vec<u8> {
    [Prefix::encode(kind, header, pages, Some(&LAYOUT)).as_slice(), header, bodies].concat()
}

#[test]
fn the_kind_of_the_prefix_is_that_of_the_header() {
    let (bytes, _) = run(bytes_of(&[one_of_each().remove(6).into()]));
    let lying = dressed(Kind::Released, &bytes[PREFIX_BYTES..], &[], 0);
    let (got, end) = run(receive_all(Cursor::new(lying), settings()));
    assert!(got.is_empty());
    assert!(matches!(end, Err(KvError::Malformed { field: "kind", .. })), "{end:?}");
}

proptest! {
    #[test]
    fn garbage_is_refused(bytes in vec(any::<u8>(), 1..600)) {
        let (got, end) = run(receive_all(Cursor::new(bytes), settings()));
        prop_assert!(got.is_empty() && end.is_err());
    }

    #[test]
    fn garbage_with_a_right_prefix_is_refused_or_read(
        tag in 1_u8..10, header in vec(any::<u8>(), 0..400), pages in 0_usize..4,
    ) {
        let kind = Kind::of_tag(tag).expect("a kind");
        let bytes = dressed(kind, &header, &vec![0; pages * LAYOUT.page_bytes()], pages);
        let (got, _) = run(receive_all(Cursor::new(bytes), settings()));
        for message in got {
            let _ = said(&message);
        }
    }

    /// Right but for a few bytes, under a checksum that is right for them: bytecheck and the limits decide, nobody panics.
    #[test]
    fn changed_headers_under_a_right_checksum_are_refused_or_read(
        which in 0_usize..9, changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let sent = messages().swap_remove(which);
        let pages = sent.pages.len();
        let (bytes, _) = run(bytes_of(std::slice::from_ref(&sent)));
        let bodies = bytes.len() - pages * LAYOUT.page_bytes();
        let mut header = bytes[PREFIX_BYTES..bodies].to_vec();
        for (at, to) in changes {
            let at = at.index(header.len());
            header[at] = to;
        }
        let kind = Kind::of_tag(bytes[6]).expect("a kind");
        let (got, _) = run(receive_all(
            Cursor::new(dressed(kind, &header, &bytes[bodies..], pages)),
            settings(),
        ));
        for message in got {
            let (_, bodies) = said(&message);
            prop_assert_eq!(bodies.len(), pages);
            prop_assert_eq!(bodies, meant(&sent).1, "pages are what their checksums say");
        }
    }

    /// In any segments, with any number of pages.
    #[test]
    fn any_messages_in_any_segments(
        counts in vec(0_u32..5, 1..6), step in 1_usize..2000, sip in 1_usize..2000,
    ) {
        let sent: Vec<Outbound> = counts
            .iter()
            .map(|count| if *count == 0 { one_of_each().remove(5).into() } else { pages_from(0, *count) })
            .collect();
        run(async {
            let tape = Tape { step: sip, ..Tape::default() };
            let (mut send, _recv) = link_of(tokio::io::empty(), tape.clone(), settings());
            for message in &sent {
                send.send(message.clone()).await.expect("sent");
            }
            let (got, end) = receive_all(Dribble::new(Cursor::new(tape.bytes()), step), settings()).await;
            assert_eq!(end, Ok(()));
            assert_eq!(
                got.iter().map(said).collect::<Vec<_>>(),
                sent.iter().map(meant).collect::<Vec<_>>()
            );
        });
    }
}
