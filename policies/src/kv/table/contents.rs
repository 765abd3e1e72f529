//! What the table holds, told as if it were new.

use config::ids::PageId;

use crate::kv::events::KvEvent;
use crate::kv::table::{Cached, NONE, PageTable};

impl PageTable {
    /// Events that make all pages findable that can be found now, from the empty set on: each page after its parent, with
    /// its tokens; as few events as there are leaves. O(pages + tokens).
    #[must_use]
    pub fn contents(&self) -> Vec<KvEvent> {
        // Of each page one child, and another child of the same parent.
        let (mut child, mut sibling) = (vec![NONE; self.pages.len()], vec![NONE; self.pages.len()]);
        let mut starts = Vec::new();
        for (i, page) in self.pages.iter().enumerate() {
            match page.cached.map(|cached| cached.parent) {
                None => {}
                Some(None) => starts.push(i as u32),
                Some(Some(parent)) => {
                    sibling[i] = std::mem::replace(&mut child[parent.index()], i as u32);
                }
            }
        }
        let mut events = Vec::new();
        while let Some(start) = starts.pop() {
            let parent =
                self.cached(start).and_then(|c| c.parent).and_then(|p| self.cached(p.0)).map(|c| c.hash);
            let (mut pages, mut tokens) = (Vec::new(), Vec::new());
            let mut at = start;
            while let Some(cached) = self.cached(at) {
                pages.push(cached.hash);
                tokens.extend_from_slice(self.tokens_of(PageId(at)));
                at = child[at as usize];
                // One child goes on, the others begin events of their own.
                let mut other = sibling.get(at as usize).copied().unwrap_or(NONE);
                while other != NONE {
                    starts.push(other);
                    other = sibling[other as usize];
                }
            }
            events.push(KvEvent::Stored { parent, pages, tokens });
        }
        events
    }

    /// None for [`NONE`] too.
    fn cached(&self, page: u32) -> Option<Cached> {
        self.pages.get(page as usize)?.cached
    }
}
