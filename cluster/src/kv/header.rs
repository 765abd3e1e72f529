//! What a KV message says, besides the bodies of pages.
//!
//! Headers are rkyv archives: little-endian (rkyv's default, which `Cargo.toml` leaves on), offsets of 32 bits, the root at
//! the end. They are checked with bytecheck when they come and read where they lie: lists of checksums and hashes are
//! never turned into lists of our own. The crate has no `unsafe`, so each [`CheckedHeader::read`] checks once more, which
//! takes some 1.5 µs with the longest list of pages; read once and keep the reference.

use policies::kv::PageLayout;
use rkyv::{Archive, Deserialize, Serialize};

use super::frame::{MAX_HEADER_BYTES, MAX_SPEC_BYTES};

mod checked;

pub use checked::CheckedHeader;

/// A message's header. `transfer` was drawn by the receiver of pages and is unique in its process; `generation` is the
/// incarnation of the receiver's worker. Pages are numbered from 0 in their sequence.
///
/// The variants' order and their fields are the format: a change of either needs a new [`KV_VERSION`](super::KV_VERSION).
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
#[rkyv(derive(Debug))]
pub enum KvHeader {
    /// From the receiver: compute this request's prompt and send its pages.
    Ask {
        /// The transfer that this begins.
        transfer: u64,
        /// The receiver's incarnation.
        generation: u64,
        /// What the pages have to have in common with the receiver's ([`policies::kv::Fingerprint`]).
        fingerprint: [u8; 32],
        /// The shape of the receiver's pages; the link refuses another than its own.
        layout: WireLayout,
        /// The first page that the receiver does not hold.
        first_page: u32,
        /// Whether pages are wanted at all, or the first tokens only.
        want_pages: bool,
        /// Whether the receiver has pages for them; else a [`KvHeader::Open`] says so later, and from which page on.
        reserved: bool,
        /// Pages that may be sent before there is a [`KvHeader::Credit`].
        window: u32,
        /// The request ([`encode_spec`](super::encode_spec)); at most [`MAX_SPEC_BYTES`].
        spec: Vec<u8>,
        /// The receiver takes over what runs at the sender as this attempt; none: a prompt is to be computed.
        takes: Option<u32>,
        /// Only what the sender holds of the prompt is wanted: it computes nothing.
        held: bool,
        /// Who holds the start of the prompt that the sender is to compute, if it is another.
        prefix: Option<WirePrefix>,
    },
    /// From the sender: the request is being computed.
    Accepted {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
    },
    /// From the sender: the request is not computed, or no longer.
    Refused {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
        /// Why, for the core.
        code: RefusalCode,
        /// Why, for people; at most 1,024 bytes.
        why: String,
    },
    /// From the sender: full pages, whose bodies follow.
    Pages {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
        /// Number of the first page.
        first: u32,
        /// XXH3-64 of each body. Set by the carrier: what is given here is ignored. Empty where nothing was copied.
        checksums: Vec<u64>,
        /// Hashes of the pages ([`policies::kv::PageHash`]), as many as are known.
        hashes: Vec<[u8; 16]>,
    },
    /// From the sender: the prompt is computed; the bodies of the last pages follow, the partly filled one among them.
    Last {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
        /// Tokens whose keys and values are in the pages.
        tokens: u32,
        /// Those of them that the sender found in its prefix cache.
        cached: u32,
        /// The first token of each choice ([`encode_drawn`](super::encode_drawn)).
        result: Vec<u8>,
        /// Number of the first page that follows.
        first: u32,
        /// As in [`KvHeader::Pages`].
        checksums: Vec<u64>,
        /// As in [`KvHeader::Pages`]; a partly filled page has none.
        hashes: Vec<[u8; 16]>,
    },
    /// From the receiver: so many more pages may be sent.
    Credit {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
        /// How many more.
        pages: u32,
    },
    /// From the receiver: all is here and taken over.
    Ack {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
    },
    /// From either end: give the transfer up.
    Cancel {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
        /// Why, for people; at most 1,024 bytes.
        why: String,
    },
    /// From the sender: nothing is held for the transfer any more.
    Released {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
    },
    /// From the sender: it is the prompt's turn, and pages are needed for it.
    Begun {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
    },
    /// From the receiver: there are pages now.
    Open {
        /// Which transfer.
        transfer: u64,
        /// Of which life of the receiver.
        generation: u64,
        /// The first page that the receiver does not hold.
        first_page: u32,
        /// Pages that may be sent before there is a [`KvHeader::Credit`].
        window: u32,
    },
}

impl KvHeader {
    /// Sets the checksums of the pages that follow; nothing where none can.
    pub(super) fn set_checksums(&mut self, sums: Vec<u64>) {
        if let Self::Pages { checksums, .. } | Self::Last { checksums, .. } = self {
            *checksums = sums;
        }
    }
}

/// [`PageLayout`] as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Archive, Serialize, Deserialize)]
#[rkyv(derive(Debug))]
pub struct WireLayout {
    /// Tokens a page.
    pub page_tokens: u32,
    /// Transformer layers.
    pub layers: u32,
    /// KV heads a layer.
    pub kv_heads: u32,
    /// Elements a head.
    pub head_dim: u32,
    /// Bytes an element.
    pub element_bytes: u32,
}

impl From<PageLayout> for WireLayout {
    fn from(layout: PageLayout) -> Self {
        let PageLayout { page_tokens, layers, kv_heads, head_dim, element_bytes } = layout;
        Self { page_tokens, layers, kv_heads, head_dim, element_bytes }
    }
}

impl From<&ArchivedWireLayout> for PageLayout {
    fn from(layout: &ArchivedWireLayout) -> Self {
        Self {
            page_tokens: layout.page_tokens.to_native(),
            layers: layout.layers.to_native(),
            kv_heads: layout.kv_heads.to_native(),
            head_dim: layout.head_dim.to_native(),
            element_bytes: layout.element_bytes.to_native(),
        }
    }
}

/// The start of a prompt at a third worker.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
#[rkyv(derive(Debug))]
pub struct WirePrefix {
    /// Where that worker takes questions about pages.
    pub address: String,
    /// Tokens of the prompt that it holds, as far as is known.
    pub tokens: u32,
}

/// Why a sender does not compute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
#[rkyv(derive(Debug))]
#[repr(u8)]
pub enum RefusalCode {
    /// The pages would be of other weights, another quantisation or other settings.
    Fingerprint,
    /// The worker takes no requests: it drains, or has another role.
    Unavailable,
    /// Its queue is full.
    QueueFull,
    /// The prompt is longer than it can hold.
    TooLong,
    /// The request cannot be read, or asks for what cannot be.
    Malformed,
    /// Its engine failed on the request.
    Failed,
    /// It gave the transfer up: nobody acknowledged it, or it ran out of time.
    Expired,
}

impl RefusalCode {
    /// Name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fingerprint => "fingerprint",
            Self::Unavailable => "unavailable",
            Self::QueueFull => "queue-full",
            Self::TooLong => "too-long",
            Self::Malformed => "malformed",
            Self::Failed => "failed",
            Self::Expired => "expired",
        }
    }
}

impl From<&ArchivedRefusalCode> for RefusalCode {
    fn from(code: &ArchivedRefusalCode) -> Self {
        match code {
            ArchivedRefusalCode::Fingerprint => Self::Fingerprint,
            ArchivedRefusalCode::Unavailable => Self::Unavailable,
            ArchivedRefusalCode::QueueFull => Self::QueueFull,
            ArchivedRefusalCode::TooLong => Self::TooLong,
            ArchivedRefusalCode::Malformed => Self::Malformed,
            ArchivedRefusalCode::Failed => Self::Failed,
            ArchivedRefusalCode::Expired => Self::Expired,
        }
    }
}

/// The kinds of message; the number is what travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// [`KvHeader::Ask`].
    Ask = 1,
    /// [`KvHeader::Accepted`].
    Accepted = 2,
    /// [`KvHeader::Refused`].
    Refused = 3,
    /// [`KvHeader::Pages`].
    Pages = 4,
    /// [`KvHeader::Last`].
    Last = 5,
    /// [`KvHeader::Credit`].
    Credit = 6,
    /// [`KvHeader::Ack`].
    Ack = 7,
    /// [`KvHeader::Cancel`].
    Cancel = 8,
    /// [`KvHeader::Released`].
    Released = 9,
    /// [`KvHeader::Begun`].
    Begun = 10,
    /// [`KvHeader::Open`].
    Open = 11,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Ask,
        Self::Accepted,
        Self::Refused,
        Self::Pages,
        Self::Last,
        Self::Credit,
        Self::Ack,
        Self::Cancel,
        Self::Released,
        Self::Begun,
        Self::Open,
    ];

    /// Name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Pages => "pages",
            Self::Last => "last",
            Self::Credit => "credit",
            Self::Ack => "ack",
            Self::Cancel => "cancel",
            Self::Released => "released",
            Self::Begun => "begun",
            Self::Open => "open",
        }
    }

    pub(super) fn of_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == tag)
    }

    /// The longest header of this kind in bytes.
    pub(super) const fn max_header(self) -> usize {
        match self {
            // All but the request is short.
            Self::Ask => MAX_SPEC_BYTES + 4096,
            _ => MAX_HEADER_BYTES,
        }
    }

    /// Whether bodies of pages may follow.
    pub(super) const fn has_pages(self) -> bool {
        matches!(self, Self::Pages | Self::Last)
    }
}

impl ArchivedKvHeader {
    /// The kind of message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Ask { .. } => Kind::Ask,
            Self::Accepted { .. } => Kind::Accepted,
            Self::Refused { .. } => Kind::Refused,
            Self::Pages { .. } => Kind::Pages,
            Self::Last { .. } => Kind::Last,
            Self::Credit { .. } => Kind::Credit,
            Self::Ack { .. } => Kind::Ack,
            Self::Cancel { .. } => Kind::Cancel,
            Self::Released { .. } => Kind::Released,
            Self::Begun { .. } => Kind::Begun,
            Self::Open { .. } => Kind::Open,
        }
    }

    /// The transfer and the generation, which every message names.
    #[must_use]
    pub fn transfer(&self) -> (u64, u64) {
        match self {
            Self::Ask { transfer, generation, .. }
            | Self::Accepted { transfer, generation }
            | Self::Refused { transfer, generation, .. }
            | Self::Pages { transfer, generation, .. }
            | Self::Last { transfer, generation, .. }
            | Self::Credit { transfer, generation, .. }
            | Self::Ack { transfer, generation }
            | Self::Cancel { transfer, generation, .. }
            | Self::Released { transfer, generation }
            | Self::Begun { transfer, generation }
            | Self::Open { transfer, generation, .. } => (transfer.to_native(), generation.to_native()),
        }
    }

    /// The pages that follow, of a message that may have some.
    #[must_use]
    pub fn pages(&self) -> Option<PageList<'_>> {
        match self {
            Self::Pages { first, checksums, hashes, .. } | Self::Last { first, checksums, hashes, .. } => {
                Some(PageList { first: first.to_native(), checksums, hashes })
            }
            _ => None,
        }
    }
}

/// What a header says of the pages that follow it, where it lies.
#[derive(Clone, Copy, Debug)]
pub struct PageList<'a> {
    /// Number of the first.
    pub first: u32,
    /// The checksum of each; none where nothing was copied.
    pub checksums: &'a [rkyv::rend::u64_le],
    /// The hashes that are known, from the first page on.
    pub hashes: &'a [[u8; 16]],
}

#[cfg(test)]
mod tests;
