//! Cached pages by hash.

use std::hash::{BuildHasherDefault, Hasher};

use config::ids::PageId;

use crate::kv::PageHash;

/// Page by hash. In no order: whoever goes through it sorts.
#[expect(clippy::disallowed_types, reason = "the hasher is fixed, and nothing depends on the map's order")]
pub(super) type Index = std::collections::HashMap<PageHash, PageId, BuildHasherDefault<Prefix>>;

/// The first eight bytes of a key that is a hash already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prefix(u64);

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
