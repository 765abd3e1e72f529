//! The workers that live.

use config::ids::WorkerId;

use super::Worker;
use crate::network::index_of;

/// By number, one life of each at most; gone through in order of their names, which is the same.
#[derive(Debug, Default)]
pub struct Workers {
    places: Vec<Option<Worker>>,
}

impl Workers {
    /// The worker, if it is this life of it that lives.
    #[must_use]
    pub fn get(&self, id: &WorkerId) -> Option<&Worker> {
        self.places.get(index_of(id) as usize)?.as_ref().filter(|worker| is(worker, id))
    }

    /// As [`Workers::get`].
    pub fn get_mut(&mut self, id: &WorkerId) -> Option<&mut Worker> {
        self.places.get_mut(index_of(id) as usize)?.as_mut().filter(|worker| is(worker, id))
    }

    /// Whether this life of a worker lives.
    #[must_use]
    pub fn contains(&self, id: &WorkerId) -> bool {
        self.get(id).is_some()
    }

    /// A worker lives from now on, in place of another life of it.
    pub fn insert(&mut self, worker: Worker) {
        let at = index_of(&worker.info().id) as usize;
        if at >= self.places.len() {
            self.places.resize_with(at + 1, || None);
        }
        self.places[at] = Some(worker);
    }

    /// This life of a worker is over.
    pub fn remove(&mut self, id: &WorkerId) -> Option<Worker> {
        self.places.get_mut(index_of(id) as usize)?.take_if(|worker| is(worker, id))
    }

    /// All of them, with their names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&WorkerId, &Worker)> {
        self.places.iter().flatten().map(|worker| (&worker.info().id, worker))
    }

    /// All of them, in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.places.iter_mut().flatten()
    }
}

/// The number is right: what is left is the life.
const fn is(worker: &Worker, id: &WorkerId) -> bool {
    worker.info().id.incarnation == id.incarnation
}
