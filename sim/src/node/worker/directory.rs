//! What the controller's directory is told of the pages of a worker.

use super::Worker;
use crate::event::{ControllerMsg, Event, Outbox};

impl Worker {
    /// Tells the controller what has changed of the pages.
    pub(super) fn tell_pages(&mut self, out: &mut Outbox) {
        let mut events = Vec::new();
        self.core.take_kv_events(&mut events);
        if !events.is_empty() {
            self.kv_messages += 1;
            let id = self.info.id.clone();
            out.send(Event::Controller(ControllerMsg::KvEvents(id, self.kv_messages, events)));
        }
    }

    /// Tells the controller all pages, which has missed some change of them.
    pub(super) fn tell_all_pages(&mut self, out: &mut Outbox) {
        self.tell_pages(out);
        let (id, pages) = (self.info.id.clone(), self.core.kv_snapshot());
        out.send(Event::Controller(ControllerMsg::KvSnapshot(id, self.kv_messages, pages)));
    }
}
