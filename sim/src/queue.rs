//! The heap of events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use policies::time::Time;

use crate::event::Event;

/// Events in order of time, then class, then arrival: a total order, so that a run has one course.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Entry>,
    seq: u64,
}

#[derive(Debug)]
struct Entry {
    at: Time,
    class: u8,
    seq: u64,
    event: Event,
}

impl Queue {
    /// Puts an event in.
    pub fn push(&mut self, at: Time, event: Event) {
        self.seq += 1;
        self.heap.push(Entry { at, class: event.class(), seq: self.seq, event });
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }
}

impl Entry {
    const fn key(&self) -> (Time, u8, u64) {
        (self.at, self.class, self.seq)
    }
}

impl Ord for Entry {
    /// Reversed: the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}
