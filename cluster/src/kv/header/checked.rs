//! Headers as bytes: what of them is checked, once, when they come.

use std::sync::Arc;

use policies::kv::PageLayout;
use rkyv::rancor;
use rkyv::util::AlignedVec;

use super::{ArchivedKvHeader, ArchivedWireLayout, Kind, KvHeader, PageList};
use crate::kv::error::KvError;
use crate::kv::frame::{LONGEST_TEXT, MAX_PAGES, MAX_SPEC_BYTES};

/// A header as bytes that have been checked. Clones are the same bytes.
#[derive(Clone)]
pub struct CheckedHeader {
    bytes: Arc<AlignedVec>,
    kind: Kind,
}

impl CheckedHeader {
    /// `header` as bytes. A text that is too long is cut, and loses its control characters.
    ///
    /// # Errors
    /// A field is over its limit, so that the receiver would refuse the message.
    pub fn encode(mut header: KvHeader) -> Result<Self, KvError> {
        if let KvHeader::Refused { why, .. } | KvHeader::Cancel { why, .. } = &mut header
            && !is_clean(why)
        {
            *why = clean(why);
        }
        let bytes = rkyv::to_bytes::<rancor::Error>(&header)
            .map_err(|e| KvError::malformed("header", format!("cannot be encoded: {e}")))?;
        Self::check(bytes)
    }

    /// Takes `bytes` for a header once they have shown to be one.
    pub(in crate::kv) fn check(bytes: AlignedVec) -> Result<Self, KvError> {
        let header = rkyv::access::<ArchivedKvHeader, rancor::Error>(&bytes)
            .map_err(|e| KvError::malformed("header", format!("is no header: {e}")))?;
        let kind = header.kind();
        KvError::limit("header", bytes.len(), kind.max_header())?;
        limits(header)?;
        Ok(Self { bytes: Arc::new(bytes), kind })
    }

    /// The header, where it lies.
    #[must_use]
    pub fn read(&self) -> &ArchivedKvHeader {
        rkyv::access::<ArchivedKvHeader, rancor::Error>(&self.bytes)
            .expect("these bytes were checked when they came, and nobody can change them")
    }

    /// The kind of message.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The archive.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What can only be checked with the pages that follow and the layout of the link's.
    pub(in crate::kv) fn check_pages(
        &self,
        pages: usize,
        summed: bool,
        ours: Option<&PageLayout>,
    ) -> Result<(), KvError> {
        let header = self.read();
        if let ArchivedKvHeader::Ask { layout, .. } = header {
            return same_layout(layout, ours.ok_or_else(KvError::unasked)?);
        }
        let Some(PageList { first, checksums, hashes }) = header.pages() else {
            return if pages == 0 {
                Ok(())
            } else {
                Err(KvError::malformed("pages", format!("follow a message of kind `{}`", self.kind.as_str())))
            };
        };
        KvError::limit("pages", pages, MAX_PAGES)?;
        if summed && checksums.len() != pages {
            return Err(KvError::malformed(
                "checksums",
                format!("are {} for {pages} pages", checksums.len()),
            ));
        }
        KvError::limit("hashes", hashes.len(), pages)?;
        if pages == 0 && self.kind == Kind::Pages {
            return Err(KvError::malformed("pages", "are none"));
        }
        match first.checked_add(u32::try_from(pages).unwrap_or(u32::MAX)) {
            Some(_) => Ok(()),
            None => Err(KvError::malformed("first", format!("is {first}: no sequence has so many pages"))),
        }
    }
}

impl std::fmt::Debug for CheckedHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (transfer, generation) = self.read().transfer();
        f.debug_struct("CheckedHeader")
            .field("kind", &self.kind)
            .field("transfer", &transfer)
            .field("generation", &generation)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// The limits of single fields.
fn limits(header: &ArchivedKvHeader) -> Result<(), KvError> {
    match header {
        ArchivedKvHeader::Ask { spec, .. } => KvError::limit("spec", spec.len(), MAX_SPEC_BYTES),
        ArchivedKvHeader::Refused { why, .. } | ArchivedKvHeader::Cancel { why, .. } => {
            KvError::limit("why", why.len(), LONGEST_TEXT)?;
            if is_clean(why) {
                return Ok(());
            }
            Err(KvError::malformed("why", "has control characters"))
        }
        ArchivedKvHeader::Pages { checksums, hashes, .. } => {
            KvError::limit("checksums", checksums.len(), MAX_PAGES)?;
            KvError::limit("hashes", hashes.len(), MAX_PAGES)
        }
        ArchivedKvHeader::Last { tokens, cached, checksums, hashes, .. } => {
            KvError::limit("checksums", checksums.len(), MAX_PAGES)?;
            KvError::limit("hashes", hashes.len(), MAX_PAGES)?;
            KvError::limit("cached", cached.to_native() as usize, tokens.to_native() as usize)
        }
        ArchivedKvHeader::Accepted { .. }
        | ArchivedKvHeader::Credit { .. }
        | ArchivedKvHeader::Ack { .. }
        | ArchivedKvHeader::Released { .. }
        | ArchivedKvHeader::Begun { .. }
        | ArchivedKvHeader::Open { .. } => Ok(()),
    }
}

fn same_layout(theirs: &ArchivedWireLayout, ours: &PageLayout) -> Result<(), KvError> {
    let PageLayout { page_tokens, layers, kv_heads, head_dim, element_bytes } = *ours;
    let fields = [
        ("page_tokens", page_tokens, theirs.page_tokens),
        ("layers", layers, theirs.layers),
        ("kv_heads", kv_heads, theirs.kv_heads),
        ("head_dim", head_dim, theirs.head_dim),
        ("element_bytes", element_bytes, theirs.element_bytes),
    ];
    match fields.into_iter().find(|(_, ours, theirs)| *ours != theirs.to_native()) {
        None => Ok(()),
        Some((field, ours, theirs)) => {
            Err(KvError::Layout { field, ours: ours.into(), theirs: theirs.to_native().into() })
        }
    }
}

fn is_clean(text: &str) -> bool {
    text.len() <= LONGEST_TEXT && !text.chars().any(char::is_control)
}

/// `text` as the other end takes it.
fn clean(text: &str) -> String {
    let mut out: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while out.len() > LONGEST_TEXT {
        out.pop();
    }
    out
}
