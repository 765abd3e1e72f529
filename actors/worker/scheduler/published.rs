//! Which pages can be found at this worker, for controllers and for routers of others.

use cluster::kv_events::Feed;
use config::ids::NodeId;
use policies::kv::events::{KvEvent, Recording};
use tracing::debug;

use super::SchedulerState;

impl SchedulerState {
    /// Tells what has changed in the set of pages that can be found here: the controllers if one has asked, and routers
    /// of others if the configuration says so.
    pub(super) fn tell_pages(&mut self) {
        let mut events = Vec::new();
        self.core.take_kv_events(&mut events);
        if let Some(feed) = &self.kv_events {
            let hashes = events.iter().map(KvEvent::without_tokens).collect();
            let with_tokens = std::mem::replace(&mut events, hashes);
            let page_tokens = self.core.config().page_tokens;
            if feed.take_whole_wanted() {
                // It contains what the events tell.
                feed.publish_whole(page_tokens, self.core.kv_contents());
            } else {
                feed.publish(page_tokens, with_tokens);
            }
        }
        if self.controllers_told {
            self.outbox.pages_changed(events);
        }
    }

    /// A controller wants to know all pages, and every change from now on.
    pub(super) fn resync(&mut self, controller: &NodeId) {
        if self.core.config().kv_events == Recording::Off {
            self.core.record_kv_events(Recording::Hashes);
        }
        // What the snapshot contains has numbers up to its own.
        self.tell_pages();
        self.controllers_told = true;
        let pages = self.core.kv_snapshot();
        debug!(%controller, pages = pages.len(), "all pages are told");
        self.outbox.all_pages(controller, &pages);
    }

    /// Brings the metrics up to what the publisher has done. Its totals outlive this scheduler.
    pub(super) fn count_published(&self) {
        use crate::metrics as m;
        let Some(figures) = self.kv_events.as_ref().map(Feed::figures) else { return };
        metrics::counter!(m::KV_EVENT_BATCHES).absolute(figures.batches);
        metrics::counter!(m::KV_EVENTS).absolute(figures.events);
        metrics::counter!(m::KV_EVENTS_DROPPED).absolute(figures.dropped);
    }
}
