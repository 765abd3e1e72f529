//! What stands before a page in its file. All numbers are little-endian, on every machine.

use policies::kv::{Fingerprint, PageHash};
use policies::pool::PageKey;

/// Bytes of it.
pub(super) const LEN: usize = 128;
/// What a file of ours begins with.
pub(super) const MAGIC: [u8; 8] = *b"ANODE\x00KV";
/// Another one is another format: its files are deleted.
const VERSION: u32 = 1;
/// The page follows another one.
const FOLLOWS: u32 = 1;
/// Where the checksum of what is before it begins.
const SUM_AT: usize = LEN - 8;

/// A page without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) key: PageKey,
    /// The page before it.
    pub(super) parent: Option<PageHash>,
    /// Bytes of the content.
    pub(super) bytes: u64,
    /// BLAKE3 of the content.
    pub(super) sum: [u8; 32],
}

impl Header {
    /// The header of a page with this content.
    pub(super) fn of(key: PageKey, parent: Option<PageHash>, content: &[u8]) -> Self {
        Self { key, parent, bytes: content.len() as u64, sum: *blake3::hash(content).as_bytes() }
    }

    pub(super) fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let flags = if self.parent.is_some() { FOLLOWS } else { 0 };
        let parent = self.parent.map_or([0; 16], |parent| parent.0);
        let fields: [&[u8]; 8] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &flags.to_le_bytes(),
            &self.key.fingerprint.0,
            &self.key.hash.0,
            &parent,
            &self.bytes.to_le_bytes(),
            &self.sum,
        ];
        let mut at = 0;
        for field in fields {
            out[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        let sum = check(&out);
        out[SUM_AT..].copy_from_slice(&sum);
        out
    }

    /// None where it is not one, damaged or of another version.
    pub(super) fn decode(raw: &[u8; LEN]) -> Option<Self> {
        if raw[SUM_AT..] != check(raw) {
            return None;
        }
        let mut rest: &[u8] = raw;
        let magic: [u8; 8] = take(&mut rest)?;
        let version = u32::from_le_bytes(take(&mut rest)?);
        let flags = u32::from_le_bytes(take(&mut rest)?);
        let fingerprint = Fingerprint(take(&mut rest)?);
        let hash = PageHash(take(&mut rest)?);
        let parent = PageHash(take(&mut rest)?);
        let bytes = u64::from_le_bytes(take(&mut rest)?);
        let sum = take(&mut rest)?;
        let known = magic == MAGIC && version == VERSION && flags & !FOLLOWS == 0;
        let parent = (flags == FOLLOWS).then_some(parent);
        known.then_some(Self { key: PageKey { fingerprint, hash }, parent, bytes, sum })
    }
}

/// Whether a file that begins so may be deleted where it is no page: it has our magic, or was cut off, or never written,
/// before it had one.
pub(super) fn is_ours(start: &[u8]) -> bool {
    let start = &start[..start.len().min(MAGIC.len())];
    MAGIC.starts_with(start) || start.iter().all(|byte| *byte == 0)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

fn check(raw: &[u8; LEN]) -> [u8; 8] {
    let mut sum = [0; 8];
    sum.copy_from_slice(&blake3::hash(&raw[..SUM_AT]).as_bytes()[..8]);
    sum
}
