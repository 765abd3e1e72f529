//! What the controller is told of the pages of a pool.

use policies::kv::PageHash;
use policies::kv::events::KvEvent;

use policies::pool::pace;
use policies::time::{Span, Time};

use super::Pool;
use crate::event::{ControllerMsg, Event, Outbox, PoolNews};

/// Between two words on how fast it gives.
const PAUSE: Span = Span::from_millis(500);

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

    /// Tells the controller how fast it gives, where that is news; as often as the live one at most.
    pub(super) fn tell_pace(&mut self, now: Time, out: &mut Outbox) {
        let (pace, link, told) = &mut self.pace;
        let rate = pace.rate(now, *link);
        let figures = &mut self.info.hardware.figures;
        if *link > 0 && now.since(*told) >= PAUSE && pace::is_news(figures.link, rate) {
            (figures.link, *told) = (rate, now);
            let news = PoolNews::Joined(self.info.clone());
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
