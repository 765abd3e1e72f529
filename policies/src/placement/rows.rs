//! The workers of a controller: each found by name at once, all gone through in the order of their names.
//!
//! Each report of a worker is a look-up and each placement goes through all of them, so that in a cluster of a thousand a
//! tree of names would be most of a controller's work. They lie in one array in order instead, with a map from name to
//! place beside it; that a worker in the middle comes or goes, which is rare, moves those behind it.

use std::hash::{BuildHasherDefault, Hasher};

use config::ids::WorkerId;

use super::Row;

/// In no order that anything depends on.
#[expect(clippy::disallowed_types, reason = "the hasher is fixed, and nobody goes through the map")]
type Places = std::collections::HashMap<WorkerId, u32, BuildHasherDefault<Fold>>;

/// Rows by name.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// By name.
    rows: Vec<(WorkerId, Row)>,
    places: Places,
}

impl Rows {
    pub(super) const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Where a worker is until another one comes or goes.
    pub(super) fn place(&self, id: &WorkerId) -> Option<u32> {
        self.places.get(id).copied()
    }

    /// The name and the row at a place.
    pub(super) fn at(&self, place: u32) -> &(WorkerId, Row) {
        &self.rows[place as usize]
    }

    pub(super) fn get(&self, id: &WorkerId) -> Option<&Row> {
        self.place(id).map(|place| &self.rows[place as usize].1)
    }

    pub(super) fn get_mut(&mut self, id: &WorkerId) -> Option<&mut Row> {
        self.place(id).map(|place| &mut self.rows[place as usize].1)
    }

    pub(super) fn insert(&mut self, id: WorkerId, row: Row) {
        match self.rows.binary_search_by(|(name, _)| name.cmp(&id)) {
            Ok(at) => self.rows[at].1 = row,
            Err(at) => {
                self.rows.insert(at, (id, row));
                self.number(at);
            }
        }
    }

    pub(super) fn remove(&mut self, id: &WorkerId) -> Option<Row> {
        let at = self.places.remove(id)? as usize;
        let (_, row) = self.rows.remove(at);
        self.number(at);
        Some(row)
    }

    /// In order of names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&WorkerId, &Row)> {
        self.rows.iter().map(|(id, row)| (id, row))
    }

    /// In order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &WorkerId> {
        self.rows.iter().map(|(id, _)| id)
    }

    /// In order of names.
    pub(super) fn values(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().map(|(_, row)| row)
    }

    /// Whether each is where it is said to be, and all are in order.
    pub(super) fn is_consistent(&self) -> bool {
        let placed = self.rows.iter().zip(0..).all(|((id, _), place)| self.place(id) == Some(place));
        placed && self.places.len() == self.rows.len() && self.rows.is_sorted_by(|a, b| a.0 < b.0)
    }

    fn number(&mut self, from: usize) {
        for ((id, _), place) in self.rows.iter().zip(0..).skip(from) {
            match self.places.get_mut(id) {
                Some(known) => *known = place,
                None => _ = self.places.insert(id.clone(), place),
            }
        }
    }
}

/// Eight bytes at a time: multiply and rotate. Names are few and nobody's who would look for collisions.
#[derive(Clone, Copy, Debug, Default)]
struct Fold(u64);

impl Fold {
    const fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.add(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.add(byte.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
