//! `keep-session`: the pages of a conversation stay between its turns, so that the next one computes only what is new
//! (the time-to-live retention of InferCept and Continuum).
//!
//! A request with the props `keep-ms` and a session asks for it. What is kept is bounded three ways: in time by
//! `max-keep`, in memory by a share of all pages, and by need: kept pages are the first to go when others need room, the
//! oldest first. The prop `session-final` ends it. Only full pages can be found again, so that up to a page of the turn
//! before is computed once more. Whether a later prompt really begins like the one before is found out by its tokens, as
//! with every page.
//!
//! This is the ledger alone; [`crate::batch`] holds the pages. It is asked in the middle of a step's completion, when the
//! pages would be given up otherwise, so that it is part of the scheduler rather than an actor beside it; what is
//! configured are its limits.

use std::collections::{BTreeMap, BTreeSet};

use config::ids::{PageId, SessionId, TenantId};

use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::time::{Span, Time};

/// How long the pages of the session stay.
pub const PROP: &str = "keep-ms";
/// This turn is the session's last.
pub const FINAL_PROP: &str = "session-final";

/// The name by which it is configured.
pub const NAME: &str = "keep-session";

/// Limits of what is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepOptions {
    /// Longest time after a turn.
    pub max_keep: Span,
    /// Share of all pages, in `[0, 1]`.
    pub max_share: f64,
}

impl Default for KeepOptions {
    fn default() -> Self {
        Self { max_keep: Span::from_secs(600), max_share: 0.25 }
    }
}

/// A conversation of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey {
    /// Whose; two tenants may use the same name.
    pub tenant: Option<TenantId>,
    /// As the client names it.
    pub session: SessionId,
}

#[derive(Debug)]
struct Kept {
    /// Counts turns that were kept, the oldest being the smallest.
    turn: u64,
    until: Time,
    /// First page of the prompt first.
    pages: Vec<PageId>,
}

/// Which pages are kept, for whom and until when.
#[derive(Debug)]
pub struct KeepSession {
    options: KeepOptions,
    total: u32,
    kept: BTreeMap<SessionKey, Kept>,
    oldest: BTreeMap<u64, SessionKey>,
    expiries: BTreeSet<(Time, u64)>,
    pages: u32,
    turns: u64,
}

impl KeepSession {
    /// A ledger for a worker of `total` pages.
    #[must_use]
    pub const fn new(options: KeepOptions, total: u32) -> Self {
        Self {
            options,
            total,
            kept: BTreeMap::new(),
            oldest: BTreeMap::new(),
            expiries: BTreeSet::new(),
            pages: 0,
            turns: 0,
        }
    }

    /// Pages that may be kept.
    #[must_use]
    pub fn budget(&self) -> u32 {
        (f64::from(self.total) * self.options.max_share.clamp(0.0, 1.0)) as u32
    }

    /// Pages that are kept; one that two sessions share counts twice.
    #[must_use]
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// Sessions that have pages.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        self.kept.len() as u32
    }

    /// All pages that are kept.
    pub fn all(&self) -> impl Iterator<Item = PageId> + '_ {
        self.kept.values().flat_map(|kept| kept.pages.iter().copied())
    }

    /// A turn has ended. Of its pages as many are kept as the limit allows, the first ones first; what was kept for the
    /// session before is let go, and then the oldest. How many of `pages` are kept, and the pages to let go.
    pub fn keep(
        &mut self,
        now: Time,
        session: SessionKey,
        pages: &[PageId],
        time: Span,
    ) -> (usize, Vec<Vec<PageId>>) {
        let mut gone: Vec<Vec<PageId>> = self.release(&session).into_iter().collect();
        let count = pages.len().min(self.budget() as usize);
        let time = time.min(self.options.max_keep);
        if count == 0 || time == Span::ZERO {
            return (0, gone);
        }
        while self.pages + count as u32 > self.budget() {
            let Some(pages) = self.release_oldest() else { break };
            gone.push(pages);
        }
        let (turn, until) = (self.turns, now + time);
        self.turns += 1;
        self.pages += count as u32;
        self.oldest.insert(turn, session.clone());
        self.expiries.insert((until, turn));
        self.kept.insert(session, Kept { turn, until, pages: pages[..count].to_vec() });
        (count, gone)
    }

    /// The session is over, or its pages are wanted no more: what was kept for it.
    pub fn release(&mut self, session: &SessionKey) -> Option<Vec<PageId>> {
        let kept = self.kept.remove(session)?;
        self.oldest.remove(&kept.turn);
        self.expiries.remove(&(kept.until, kept.turn));
        self.pages -= kept.pages.len() as u32;
        Some(kept.pages)
    }

    /// Others need room.
    pub fn release_oldest(&mut self) -> Option<Vec<PageId>> {
        let session = self.oldest.first_key_value()?.1.clone();
        self.release(&session)
    }

    /// One whose time is up; to be called until there is none.
    pub fn release_expired(&mut self, now: Time) -> Option<Vec<PageId>> {
        let (_, turn) = self.expiries.first().filter(|(until, _)| *until <= now)?;
        let session = self.oldest.get(turn)?.clone();
        self.release(&session)
    }

    /// New limits; what is beyond them is let go, the oldest first. Times that were promised stay.
    pub fn set_options(&mut self, options: KeepOptions) -> Vec<Vec<PageId>> {
        self.options = options;
        let mut gone = Vec::new();
        while self.pages > self.budget() {
            let Some(pages) = self.release_oldest() else { break };
            gone.push(pages);
        }
        gone
    }

    /// The first broken invariant.
    ///
    /// # Errors
    /// More is kept than allowed, or the lists disagree.
    pub fn check(&self) -> Result<(), Broken> {
        let counted: usize = self.kept.values().map(|kept| kept.pages.len()).sum();
        ensure_invariant!(
            counted == self.pages as usize && self.pages <= self.budget(),
            "kept_pages",
            "{counted} pages are kept, {} counted, {} allowed",
            self.pages,
            self.budget()
        );
        ensure_invariant!(
            self.kept.len() == self.oldest.len() && self.kept.len() == self.expiries.len(),
            "kept_sessions",
            "{} sessions, {} by age, {} by expiry",
            self.kept.len(),
            self.oldest.len(),
            self.expiries.len()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests;
