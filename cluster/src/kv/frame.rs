//! What stands before a header on a connection, and how much may follow.

use policies::kv::PageLayout;
use xxhash_rust::xxh3::Xxh3Default;

use super::error::KvError;
use super::header::Kind;

/// The format that this build writes and reads. Raised with every change of any byte of any message.
pub const KV_VERSION: u16 = 3;

/// The longest header in bytes; but see [`MAX_SPEC_BYTES`].
pub const MAX_HEADER_BYTES: usize = 1024 * 1024;

/// The most pages a message.
pub const MAX_PAGES: usize = 64;

/// The most bytes of bodies a message.
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// The longest request in an ask, in bytes, encoded: the header of an ask may be longer by that.
pub const MAX_SPEC_BYTES: usize = crate::wire::MAX_BYTES;

/// The longest text for people in a header, in bytes.
pub(super) const LONGEST_TEXT: usize = 1024;

/// Bytes of a prefix.
pub(super) const PREFIX_BYTES: usize = 32;

/// The prefix's bytes that its checksum is of.
const SUMMED: usize = 24;

const MAGIC: [u8; 4] = *b"AKVP";

/// The most pages of this layout a message; 0 where one page is larger than [`MAX_BODY_BYTES`].
#[must_use]
pub const fn max_pages(layout: &PageLayout) -> usize {
    let bytes = layout.page_bytes();
    match MAX_BODY_BYTES.checked_div(bytes) {
        Some(pages) if pages < MAX_PAGES => pages,
        _ => MAX_PAGES,
    }
}

/// What stands before a header; all numbers are little-endian:
///
/// | bytes | what |
/// |---|---|
/// | 0..4 | `AKVP` |
/// | 4..6 | version |
/// | 6 | kind of message |
/// | 7 | 0 |
/// | 8..12 | bytes of the header |
/// | 12..16 | pages that follow it |
/// | 16..20 | bytes of each |
/// | 20..24 | 0 |
/// | 24..32 | XXH3-64 of the bytes before and the header |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) kind: Kind,
    pub(super) header_bytes: usize,
    pub(super) pages: usize,
}

impl Prefix {
    /// The prefix of a message with this `header`.
    pub(super) fn encode(
        kind: Kind,
        header: &[u8],
        pages: usize,
        layout: Option<&PageLayout>,
    ) -> [u8; PREFIX_BYTES] {
        let number = |n: usize| u32::try_from(n).expect("limits were checked, and are far below 4 GiB");
        let mut out = [0; PREFIX_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&KV_VERSION.to_le_bytes());
        out[6] = kind as u8;
        out[8..12].copy_from_slice(&number(header.len()).to_le_bytes());
        out[12..16].copy_from_slice(&number(pages).to_le_bytes());
        let page_bytes = layout.filter(|_| pages > 0).map_or(0, PageLayout::page_bytes);
        out[16..20].copy_from_slice(&number(page_bytes).to_le_bytes());
        let sum = sum(&out, header);
        out[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a prefix. Nothing of what it announces has been read yet, so everything is held against its limit here. Without
    /// a `layout` it has to be that of a question.
    pub(super) fn decode(bytes: &[u8; PREFIX_BYTES], layout: Option<&PageLayout>) -> Result<Self, KvError> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC {
            return Err(KvError::malformed("magic", "is of no KV message"));
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != KV_VERSION {
            return Err(KvError::malformed(
                "version",
                format!("is {version} and this node reads {KV_VERSION}"),
            ));
        }
        let Some(kind) = Kind::of_tag(bytes[6]) else {
            return Err(KvError::malformed("kind", format!("is {}, which no message has", bytes[6])));
        };
        if bytes[7] != 0 || number(20) != 0 {
            return Err(KvError::malformed("reserved", "is not 0"));
        }
        let (header_bytes, pages, page_bytes) =
            (number(8) as usize, number(12) as usize, number(16) as usize);
        if layout.is_none() && kind != Kind::Ask {
            return Err(KvError::unasked());
        }
        KvError::limit("header", header_bytes, kind.max_header())?;
        KvError::limit("pages", pages, MAX_PAGES)?;
        if pages > 0 {
            if !kind.has_pages() {
                return Err(KvError::malformed(
                    "pages",
                    format!("follow a message of kind `{}`", kind.as_str()),
                ));
            }
            let ours = layout.ok_or_else(KvError::unasked)?.page_bytes();
            if page_bytes != ours {
                let (ours, theirs) = (ours as u64, page_bytes as u64);
                return Err(KvError::Layout { field: "page_bytes", ours, theirs });
            }
            KvError::limit("body", pages.saturating_mul(page_bytes), MAX_BODY_BYTES)?;
        } else if page_bytes != 0 {
            return Err(KvError::malformed("page_bytes", "is not 0 where no pages follow"));
        }
        Ok(Self { kind, header_bytes, pages })
    }

    /// Whether `bytes` and the `header` are what was sent.
    pub(super) fn verify(bytes: &[u8; PREFIX_BYTES], header: &[u8]) -> Result<(), KvError> {
        if bytes[SUMMED..] == sum(bytes, header).to_le_bytes() {
            return Ok(());
        }
        Err(KvError::malformed("header", "has not the checksum that it was sent with"))
    }
}

fn sum(prefix: &[u8; PREFIX_BYTES], header: &[u8]) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(&prefix[..SUMMED]);
    hash.update(header);
    hash.digest()
}
