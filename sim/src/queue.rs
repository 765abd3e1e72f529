//! The heap of events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use policies::time::Time;

use crate::event::Event;

/// Events in order of time, then class, then arrival: a total order, so that a run has one course.
#[derive(Debug, Default)]
pub struct Queue {
    /// What moves when the order changes is small; the events themselves stay where they are.
    heap: BinaryHeap<Entry>,
    events: Vec<Option<Event>>,
    vacant: Vec<u32>,
    seq: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Time,
    /// Class in the upper eight bits, then arrival.
    rank: u64,
    /// Where the event is.
    place: u32,
}

impl Queue {
    /// Puts an event in.
    pub fn push(&mut self, at: Time, event: Event) {
        self.seq += 1;
        let rank = u64::from(event.class()) << 56 | self.seq;
        let place = if let Some(place) = self.vacant.pop() {
            self.events[place as usize] = Some(event);
            place
        } else {
            self.events.push(Some(event));
            self.events.len() as u32 - 1
        };
        self.heap.push(Entry { at, rank, place });
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(Time, Event)> {
        let Entry { at, place, .. } = self.heap.pop()?;
        self.vacant.push(place);
        self.events[place as usize].take().map(|event| (at, event))
    }
}

impl Entry {
    const fn key(&self) -> (Time, u64) {
        (self.at, self.rank)
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
