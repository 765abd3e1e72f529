//! Pages that a worker gets.

use cluster::kv::{PageBuf, max_pages};
use policies::batch::Refusal;
use policies::pool::ReaderId;
use policies::request::RequestSpec;
use ractor::ActorRef;
use tracing::debug;

use super::super::PoolState;
use super::super::pages::Reader;
use super::GIVEN_AT_ONCE;
use crate::clock;
use crate::worker::pages::{Asker, Pace, PageSetMsg, Prefilled};

/// A page set that gives pages.
#[derive(Debug)]
pub(super) struct Giving {
    set: ActorRef<PageSetMsg>,
    /// Until it was given up.
    reader: Option<ReaderId>,
    /// Of each page on the link.
    page_bytes: usize,
    /// Pages of the run, from the first, that can be given.
    pages: usize,
    /// The page that is asked for next.
    next: usize,
    asked: Option<Asked>,
}

/// Pages that the page set waits for.
#[derive(Debug)]
struct Asked {
    first: u32,
    count: u32,
    here: Vec<PageBuf>,
}

impl Giving {
    /// What was asked for does not come.
    fn fail(&mut self) {
        if let Some(Asked { first, count, .. }) = self.asked.take() {
            // One that has ended needs no pages.
            let _ = self.set.cast(PageSetMsg::Exported { first, count, pages: None });
        }
    }
}

impl PoolState {
    /// A worker wants what is here of a prompt's start: from now on it stays until the page set has ended.
    pub(super) fn hold(&mut self, spec: &RequestSpec, asker: &Asker, set: ActorRef<PageSetMsg>) {
        let Some(limits) = self.transfers.side.as_ref().map(|side| side.limits) else { return };
        if self.transfers.giving.len() >= GIVEN_AT_ONCE {
            let full = Err(Refusal::QueueFull { waiting: GIVEN_AT_ONCE as u32 });
            // One that has ended needs no answer.
            let _ = set.cast(PageSetMsg::Submitted(full));
            return;
        }
        let full = spec.hashes.len().min(spec.prompt.len() / asker.layout.page_tokens.max(1) as usize);
        let (from, now) = (asker.first_page as usize, clock::now());
        let hit = self.store.look_up(now, &asker.worker, &asker.fingerprint, &spec.hashes[..full], from);
        debug!(worker = %asker.worker, wanted = full, from, here = hit.pages, "a worker asks for pages");
        if hit.pages == 0 {
            let nothing = Err(Refusal::Malformed("nothing of its prompt is here"));
            // As above.
            let _ = set.cast(PageSetMsg::Submitted(nothing));
            return;
        }
        if let Some(reader) = hit.reader {
            self.readers.insert(reader, Reader::Set(set.get_id().pid()));
        }
        let most = limits.pages_per_message.min(max_pages(&asker.layout) as u32);
        let tokens = (hit.pages as u32).saturating_mul(asker.layout.page_tokens);
        let whole = Prefilled { tokens, cached: tokens, ends: false, drawn: Vec::new(), pages: Vec::new() };
        for message in
            [PageSetMsg::Submitted(Ok(Pace { least: 1, most })), PageSetMsg::Prefilled(Box::new(whole))]
        {
            // As above; what is held for it goes when that is heard of.
            let _ = set.cast(message);
        }
        let (page_bytes, reader) = (asker.layout.page_bytes(), hit.reader);
        let giving = Giving { set, reader, page_bytes, pages: hit.pages, next: from, asked: None };
        self.offer.pace().begins(now);
        self.transfers.giving.insert(giving.set.get_id().pid(), giving);
    }

    /// A page set can send these pages: they are given as soon as all of them are at hand.
    pub(super) fn export(&mut self, first: u32, count: u32, set: &ActorRef<PageSetMsg>) {
        let end = first.saturating_add(count) as usize;
        let giving = self.transfers.giving.get_mut(&set.get_id().pid()).filter(|giving| {
            giving.asked.is_none() && giving.next == first as usize && end <= giving.pages && count > 0
        });
        let Some((reader, giving)) = giving.and_then(|giving| Some((giving.reader?, giving))) else {
            // As above.
            let _ = set.cast(PageSetMsg::Exported { first, count, pages: None });
            return;
        };
        giving.next = end;
        giving.asked = Some(Asked { first, count, here: Vec::with_capacity(count as usize) });
        let now = clock::now();
        self.does(|store, fx| store.grant(now, reader, count as usize, fx));
    }

    /// The page set needs nothing more, or is gone.
    pub(super) fn end_giving(&mut self, set: u64) {
        let Some(giving) = self.transfers.giving.remove(&set) else { return };
        self.offer.pace().ends(clock::now());
        if let Some(reader) = giving.reader {
            self.release(reader);
        }
    }
}

impl super::Transfers {
    /// A page is at hand. Gives back the bytes that go out because of it.
    pub(in crate::pool) fn gives(&mut self, set: u64, page: PageBuf) -> u64 {
        let Some(giving) = self.giving.get_mut(&set) else { return 0 };
        if page.len() != giving.page_bytes {
            // Under this fingerprint there are pages of another shape: no sound worker has asked.
            giving.fail();
            return 0;
        }
        let Some(asked) = &mut giving.asked else { return 0 };
        asked.here.push(page);
        let whole = giving.asked.take_if(|asked| asked.here.len() >= asked.count as usize);
        let Some(Asked { first, count, here }) = whole else { return 0 };
        let bytes = here.len() as u64 * giving.page_bytes as u64;
        // As above.
        let _ = giving.set.cast(PageSetMsg::Exported { first, count, pages: Some(here) });
        bytes
    }

    /// The run has only so many pages now.
    pub(in crate::pool) fn cut(&mut self, set: u64, pages: usize) {
        let Some(giving) = self.giving.get_mut(&set) else { return };
        giving.pages = giving.pages.min(pages);
        if giving.next > giving.pages {
            giving.fail();
        }
    }

    /// Nothing more is given.
    pub(in crate::pool) fn read_ended(&mut self, set: u64) {
        let Some(giving) = self.giving.get_mut(&set) else { return };
        giving.reader = None;
        giving.fail();
        // As above.
        let _ = giving.set.cast(PageSetMsg::Dropped(None));
    }
}
