//! Pages that workers will hold: those of prompts that were sent there and are not over.
//!
//! A worker tells of a page when it has computed it. Until then, whoever asks for the same prefix looks like a miss
//! everywhere; a burst of such requests would compute it on every worker. And while a request runs, it holds the pages of
//! its prompt: nobody evicts them.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, RequestId, WorkerId};

use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::kv::PageHash;
use crate::kv::by_page::PageMap;
use crate::policy::PlacedAt;

/// The prompts that workers have to do with.
#[derive(Clone, Debug, Default)]
pub(super) struct Coming {
    /// How many prompts with each page.
    pages: BTreeMap<WorkerId, PageMap<u32>>,
    open: BTreeMap<(RequestId, Attempt), Prompt>,
}

/// Where a prompt is, and its pages.
type Prompt = (WorkerId, Arc<[PageHash]>);

impl Coming {
    /// A request was sent to a worker, or is there.
    pub(super) fn placed(&mut self, at: &PlacedAt) {
        let open = (at.worker.clone(), Arc::clone(&at.pages));
        if self.open.insert((at.request, at.attempt), open).is_none() {
            let pages = self.pages.entry(at.worker.clone()).or_default();
            at.pages.iter().for_each(|page| *pages.entry(*page).or_default() += 1);
        }
    }

    /// It is over.
    pub(super) fn over(&mut self, at: &PlacedAt) {
        let Some((worker, prompt)) = self.open.remove(&(at.request, at.attempt)) else { return };
        let Some(pages) = self.pages.get_mut(&worker) else { return };
        for page in prompt.iter() {
            if let Some(count) = pages.get_mut(page) {
                *count -= 1;
                if *count == 0 {
                    pages.remove(page);
                }
            }
        }
        if pages.is_empty() {
            self.pages.remove(&worker);
        }
    }

    /// How many of the first pages of a prompt a worker will hold.
    pub(super) fn hits(&self, worker: &WorkerId, pages: &[PageHash]) -> u32 {
        let Some(coming) = self.pages.get(worker) else { return 0 };
        // No page comes without those before it.
        pages.partition_point(|page| coming.contains_key(page)) as u32
    }

    /// # Errors
    /// When the counts are not those of the open prompts.
    pub(super) fn check(&self) -> Result<(), Broken> {
        let counted: u64 = self.pages.values().flat_map(|pages| pages.values()).map(|n| u64::from(*n)).sum();
        let open: u64 = self.open.values().map(|(_, pages)| pages.len() as u64).sum();
        ensure_invariant!(
            counted == open,
            "cache_aware_coming_counts",
            "{counted} pages counted, open prompts have {open}"
        );
        Ok(())
    }
}
