//! Until when a writer or a reader may do nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::{PutId, ReaderId};
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lease {
    Put(PutId),
    Read(ReaderId),
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    until: BTreeMap<Lease, Time>,
    due: BTreeSet<(Time, Lease)>,
}

impl Leases {
    pub(super) fn renew(&mut self, lease: Lease, until: Time) {
        self.end(lease);
        self.until.insert(lease, until);
        self.due.insert((until, lease));
    }

    pub(super) fn end(&mut self, lease: Lease) {
        if let Some(until) = self.until.remove(&lease) {
            self.due.remove(&(until, lease));
        }
    }

    /// Takes one out that has run out.
    pub(super) fn expired(&mut self, now: Time) -> Option<Lease> {
        let (until, lease) = *self.due.first()?;
        (until <= now).then(|| {
            self.end(lease);
            lease
        })
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.due.first().map(|(until, _)| *until)
    }

    pub(super) fn len(&self) -> usize {
        self.until.len()
    }

    pub(super) fn has(&self, lease: Lease) -> bool {
        self.until.contains_key(&lease)
    }
}
