//! Requests that have arrived and not ended.

use config::ids::RequestId;
use policies::session::Session;

use crate::report::tally::Seen;

/// A request that has not ended.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) session: Session,
    pub(super) seen: Seen,
    /// Its client reads nothing yet.
    pub(super) stalled: bool,
}

/// All of them, by number. Each token of a run is a look-up here, and the requests of a run are counted from one: a place
/// a number, eight bytes even when the request has ended, is found without a search.
#[derive(Debug, Default)]
pub(super) struct LiveRequests {
    places: Vec<Option<Box<Live>>>,
    /// There is none before this place.
    first: usize,
    len: usize,
}

impl LiveRequests {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), first: 0, len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Live> {
        self.places.get(place(id))?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Live> {
        self.places.get_mut(place(id))?.as_deref_mut()
    }

    /// Reads a little of these, which are about to be used: in a large cluster each lies in memory that no cache has, and
    /// so they come at the same time instead of one after the other.
    pub(super) fn fetch(&self, ids: impl Iterator<Item = RequestId>) {
        let read = |live: &Live| u64::from(live.session.retries()) + live.session.tokens(0).len() as u64;
        std::hint::black_box(ids.filter_map(|id| self.get(id)).map(read).sum::<u64>());
    }

    pub(super) fn insert(&mut self, id: RequestId, live: Live) {
        let at = place(id);
        if at >= self.places.len() {
            self.places.resize_with(at + 1, || None);
        }
        let before = self.places[at].replace(Box::new(live));
        self.len += usize::from(before.is_none());
        self.first = self.first.min(at);
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Live> {
        let live = self.places.get_mut(place(id))?.take()?;
        self.len -= 1;
        while self.places.get(self.first).is_some_and(Option::is_none) {
            self.first += 1;
        }
        Some(*live)
    }

    /// In order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Live> {
        self.places[self.first.min(self.places.len())..].iter().filter_map(Option::as_deref)
    }

    /// In order of their numbers.
    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.iter().map(|live| live.session.spec().id)
    }
}

/// All requests of a run are of one gateway.
const fn place(id: RequestId) -> usize {
    id.number as usize
}
