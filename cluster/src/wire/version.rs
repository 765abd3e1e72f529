//! Versions of the wire format.

use std::ops::RangeInclusive;

use super::error::WireError;

/// The format that this build writes. Raised with every change of any byte of any message.
pub const WIRE_VERSION: u16 = 4;

/// The oldest format that this build reads. Version 1 has no worker roles: its nodes would give whole requests to prefill
/// workers; version 2 does not say what is fetched from other workers, in a message that has no room for it;
/// version 3 knows no pools, in messages that all nodes read.
pub const MIN_WIRE_VERSION: u16 = 4;

/// The formats that this build reads.
pub const SUPPORTED: RangeInclusive<u16> = MIN_WIRE_VERSION..=WIRE_VERSION;

/// The version that two nodes speak: the newest that both read.
///
/// # Errors
/// There is none ([`WireError::NoCommonVersion`]), also when a range is empty.
pub fn agree(ours: RangeInclusive<u16>, theirs: RangeInclusive<u16>) -> Result<u16, WireError> {
    let newest = *ours.end().min(theirs.end());
    if ours.contains(&newest) && theirs.contains(&newest) {
        return Ok(newest);
    }
    Err(WireError::NoCommonVersion { ours, theirs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_agreed_on() {
        assert_eq!(agree(1..=3, 2..=5), Ok(3));
        assert_eq!(agree(2..=5, 1..=3), Ok(3));
        assert_eq!(agree(4..=4, 1..=9), Ok(4));
        assert_eq!(agree(SUPPORTED, SUPPORTED), Ok(WIRE_VERSION));
    }

    #[test]
    fn without_a_common_version_both_ranges_are_named() {
        let error = agree(1..=2, 3..=4).unwrap_err();
        assert_eq!(error, WireError::NoCommonVersion { ours: 1..=2, theirs: 3..=4 });
        assert!(error.to_string().contains("1 to 2") && error.to_string().contains("3 to 4"), "{error}");
        #[expect(clippy::reversed_empty_ranges, reason = "a hostile peer can send one")]
        let empty = 5..=1;
        // Nodes without worker roles and nodes with them do not mix.
        let mixed = agree(SUPPORTED, 1..=1).unwrap_err().to_string();
        assert!(mixed.contains("4 to 4") && mixed.contains("1 to 1"), "{mixed}");
        assert!(agree(1..=9, empty.clone()).is_err() && agree(empty, 1..=9).is_err());
    }
}
