//! What whoever moves pages between workers is told.

use config::ids::{Attempt, PageId, RequestId};

use crate::step::Drawn;

/// News for whoever moves pages between workers.
#[derive(Clone, Debug, PartialEq)]
pub enum KvWork {
    /// The request's prompt is to be computed elsewhere; it gets its pages when that begins.
    Expected {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Tokens whose keys and values have to be there in the end.
        tokens: u32,
    },
    /// It is the turn of a prompt that is computed here for another worker, which has no pages for it yet.
    Begun {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// The request has all pages of its prompt; the first `cached` tokens are there.
    Reserved {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// The block table.
        pages: Vec<PageId>,
        /// Tokens found in the cache, a multiple of the page size.
        cached: u32,
        /// Tokens whose keys and values have to be there in the end.
        tokens: u32,
    },
    /// The request is computed here after all: little of it is missing.
    NotNeeded {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
    },
    /// Further pages are full, and will not change as long as the sequence has them. Where it has lost them to others this
    /// comes without pages, and then anew from the first page on.
    Computed {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// The number in the sequence of the first of them.
        first: u32,
        /// The pages.
        pages: Vec<PageId>,
    },
    /// The prompt is computed and its first tokens are drawn; its pages stay until the request is cancelled.
    Prefilled {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Tokens in the pages.
        computed: u32,
        /// Prompt tokens that were found in the cache.
        cached: u32,
        /// The page that is not full, after all full ones.
        tail: Option<PageId>,
        /// The first token of each choice.
        drawn: Vec<Drawn>,
        /// Every choice ends with its first token, so that nobody needs the pages.
        ends: bool,
    },
    /// A request of which the news above have been told, or would have been, is gone.
    Dropped {
        /// The request.
        request: RequestId,
        /// Its attempt.
        attempt: Attempt,
        /// Why, where it failed.
        reason: Option<String>,
    },
}

/// How much is set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    /// Sequences that have no pages yet: their prompts are not begun elsewhere, or are computed here for workers that have no
    /// room.
    pub expected: u32,
    /// Sequences that wait for the content of their pages.
    pub receiving: u32,
    /// Pages that they hold.
    pub receiving_pages: u32,
    /// Sequences that are kept for another worker.
    pub held: u32,
    /// Pages that they hold.
    pub held_pages: u32,
}
