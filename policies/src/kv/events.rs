//! What a worker tells others about its cached pages: which can be found by content from now on, and which no longer.
//!
//! Replaying a worker's events in order, from the empty set on, gives at any moment exactly the pages that can be found
//! there. What they mean is that of the events of other engines (vLLM, SGLang), so that they can be exported to routers
//! made for those.

use crate::kv::PageHash;
use crate::request::Token;

/// A change of the set of pages that can be found at a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// These pages can be found from now on.
    Stored {
        /// The page before the first one; none where that starts a prompt.
        parent: Option<PageHash>,
        /// The pages, each following the one before it.
        pages: Vec<PageHash>,
        /// Their tokens, `page-tokens` a page; empty unless [`super::table::PageTable::record`] was asked for them.
        tokens: Vec<Token>,
    },
    /// These pages cannot be found any more; a page never goes before those that follow it.
    Removed {
        /// The pages.
        pages: Vec<PageHash>,
    },
    /// No page can be found any more.
    Cleared,
}

impl KvEvent {
    /// Pages that the event names.
    #[must_use]
    pub const fn pages(&self) -> usize {
        match self {
            Self::Stored { pages, .. } | Self::Removed { pages } => pages.len(),
            Self::Cleared => 0,
        }
    }

    /// The event for those that know pages by their hashes alone.
    #[must_use]
    pub fn without_tokens(&self) -> Self {
        match self {
            Self::Stored { parent, pages, tokens: _ } => {
                Self::Stored { parent: *parent, pages: pages.clone(), tokens: Vec::new() }
            }
            other => other.clone(),
        }
    }
}

/// Which events are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// None.
    #[default]
    Off,
    /// All, without tokens.
    Hashes,
    /// All, with tokens.
    Tokens,
}

/// Events that nobody has taken yet, in order; neighbours of the same kind are one event.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorder {
    pub(super) what: Recording,
    pub(super) events: Vec<KvEvent>,
}

impl Recorder {
    /// `page`, which follows `parent` and holds `content`, can be found.
    pub(super) fn stored(&mut self, page: PageHash, parent: Option<PageHash>, content: &[Token]) {
        let content: &[Token] = match self.what {
            Recording::Off => return,
            Recording::Hashes => &[],
            Recording::Tokens => content,
        };
        if let Some(KvEvent::Stored { pages, tokens, .. }) = self.events.last_mut()
            && parent.is_some()
            && pages.last().copied() == parent
        {
            pages.push(page);
            tokens.extend_from_slice(content);
            return;
        }
        self.events.push(KvEvent::Stored { parent, pages: vec![page], tokens: content.to_vec() });
    }

    /// `page` cannot be found any more.
    pub(super) fn removed(&mut self, page: PageHash) {
        if self.what == Recording::Off {
            return;
        }
        if let Some(KvEvent::Removed { pages }) = self.events.last_mut() {
            pages.push(page);
            return;
        }
        self.events.push(KvEvent::Removed { pages: vec![page] });
    }
}
