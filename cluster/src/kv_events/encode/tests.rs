use proptest::prelude::*;
use rmpv::Value;

use super::*;

/// A page whose number is `n`, between bytes that do not count.
fn page(n: u64) -> PageHash {
    let mut hash = [0xee; 16];
    hash[8..].copy_from_slice(&n.to_be_bytes());
    PageHash(hash)
}

fn read(bytes: &[u8]) -> Value {
    let mut rest = bytes;
    let value = rmpv::decode::read_value(&mut rest).unwrap();
    assert!(rest.is_empty(), "{} bytes follow {value}", rest.len());
    value
}

fn numbers(values: &[u64]) -> Value {
    Value::Array(values.iter().map(|n| Value::from(*n)).collect())
}

#[test]
fn a_page_is_the_last_eight_bytes_of_its_hash_unsigned() {
    let hash = PageHash([0, 1, 2, 3, 4, 5, 6, 7, 0xf8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(block_hash(&hash), 0xf809_0a0b_0c0d_0e0f);
}

/// Byte for byte what `msgspec` writes for the structs of vLLM 0.15 with these values.
#[test]
fn the_bytes_of_arrays_are_these() {
    let events = [
        KvEvent::Cleared,
        KvEvent::Stored { parent: None, pages: vec![page(1)], tokens: vec![7, 300] },
        KvEvent::Removed { pages: vec![page(u64::MAX)] },
    ];
    let bytes = encode(1.5, 2, &events, KvEventsEncoding::Array);
    let mut expected = b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x93".to_vec();
    expected.extend(b"\x91\xb0AllBlocksCleared");
    expected.extend(b"\x98\xabBlockStored\x91\x01\xc0\x92\x07\xcd\x01\x2c\x02\xc0\xa3GPU\xc0");
    expected.extend(b"\x93\xacBlockRemoved\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa3GPU");
    expected.push(0);
    assert_eq!(bytes, expected);
}

#[test]
fn maps_have_the_same_fields_by_name() {
    let events = [
        KvEvent::Stored { parent: Some(page(8)), pages: vec![page(9)], tokens: vec![1, 2] },
        KvEvent::Removed { pages: vec![page(9)] },
        KvEvent::Cleared,
    ];
    let batch = read(&encode(0.25, 2, &events, KvEventsEncoding::Map));
    assert_eq!((&batch[0], &batch[2]), (&Value::F64(0.25), &Value::from(0)));
    let stored = &batch[1][0];
    assert_eq!(stored.as_map().unwrap().len(), 8);
    assert_eq!(stored["type"], Value::from("BlockStored"));
    assert_eq!(stored["block_hashes"], numbers(&[9]));
    assert_eq!(stored["parent_block_hash"], Value::from(8));
    assert_eq!(stored["token_ids"], numbers(&[1, 2]));
    assert_eq!(stored["block_size"], Value::from(2));
    assert_eq!((&stored["lora_id"], &stored["lora_name"]), (&Value::Nil, &Value::Nil));
    assert_eq!(stored["medium"], Value::from("GPU"));
    let removed = &batch[1][1];
    assert_eq!(removed.as_map().unwrap().len(), 3);
    assert_eq!((&removed["type"], &removed["block_hashes"]), (&Value::from("BlockRemoved"), &numbers(&[9])));
    assert_eq!(removed["medium"], Value::from("GPU"));
    assert_eq!(batch[1][2], Value::Map(vec![("type".into(), "AllBlocksCleared".into())]));
}

fn event() -> impl Strategy<Value = KvEvent> {
    let pages = || prop::collection::vec(any::<[u8; 16]>().prop_map(PageHash), 1..40);
    let parent = prop::option::of(any::<[u8; 16]>().prop_map(PageHash));
    prop_oneof![
        1 => Just(KvEvent::Cleared),
        4 => pages().prop_map(|pages| KvEvent::Removed { pages }),
        4 => (parent, pages(), any::<u32>()).prop_map(|(parent, pages, seed)| {
            let tokens = (0..pages.len() as u32 * 16).map(|i| seed.wrapping_mul(i)).collect();
            KvEvent::Stored { parent, pages, tokens }
        }),
    ]
}

/// Reads an event of the array shape as one of ours, with 64 bits a page.
fn check_event(value: &Value, event: &KvEvent) {
    let short = |pages: &[PageHash]| numbers(&pages.iter().map(block_hash).collect::<Vec<_>>());
    match event {
        KvEvent::Cleared => assert_eq!(*value, Value::Array(vec!["AllBlocksCleared".into()])),
        KvEvent::Removed { pages } => {
            let fields = vec!["BlockRemoved".into(), short(pages), "GPU".into()];
            assert_eq!(*value, Value::Array(fields));
        }
        KvEvent::Stored { parent, pages, tokens } => {
            let parent = parent.map_or(Value::Nil, |p| Value::from(block_hash(&p)));
            let tokens = numbers(&tokens.iter().map(|t| u64::from(*t)).collect::<Vec<_>>());
            let (name, medium) = ("BlockStored".into(), "GPU".into());
            let fields =
                vec![name, short(pages), parent, tokens, Value::from(16), Value::Nil, medium, Value::Nil];
            assert_eq!(*value, Value::Array(fields));
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_encoded_is_read_back(events in prop::collection::vec(event(), 0..20), seconds in 0.0..4e9_f64) {
        let batch = read(&encode(seconds, 16, &events, KvEventsEncoding::Array));
        prop_assert_eq!(&batch[0], &Value::F64(seconds));
        let told = batch[1].as_array().unwrap();
        prop_assert_eq!(told.len(), events.len());
        for (value, event) in told.iter().zip(&events) {
            check_event(value, event);
        }
        read(&encode(seconds, 16, &events, KvEventsEncoding::Map));
    }
}
