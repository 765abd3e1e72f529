//! What the controller is told of the pages of a pool.

use policies::kv::PageHash;
use policies::kv::events::KvEvent;

use super::Pool;
use crate::event::{ControllerMsg, Event, Outbox, PoolNews};

impl Pool {
    /// Tells the controller what has changed of the pages.
    pub(super) fn tell_pages(&mut self, out: &mut Outbox) {
        let mut events = Vec::new();
        self.store.take_events(&mut events);
        if !events.is_empty() {
            self.messages += 1;
            let events: Vec<KvEvent> = events.into_iter().map(|(_, event)| event).collect();
            let id = self.info.id.clone();
            let news = PoolNews::Events(id, self.messages, events);
            out.send(Event::Controller(ControllerMsg::Pool(Box::new(news))));
        }
    }

    /// Tells the controller all pages, which has missed some change of them, or is new.
    pub(super) fn tell_all_pages(&mut self, out: &mut Outbox) {
        self.tell_pages(out);
        let of = |(_, event)| match event {
            KvEvent::Stored { pages, .. } => pages,
            KvEvent::Removed { .. } | KvEvent::Cleared => Vec::new(),
        };
        let pages: Vec<PageHash> = self.store.announce().contents.into_iter().flat_map(of).collect();
        let id = self.info.id.clone();
        let news = PoolNews::Snapshot(id, self.messages, pages);
        out.send(Event::Controller(ControllerMsg::Pool(Box::new(news))));
    }
}
