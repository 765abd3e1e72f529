//! The page table: who holds which page, and which pages can be found again by their content.
//!
//! A page is *free*, *private* (held, not findable) or *cached* (full, immutable, findable by content; held by any
//! number of sequences or by none). Cached pages that nobody holds are the first to be taken when free pages run out,
//! least recently released first.
//!
//! Two properties make a hit safe and eviction simple:
//! - A cached page names its parent by page, not by hash, and the parent stays cached as long as it has cached children.
//!   A hit compares parent and tokens, so that by induction the whole prefix is compared: a hash collision is a miss.
//! - Whoever holds a cached page holds its parent too and releases it later, so that the least recently released page is
//!   always a leaf.

use config::ids::PageId;

use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::kv::PageHash;
use crate::kv::events::{KvEvent, Recorder, Recording};
use crate::request::Token;

mod contents;
mod index;
mod wanted;

use index::Index;
use wanted::Wanted;

const NONE: u32 = u32::MAX;

/// Evictions whose memory is fetched at a time.
const FETCH: u32 = 32;

/// Pages of one worker. All operations but [`PageTable::check`] and construction are O(log pages) or better.
#[derive(Clone, Debug)]
pub struct PageTable {
    pages: Vec<Page>,
    /// Tokens of cached pages, `page_tokens` a page.
    tokens: Vec<Token>,
    page_tokens: usize,
    free: Vec<PageId>,
    index: Index,
    /// Pages that those who wait will look for.
    wanted: Wanted,
    /// Cached pages that nobody holds, least recently released first: a doubly linked list through `pages`.
    oldest: u32,
    newest: u32,
    idle: u32,
    recorder: Recorder,
}

#[derive(Clone, Debug)]
struct Page {
    holders: u32,
    cached: Option<Cached>,
    /// Neighbours in the list of idle cached pages.
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug)]
struct Cached {
    hash: PageHash,
    parent: Option<PageId>,
    children: u32,
}

/// What became of a page offered with [`PageTable::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It can be found from now on.
    Now,
    /// This page has the same content and was there before; hold that one instead.
    Duplicate(PageId),
    /// It stays private: its hash is taken by other content, or its parent is private.
    Private,
}

impl PageTable {
    /// A table of `pages` free pages of `page_tokens` tokens.
    #[must_use]
    pub fn new(pages: u32, page_tokens: u32) -> Self {
        let blank = Page { holders: 0, cached: None, older: NONE, newer: NONE };
        Self {
            pages: vec![blank; pages as usize],
            tokens: vec![0; pages as usize * page_tokens as usize],
            page_tokens: page_tokens as usize,
            free: (0..pages).rev().map(PageId).collect(),
            index: Index::new(pages),
            wanted: Wanted::default(),
            oldest: NONE,
            newest: NONE,
            idle: 0,
            recorder: Recorder::default(),
        }
    }

    /// Records which pages become findable and which stop being so, for [`PageTable::take_events`]; what was recorded
    /// and not taken is dropped. Off at first.
    pub fn record(&mut self, what: Recording) {
        self.recorder = Recorder { what, events: Vec::new() };
    }

    /// Moves what was recorded since the last call to the end of `events`, in order.
    pub fn take_events(&mut self, events: &mut Vec<KvEvent>) {
        events.append(&mut self.recorder.events);
    }

    /// All pages that can be found, in order of their hashes.
    pub fn findable(&self) -> impl ExactSizeIterator<Item = PageHash> + '_ {
        let cached = self.pages.iter().filter_map(|page| page.cached);
        let mut hashes: Vec<PageHash> = cached.map(|cached| cached.hash).collect();
        hashes.sort_unstable();
        hashes.into_iter()
    }

    /// Pages in all.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Cached pages that nobody holds.
    #[must_use]
    pub const fn idle(&self) -> u32 {
        self.idle
    }

    /// Pages that can be taken: free ones and idle cached ones.
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.free.len() as u32 + self.idle
    }

    /// Pages that somebody holds.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.total() - self.available()
    }

    /// How many hold `page`.
    #[must_use]
    pub fn holders(&self, page: PageId) -> u32 {
        self.pages[page.index()].holders
    }

    /// Whether `page` can be found by content.
    #[must_use]
    pub fn is_cached(&self, page: PageId) -> bool {
        self.pages[page.index()].cached.is_some()
    }

    /// The cached page that holds `tokens` after the cached page `parent` (none: at the start). The tokens and the
    /// parent are compared, not only the hash.
    #[must_use]
    pub fn find(&self, hash: &PageHash, parent: Option<PageId>, tokens: &[Token]) -> Option<PageId> {
        let page = self.named(hash)?;
        let cached = self.pages[page.index()].cached?;
        (cached.parent == parent && self.tokens_of(page) == tokens).then_some(page)
    }

    /// Somebody who waits will look for these pages.
    pub fn want(&mut self, pages: impl IntoIterator<Item = PageHash> + Clone) {
        self.fetch(pages.clone());
        for page in pages {
            let found = self.named(&page).is_some();
            self.wanted.add(page, found);
        }
    }

    /// Somebody who said so with [`PageTable::want`] waits no more.
    pub fn unwant(&mut self, pages: impl IntoIterator<Item = PageHash>) {
        for page in pages {
            let found = self.named(&page).is_some();
            self.wanted.remove(&page, found);
        }
    }

    /// Whether a page is one more in [`PageTable::missing`] when somebody wants it.
    #[must_use]
    pub fn would_miss(&self, page: &PageHash) -> bool {
        !self.wanted.has(page) && self.named(page).is_none()
    }

    /// Pages that are wanted and cannot be found, each once however many want it.
    #[must_use]
    pub const fn missing(&self) -> u64 {
        self.wanted.missing()
    }

    /// Holds `hits` and takes `fresh` more pages, or changes nothing where they do not fit. The hits are held before
    /// anything is evicted, so that no page is lost between being found and being used.
    ///
    /// Returns the hits followed by the fresh pages.
    pub fn claim(&mut self, hits: &[PageId], fresh: u32) -> Option<Vec<PageId>> {
        if self.room_beside(hits) < fresh {
            return None;
        }
        let mut pages = Vec::with_capacity(hits.len() + fresh as usize);
        for &page in hits {
            self.hold(page);
            pages.push(page);
        }
        for left in (1..=fresh).rev() {
            if self.free.is_empty() && (fresh - left).is_multiple_of(FETCH) {
                self.fetch_oldest(left.min(FETCH));
            }
            pages.push(self.take()?);
        }
        Some(pages)
    }

    /// Reads what the next `count` evictions look at: each is somewhere else in memory, and so they come at the same time
    /// instead of one after the other.
    fn fetch_oldest(&self, count: u32) {
        let mut at = self.oldest;
        let oldest = std::iter::from_fn(|| {
            let page = self.pages.get(at as usize)?;
            at = page.newer;
            page.cached.as_ref()
        });
        let read = oldest.take(count as usize).map(|cached| self.index.peek(&cached.hash));
        std::hint::black_box(read.fold(0, u32::wrapping_add));
    }

    /// As [`PageTable::fetch_oldest`], for pages that are about to be looked for or published.
    pub fn fetch(&self, pages: impl IntoIterator<Item = PageHash>) {
        let read = pages.into_iter().map(|page| self.index.peek(&page));
        std::hint::black_box(read.fold(0, u32::wrapping_add));
    }

    /// Pages that could be taken once `hits` are held.
    #[must_use]
    pub fn room_beside(&self, hits: &[PageId]) -> u32 {
        let idle_hits = hits.iter().filter(|p| self.holders(**p) == 0).count();
        self.available() - idle_hits as u32
    }

    /// One more holder for a page that is held or cached.
    pub fn hold(&mut self, page: PageId) {
        let entry = &mut self.pages[page.index()];
        entry.holders += 1;
        if entry.holders == 1 && entry.cached.is_some() {
            self.unlink(page);
        }
    }

    /// Takes one page, private and held once: a free one, or else the least recently released idle one.
    pub fn take(&mut self) -> Option<PageId> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => self.evict()?,
        };
        self.pages[page.index()].holders = 1;
        Some(page)
    }

    /// One holder less. A sequence releases its pages last to first, see the module's second property.
    pub fn release(&mut self, page: PageId) {
        let entry = &mut self.pages[page.index()];
        entry.holders = entry.holders.saturating_sub(1);
        if entry.holders > 0 {
            return;
        }
        if entry.cached.is_some() {
            self.link(page);
        } else {
            self.free.push(page);
        }
    }

    /// Makes a full, held, private page findable. `parent` is the page before it in its sequence. Call it only when the
    /// step that filled the page has completed.
    pub fn publish(
        &mut self,
        page: PageId,
        hash: PageHash,
        parent: Option<PageId>,
        tokens: &[Token],
    ) -> Published {
        if parent.is_some_and(|p| !self.is_cached(p))
            || self.is_cached(page)
            || tokens.len() != self.page_tokens
        {
            return Published::Private;
        }
        if self.named(&hash).is_some() {
            return self.find(&hash, parent, tokens).map_or(Published::Private, Published::Duplicate);
        }
        self.index.insert(&hash, page);
        self.wanted.found(&hash);
        self.pages[page.index()].cached = Some(Cached { hash, parent, children: 0 });
        let at = page.index() * self.page_tokens;
        self.tokens[at..at + self.page_tokens].copy_from_slice(tokens);
        if let Some(parent) = parent {
            self.add_children(parent, 1);
        }
        let before = parent.and_then(|p| self.pages[p.index()].cached).map(|c| c.hash);
        self.recorder.stored(hash, before, tokens);
        Published::Now
    }

    /// The cached page with this hash, whatever it holds.
    fn named(&self, hash: &PageHash) -> Option<PageId> {
        let is = |page: PageId| self.pages[page.index()].cached.is_some_and(|cached| cached.hash == *hash);
        self.index.find(hash, is)
    }

    fn tokens_of(&self, page: PageId) -> &[Token] {
        let at = page.index() * self.page_tokens;
        &self.tokens[at..at + self.page_tokens]
    }

    fn add_children(&mut self, page: PageId, by: i32) {
        if let Some(cached) = &mut self.pages[page.index()].cached {
            cached.children = cached.children.saturating_add_signed(by);
        }
    }

    /// Forgets the content of the least recently released leaf.
    fn evict(&mut self) -> Option<PageId> {
        let mut at = self.oldest;
        while at != NONE {
            let page = PageId(at);
            if let Some(cached) = self.pages[page.index()].cached
                && cached.children == 0
            {
                self.unlink(page);
                self.index.remove(&cached.hash, page);
                self.wanted.lost(&cached.hash);
                self.recorder.removed(cached.hash);
                self.pages[page.index()].cached = None;
                if let Some(parent) = cached.parent {
                    self.add_children(parent, -1);
                }
                return Some(page);
            }
            at = self.pages[page.index()].newer;
        }
        None
    }

    fn link(&mut self, page: PageId) {
        let newest = self.newest;
        let entry = &mut self.pages[page.index()];
        (entry.older, entry.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = page.0,
            other => self.pages[other as usize].newer = page.0,
        }
        self.newest = page.0;
        self.idle += 1;
    }

    fn unlink(&mut self, page: PageId) {
        let (older, newer) = (self.pages[page.index()].older, self.pages[page.index()].newer);
        match older {
            NONE => self.oldest = newer,
            other => self.pages[other as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            other => self.pages[other as usize].older = older,
        }
        self.idle -= 1;
    }

    /// Checks the table against `holders`, which counts for each page how often sequences name it.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self, holders: &[u32]) -> Result<(), Broken> {
        let mut children = vec![0_u32; self.pages.len()];
        let mut idle = 0;
        for (i, page) in self.pages.iter().enumerate() {
            ensure_invariant!(
                page.holders == holders[i],
                "page_refcount",
                "page {i} counts {} holders, sequences name it {} times",
                page.holders,
                holders[i]
            );
            let Some(cached) = page.cached else { continue };
            idle += u32::from(page.holders == 0);
            ensure_invariant!(
                self.named(&cached.hash) == Some(PageId(i as u32)),
                "page_index",
                "cached page {i} is not found under its hash"
            );
            if let Some(parent) = cached.parent {
                children[parent.index()] += 1;
                ensure_invariant!(
                    self.is_cached(parent) && (page.holders == 0 || self.holders(parent) > 0),
                    "page_parent",
                    "page {i} outlives its parent {parent}"
                );
            }
        }
        for (i, page) in self.pages.iter().enumerate() {
            let counted = page.cached.map_or(0, |c| c.children);
            ensure_invariant!(
                counted == children[i],
                "page_children",
                "page {i} counts {counted} children, has {}",
                children[i]
            );
        }
        let cached = self.pages.iter().filter(|p| p.cached.is_some()).count();
        ensure_invariant!(
            self.index.len() == cached,
            "page_index",
            "{} hashes name {cached} pages",
            self.index.len()
        );
        self.wanted.check(|page| self.named(page).is_some())?;
        self.check_lists(idle)
    }

    /// Every page is in exactly one of: the free list, the idle list, somebody's hands.
    fn check_lists(&self, idle: u32) -> Result<(), Broken> {
        let mut seen = vec![false; self.pages.len()];
        for &page in &self.free {
            let entry = &self.pages[page.index()];
            ensure_invariant!(
                entry.holders == 0 && entry.cached.is_none() && !seen[page.index()],
                "page_free",
                "page {page} is free and also held, cached or free twice"
            );
            seen[page.index()] = true;
        }
        let (mut at, mut listed) = (self.oldest, 0);
        while at != NONE {
            let entry = &self.pages[at as usize];
            ensure_invariant!(
                entry.holders == 0 && entry.cached.is_some() && !seen[at as usize],
                "page_idle",
                "page {at} is in the idle list and also held, blank or listed twice"
            );
            seen[at as usize] = true;
            listed += 1;
            at = entry.newer;
        }
        ensure_invariant!(
            listed == idle && idle == self.idle,
            "page_idle",
            "{listed} pages listed, {idle} idle, {} counted",
            self.idle
        );
        let lost = self.pages.iter().zip(&seen).position(|(p, seen)| p.holders == 0 && !seen);
        ensure_invariant!(lost.is_none(), "page_lost", "page {lost:?} is neither free nor cached nor held");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
