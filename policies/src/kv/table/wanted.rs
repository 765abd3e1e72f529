//! Pages that somebody waits to look for, and how many of those would have to be computed.

use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::kv::PageHash;
use crate::kv::by_page::PageMap;

/// Counts of wanted pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// How many want each page.
    counts: PageMap<u32>,
    /// Those that cannot be found.
    missing: u64,
}

impl Wanted {
    pub(super) const fn missing(&self) -> u64 {
        self.missing
    }

    pub(super) fn has(&self, page: &PageHash) -> bool {
        self.counts.contains_key(page)
    }

    /// One more wants a page.
    pub(super) fn add(&mut self, page: PageHash, found: bool) {
        let count = self.counts.entry(page).or_default();
        *count += 1;
        self.missing += u64::from(*count == 1 && !found);
    }

    /// One wants it no more.
    pub(super) fn remove(&mut self, page: &PageHash, found: bool) {
        let Some(count) = self.counts.get_mut(page) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(page);
            self.missing -= u64::from(!found);
        }
    }

    /// A page can be found from now on.
    pub(super) fn found(&mut self, page: &PageHash) {
        self.missing -= u64::from(self.counts.contains_key(page));
    }

    /// A page cannot be found any more.
    pub(super) fn lost(&mut self, page: &PageHash) {
        self.missing += u64::from(self.counts.contains_key(page));
    }

    /// # Errors
    /// When the count of missing pages is not that of wanted pages which the index does not have.
    pub(super) fn check(&self, found: impl Fn(&PageHash) -> bool) -> Result<(), Broken> {
        let missing = self.counts.keys().filter(|page| !found(page)).count() as u64;
        ensure_invariant!(
            missing == self.missing,
            "page_wanted",
            "{missing} wanted pages are missing, {} counted",
            self.missing
        );
        Ok(())
    }
}
