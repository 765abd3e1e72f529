use proptest::prelude::*;
use rkyv::rancor;

use super::*;
use crate::kv::error::KvError;
use crate::kv::frame::{LONGEST_TEXT, MAX_PAGES};
use crate::kv::tests::{LAYOUT, any_header, one_of_each};

fn owned(header: &ArchivedKvHeader) -> KvHeader {
    rkyv::deserialize::<KvHeader, rancor::Error>(header).expect("a header")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn kinds_have_numbers_of_their_own_and_every_header_has_its_kind() {
    for kind in Kind::ALL {
        assert_eq!(Kind::of_tag(kind as u8), Some(kind));
    }
    assert_eq!((Kind::of_tag(0), Kind::of_tag(12)), (None, None));
    let kinds: Vec<Kind> = one_of_each()
        .into_iter()
        .map(|header| {
            let checked = CheckedHeader::encode(header).expect("encoded");
            assert_eq!(checked.kind(), checked.read().kind());
            assert_eq!(checked.read().transfer(), (7, 9));
            checked.kind()
        })
        .collect();
    assert_eq!(kinds, Kind::ALL);
}

proptest! {
    #[test]
    fn headers_come_back(header in any_header()) {
        let checked = CheckedHeader::encode(header.clone()).expect("within the limits");
        prop_assert_eq!(owned(checked.read()), header);
    }
}

/// The bytes are the same on every machine: little-endian, with offsets of four bytes.
#[test]
fn golden_bytes() {
    let credit = CheckedHeader::encode(KvHeader::Credit { transfer: 1, generation: 0x0203, pages: 4 });
    let pages = CheckedHeader::encode(KvHeader::Pages {
        transfer: 1,
        generation: 2,
        first: 3,
        checksums: vec![0x1122_3344_5566_7788],
        hashes: vec![[0xab; 16]],
    });
    let written = [credit, pages].map(|header| hex(header.expect("encoded").as_bytes()));
    assert_eq!(written, [GOLDEN_CREDIT, GOLDEN_PAGES]);
}

/// Tag, transfer, generation, pages; then nothing, as long as the longest variant.
const GOLDEN_CREDIT: &str = concat!(
    "0500000000000000",
    "0100000000000000",
    "0302000000000000",
    "0400000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
);

/// The checksums and the hashes; then tag, transfer, generation, first page, and where and how many the lists are.
const GOLDEN_PAGES: &str = concat!(
    "8877665544332211",
    "abababababababababababababababab",
    "0300000000000000",
    "0100000000000000",
    "0200000000000000",
    "03000000ccffffff",
    "01000000ccffffff",
    "0100000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
);

fn ask(spec: usize, layout: PageLayout) -> KvHeader {
    KvHeader::Ask {
        transfer: 7,
        generation: 9,
        fingerprint: [1; 32],
        layout: layout.into(),
        first_page: 0,
        want_pages: true,
        reserved: true,
        window: 8,
        spec: vec![3; spec],
        takes: None,
        held: true,
        prefix: None,
    }
}

#[test]
fn what_is_over_a_limit_is_named() {
    let field = |header| match CheckedHeader::encode(header) {
        Err(KvError::TooMuch { field, limit, .. }) => (field, limit),
        other => panic!("{other:?}"),
    };
    assert!(CheckedHeader::encode(ask(MAX_SPEC_BYTES, LAYOUT)).is_ok());
    assert_eq!(field(ask(MAX_SPEC_BYTES + 1, LAYOUT)), ("spec", MAX_SPEC_BYTES as u64));
    let pages = |checksums: usize, hashes: usize| KvHeader::Pages {
        transfer: 7,
        generation: 9,
        first: 0,
        checksums: vec![0; checksums],
        hashes: vec![[0; 16]; hashes],
    };
    assert!(CheckedHeader::encode(pages(MAX_PAGES, MAX_PAGES)).is_ok());
    assert_eq!(field(pages(MAX_PAGES + 1, 0)), ("checksums", MAX_PAGES as u64));
    assert_eq!(field(pages(0, MAX_PAGES + 1)), ("hashes", MAX_PAGES as u64));
    let last = |tokens, cached, result: usize| KvHeader::Last {
        transfer: 7,
        generation: 9,
        tokens,
        cached,
        result: vec![0; result],
        first: 0,
        checksums: Vec::new(),
        hashes: Vec::new(),
    };
    assert!(CheckedHeader::encode(last(5, 5, MAX_HEADER_BYTES - 1000)).is_ok());
    assert_eq!(field(last(5, 6, 0)), ("cached", 5));
    assert_eq!(field(last(5, 5, MAX_HEADER_BYTES)), ("header", MAX_HEADER_BYTES as u64));
}

#[test]
fn pages_that_do_not_go_with_their_header_are_named() {
    let message = |first, checksums: usize, hashes: usize| {
        let header = KvHeader::Pages {
            transfer: 7,
            generation: 9,
            first,
            checksums: vec![0; checksums],
            hashes: vec![[0; 16]; hashes],
        };
        CheckedHeader::encode(header).expect("within the limits")
    };
    let field = |header: &CheckedHeader, pages| match header.check_pages(pages, true, Some(&LAYOUT)) {
        Err(KvError::Malformed { field, .. } | KvError::TooMuch { field, .. }) => Some(field),
        Err(other) => panic!("{other:?}"),
        Ok(()) => None,
    };
    assert_eq!(field(&message(0, 3, 2), 3), None);
    assert_eq!(field(&message(0, 2, 2), 3), Some("checksums"));
    assert_eq!(field(&message(0, 3, 4), 3), Some("hashes"));
    assert_eq!(field(&message(0, 0, 0), 0), Some("pages"));
    assert_eq!(field(&message(u32::MAX, 1, 0), 1), Some("first"));
    let ack = CheckedHeader::encode(KvHeader::Ack { transfer: 7, generation: 9 }).expect("encoded");
    assert_eq!(field(&ack, 1), Some("pages"));
    assert_eq!(field(&ack, 0), None);
}

/// Two workers that differ in one number of the layout never exchange a page (B53).
#[test]
fn every_field_of_another_layout_is_named() {
    type Change = fn(&mut PageLayout);
    let others: [(&str, Change); 5] = [
        ("page_tokens", |l| l.page_tokens += 1),
        ("layers", |l| l.layers += 1),
        ("kv_heads", |l| l.kv_heads += 1),
        ("head_dim", |l| l.head_dim += 1),
        ("element_bytes", |l| l.element_bytes += 1),
    ];
    for (name, change) in others {
        let mut theirs = LAYOUT;
        change(&mut theirs);
        let header = CheckedHeader::encode(ask(0, theirs)).expect("encoded");
        let error = header.check_pages(0, true, Some(&LAYOUT)).unwrap_err();
        assert!(matches!(error, KvError::Layout { field, .. } if field == name), "{error:?}");
    }
    let same = CheckedHeader::encode(ask(0, LAYOUT)).expect("encoded");
    assert_eq!(same.check_pages(0, true, Some(&LAYOUT)), Ok(()));
}

#[test]
fn texts_are_cut_and_cleaned_and_dirty_ones_refused() {
    let cancel = |why: &str| KvHeader::Cancel { transfer: 7, generation: 9, why: why.to_owned() };
    let long = CheckedHeader::encode(cancel(&format!("a\nb{}", "ü".repeat(LONGEST_TEXT)))).expect("cut");
    let ArchivedKvHeader::Cancel { why, .. } = long.read() else { panic!("{long:?}") };
    assert!(why.starts_with("a bü") && why.len() <= LONGEST_TEXT && why.len() > LONGEST_TEXT - 4, "{why}");

    for dirty in ["a\u{1b}[31m", &"x".repeat(LONGEST_TEXT + 1)] {
        let bytes = rkyv::to_bytes::<rancor::Error>(&cancel(dirty)).expect("encoded");
        let error = CheckedHeader::check(bytes).unwrap_err();
        assert!(
            matches!(error, KvError::Malformed { field: "why", .. } | KvError::TooMuch { field: "why", .. }),
            "{error:?}"
        );
    }
}

#[test]
fn refusals_keep_their_code() {
    let codes = [
        RefusalCode::Fingerprint,
        RefusalCode::Unavailable,
        RefusalCode::QueueFull,
        RefusalCode::TooLong,
        RefusalCode::Malformed,
        RefusalCode::Failed,
        RefusalCode::Expired,
    ];
    for code in codes {
        let header = KvHeader::Refused { transfer: 7, generation: 9, code, why: code.as_str().to_owned() };
        let checked = CheckedHeader::encode(header).expect("encoded");
        let ArchivedKvHeader::Refused { code: read, why, .. } = checked.read() else { panic!("{checked:?}") };
        assert_eq!((RefusalCode::from(read), why.as_str()), (code, code.as_str()));
    }
}
