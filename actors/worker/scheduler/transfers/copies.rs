//! Pages between the engine and page sets: exported ahead of the asking while there are buffers to spare, exported on demand,
//! imported into what a request still has.

use cluster::kv::{PageBuf, PageFill};
use config::ids::PageId;
use engine::host::EngineHost;
use policies::batch::Batch;
use ractor::ActorRef;
use tracing::error;

use super::{Entry, Id, Numbered, Transfers};
use crate::worker::pages::PageSetMsg;

/// A buffer on its way through the engine.
struct Out(PageFill);

impl AsMut<[u8]> for Out {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A page on its way into the engine.
struct In(PageBuf);

impl AsRef<[u8]> for In {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Transfers {
    /// Reads pages that nobody has asked for yet, while there are buffers to spare; none otherwise, and they are asked for
    /// later.
    pub(super) fn export_ahead(
        &self,
        pages: Numbered,
        host: &EngineHost,
        there: impl FnOnce(Vec<(u32, PageBuf)>) + Send + 'static,
    ) {
        match self.fill(&pages, self.ahead) {
            Some(buffers) if !pages.is_empty() => {
                export(host, pages, buffers, move |pages| there(pages.unwrap_or_default()));
            }
            _ => there(Vec::new()),
        }
    }

    /// Buffers for some pages, as long as fewer than `most` are in use.
    fn fill(&self, pages: &[(u32, PageId)], most: usize) -> Option<Vec<Out>> {
        if self.pool.out() + pages.len() > most {
            return None;
        }
        pages.iter().map(|_| self.pool.try_take().map(Out)).collect()
    }

    pub(super) fn export(
        &self,
        id: Id,
        first: u32,
        count: u32,
        set: &ActorRef<PageSetMsg>,
        host: &EngineHost,
    ) {
        let table = match self.entries.get(&id) {
            Some(Entry::Sending { table, .. }) => table.get(first as usize..(first + count) as usize),
            _ => None,
        };
        let numbered: Option<Numbered> = table.map(|pages| (first..).zip(pages.iter().copied()).collect());
        let set = set.clone();
        let there = move |pages: Option<Vec<PageBuf>>| {
            // A page set that has ended needs no pages.
            let _ = set.cast(PageSetMsg::Exported { first, count, pages });
        };
        let buffers = numbered.and_then(|pages| Some((self.fill(&pages, usize::MAX)?, pages)));
        match buffers {
            Some((buffers, pages)) => export(host, pages, buffers, move |pages| {
                there(pages.map(|pages| pages.into_iter().map(|(_, page)| page).collect()));
            }),
            None => there(None),
        }
    }

    /// A request that ran on elsewhere may come with more pages than it had when it was given its own here.
    pub(super) fn make_room(&mut self, core: &mut Batch, id: Id, pages: u32) {
        if let Some(Entry::Receiving { table, .. }) = self.entries.get_mut(&id)
            && let Some(more) = pages.checked_sub(table.len() as u32).filter(|more| *more > 0)
            && let Some(grown) = core.grow_received(id.0, id.1, more)
        {
            table.extend(grown);
        }
    }

    /// Only into pages that the request still has: they may be somebody else's since the page set has asked.
    pub(super) fn import(
        &self,
        id: Id,
        first: u32,
        pages: Vec<PageBuf>,
        set: &ActorRef<PageSetMsg>,
        host: &EngineHost,
    ) {
        let count = pages.len() as u32;
        let table = match self.entries.get(&id) {
            Some(Entry::Receiving { table, .. }) => table.get(first as usize..(first + count) as usize),
            _ => None,
        };
        let set = set.clone();
        let there = move |done: bool| {
            // A page set that has ended does not care.
            let _ = set.cast(PageSetMsg::Imported { first, count, done });
        };
        match table {
            Some(table) => {
                let pages = table.iter().copied().zip(pages.into_iter().map(In)).collect();
                host.import(pages, move |result| there(result.is_ok()));
            }
            None => there(false),
        }
    }
}

fn export(
    host: &EngineHost,
    pages: Numbered,
    buffers: Vec<Out>,
    there: impl FnOnce(Option<Vec<(u32, PageBuf)>>) + Send + 'static,
) {
    let (numbers, ids): (Vec<u32>, Vec<PageId>) = pages.into_iter().unzip();
    host.export(ids.into_iter().zip(buffers).collect(), move |result| match result {
        Ok(filled) => {
            there(Some(numbers.into_iter().zip(filled.into_iter().map(|out| out.0.freeze())).collect()));
        }
        Err(e) => {
            error!(error = %e, "pages cannot be read");
            there(None);
        }
    });
}
