//! What KV messages carry comes back, and bytes that are not that do no harm.

use policies::time::Time;
use proptest::prelude::*;

use super::{READ, SENT, arb, print};
use crate::wire::WireError;
use crate::wire::handoff::{decode_drawn, decode_spec, encode_drawn, encode_spec};
use crate::wire::version::SUPPORTED;

proptest! {
    #[test]
    fn requests_come_back_with_their_time_left(spec in arb::spec()) {
        let bytes = encode_spec(SENT, &spec).unwrap();
        let read = decode_spec(READ, &bytes).unwrap();
        let mut expected = spec.clone();
        if spec.deadline != Time::NEVER {
            expected.deadline = READ + spec.deadline.since(SENT);
        }
        prop_assert_eq!(print(&read), print(&expected));
        for end in 0..bytes.len() {
            prop_assert!(decode_spec(READ, &bytes[..end]).is_err());
        }
    }

    #[test]
    fn drawn_tokens_come_back(drawn in proptest::collection::vec(arb::drawn(), 0..6)) {
        let bytes = encode_drawn(&drawn).unwrap();
        prop_assert_eq!(print(&decode_drawn(&bytes).unwrap()), print(&drawn));
        for end in 0..bytes.len() {
            prop_assert!(decode_drawn(&bytes[..end]).is_err());
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        prop_assert_eq!(decode_drawn(&longer).unwrap_err(), WireError::Trailing { bytes: 1 });
    }

    #[test]
    fn other_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut versioned = bytes.clone();
        versioned.insert(0, 1);
        for bytes in [&bytes, &versioned] {
            let _ = decode_spec(READ, bytes);
            let _ = decode_drawn(bytes);
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut bytes = encode_drawn(&[]).unwrap();
    bytes[0] = 99;
    let error = decode_drawn(&bytes).unwrap_err();
    assert_eq!(error, WireError::Version { got: 99, supported: SUPPORTED });
    assert_eq!(decode_spec(READ, &bytes).unwrap_err(), error);
}
