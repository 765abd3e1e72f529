//! What the pages on a link look like: known when it is made, or from the first question on.
//!
//! A worker exchanges pages of one layout. A pool keeps those of any model, so that a link which is opened to it has the layout
//! that the first question over it names. Until then nothing but a question is taken; from then on everything is held against
//! that layout, the next questions too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use policies::kv::PageLayout;

use super::error::KvError;
use super::frame::MAX_BODY_BYTES;
use super::page::PagePool;

/// Bytes of buffers of one size that are kept for the next pages.
const KEEP_BYTES: usize = 64 * 1024 * 1024;

/// Pages of one layout, and where received ones are put.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    pub(super) layout: PageLayout,
    /// Of pages of the layout's size.
    pub(super) pool: PagePool,
}

/// What an end takes.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    One(Pages),
    Any(Shelf),
}

impl Shape {
    pub(super) const fn pages(&self) -> Option<&Pages> {
        match self {
            Self::One(pages) => Some(pages),
            Self::Any(_) => None,
        }
    }

    /// The same with pages of `layout` alone, where any are taken.
    pub(super) fn of(&self, layout: PageLayout) -> Result<Self, KvError> {
        match self {
            Self::One(_) => Ok(self.clone()),
            Self::Any(shelf) => Ok(Self::One(shelf.pages(layout)?)),
        }
    }

    /// For one link.
    pub(super) fn settings(&self, stall: Duration) -> Settings {
        let (agreed, shelf) = match self {
            Self::One(pages) => (OnceLock::from(pages.clone()), None),
            Self::Any(shelf) => (OnceLock::new(), Some(shelf.clone())),
        };
        Settings { agreed: Arc::new(agreed), shelf, stall }
    }
}

/// Buffers of any size: of each as many as fit into so many bytes. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    bytes: usize,
    by_size: Arc<Mutex<BTreeMap<usize, PagePool>>>,
}

impl Shelf {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes, by_size: Arc::default() }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> usize {
        self.by_size.lock().expect("whole").len()
    }

    fn pages(&self, layout: PageLayout) -> Result<Pages, KvError> {
        let page_bytes = check(&layout)?;
        // Nothing panics while it is held.
        let mut by_size = self.by_size.lock().unwrap_or_else(PoisonError::into_inner);
        by_size.retain(|size, pool| *size == page_bytes || pool.is_used());
        let (most, keep) = (self.bytes / page_bytes, KEEP_BYTES / page_bytes);
        let pool = by_size.entry(page_bytes).or_insert_with(|| PagePool::new(page_bytes, most, keep)).clone();
        Ok(Pages { layout, pool })
    }
}

/// What both halves of a link have to know. Clones are of the same link.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    agreed: Arc<OnceLock<Pages>>,
    shelf: Option<Shelf>,
    /// How long nothing may move in the middle of a message.
    pub(super) stall: Duration,
}

impl Settings {
    /// The pages on the link; none before the first question.
    pub(super) fn pages(&self) -> Option<&Pages> {
        self.agreed.get()
    }

    /// The shape of the pages on the link.
    pub(super) fn layout(&self) -> Option<&PageLayout> {
        self.pages().map(|pages| &pages.layout)
    }

    /// The other end asks for pages of this shape.
    pub(super) fn agree(&self, layout: PageLayout) -> Result<(), KvError> {
        if let (None, Some(shelf)) = (self.pages(), &self.shelf) {
            // Nobody else sets it: one half receives.
            let _ = self.agreed.set(shelf.pages(layout)?);
        }
        Ok(())
    }
}

/// Bytes of a page, where there is a page of this shape that fits into a message.
fn check(layout: &PageLayout) -> Result<usize, KvError> {
    let PageLayout { page_tokens, layers, kv_heads, head_dim, element_bytes } = *layout;
    let fields = [
        ("page_tokens", page_tokens),
        ("layers", layers),
        ("kv_heads", kv_heads),
        ("head_dim", head_dim),
        ("element_bytes", element_bytes),
    ];
    let mut bytes = 2_u64;
    for (field, value) in fields {
        if value == 0 {
            return Err(KvError::malformed(field, "of a layout is 0"));
        }
        bytes = bytes.saturating_mul(u64::from(value));
        if bytes > MAX_BODY_BYTES as u64 {
            return Err(KvError::TooMuch { field: "page_bytes", got: bytes, limit: MAX_BODY_BYTES as u64 });
        }
    }
    Ok(layout.page_bytes())
}
