//! The names that a worker goes by: one at a time, and another after it was cut off.

use config::ids::WorkerId;

use super::Worker;

impl Worker {
    /// It was cut off from all others, who have given up what it did: it goes on as a new one, with the pages that it has.
    pub fn renew(&mut self, id: WorkerId) {
        if let Some(kv) = &mut self.info.kv {
            kv.address = id.to_string();
        }
        self.former.push(std::mem::replace(&mut self.info.id, id));
    }

    /// Whether this process has, or had, that name.
    #[must_use]
    pub fn was(&self, id: &WorkerId) -> bool {
        self.info.id == *id || self.former.contains(id)
    }
}
