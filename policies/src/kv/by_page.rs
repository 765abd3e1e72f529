//! Maps by page.

use std::hash::{BuildHasherDefault, Hasher};

use super::PageHash;

/// By page. In no order: whoever goes through it sorts, or does what needs no order.
#[expect(clippy::disallowed_types, reason = "the hasher is fixed, and nothing depends on the map's order")]
pub(crate) type PageMap<V> = std::collections::HashMap<PageHash, V, BuildHasherDefault<Prefix>>;

/// The first eight bytes of a key that is a hash already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefix(u64);

impl Hasher for Prefix {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    }

    /// The length of the key, which is always the same.
    fn write_usize(&mut self, _len: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
