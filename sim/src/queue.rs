//! The events to come.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use config::ids::RequestId;
use policies::time::Time;

use crate::event::Event;

/// Events in order of time, then class, then arrival: a total order, so that a run has one course.
///
/// Most are in order when they come: messages, which all take the same time where nothing else is said, and the deadlines
/// of requests. They wait in lanes, first in, first out. Whatever would be out of order there goes into a heap.
///
/// What moves is small: an event itself stays where it was put until it happens, since a copy of something so large that
/// has just been written takes longer than all the rest.
#[derive(Debug, Default)]
pub struct Queue {
    messages: VecDeque<Entry>,
    timers: VecDeque<(Key, RequestId)>,
    /// The next of all others, in order, the very next last; none of those in the heap comes before any of them.
    soon: Vec<Entry>,
    heap: BinaryHeap<Entry>,
    events: Vec<Option<Event>>,
    vacant: Vec<u32>,
    seq: u64,
}

/// So few are put in order by a look at each.
const SOON: usize = 16;

/// When; then class in the upper eight bits, and arrival.
type Key = (Time, u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    place: Place,
}

/// Where an event is that is due, until it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Queue {
    /// Puts an event in.
    #[inline]
    pub fn push(&mut self, at: Time, event: Event) {
        self.seq += 1;
        let class = event.class();
        let key = (at, u64::from(class) << 56 | self.seq);
        if let Event::Timer(request) = event
            && self.timers.back().is_none_or(|(last, _)| *last < key)
        {
            return self.timers.push_back((key, request));
        }
        let entry = Entry { key, place: self.keep(event) };
        if class == Event::MESSAGE && self.messages.back().is_none_or(|last| last.key < key) {
            self.messages.push_back(entry);
        } else {
            self.push_anywhere(entry);
        }
    }

    fn push_anywhere(&mut self, entry: Entry) {
        let is_soon = match self.soon.first() {
            Some(latest) => entry.key < latest.key || self.heap.is_empty(),
            None => self.heap.is_empty(),
        };
        if !is_soon {
            return self.heap.push(entry);
        }
        let behind = self.soon.iter().rev().take_while(|other| other.key < entry.key).count();
        self.soon.insert(self.soon.len() - behind, entry);
        if self.soon.len() > SOON {
            let latest = self.soon.remove(0);
            self.heap.push(latest);
        }
    }

    /// Keeps an event that is due now.
    #[inline]
    pub fn keep(&mut self, event: Event) -> Place {
        match self.vacant.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                Place(place)
            }
            None => {
                self.events.push(Some(event));
                Place(self.events.len() as u32 - 1)
            }
        }
    }

    /// The next event, which is to be taken before the next is asked for.
    pub fn due(&mut self) -> Option<(Time, Place)> {
        const NEVER: Key = (Time::NEVER, u64::MAX);
        let message = self.messages.front().map_or(NEVER, |entry| entry.key);
        let timer = self.timers.front().map_or(NEVER, |(key, _)| *key);
        let other = self.soon.last().map_or(NEVER, |entry| entry.key);
        if timer < message.min(other) {
            let ((at, _), request) = self.timers.pop_front()?;
            return Some((at, self.keep(Event::Timer(request))));
        }
        let next = if message < other { self.messages.pop_front() } else { self.pop_anywhere() };
        next.map(|entry| (entry.key.0, entry.place))
    }

    fn pop_anywhere(&mut self) -> Option<Entry> {
        let next = self.soon.pop();
        if self.soon.is_empty() {
            self.soon.extend(self.heap.pop());
        }
        next
    }

    /// An event that has not been taken.
    #[must_use]
    pub fn at(&self, place: Place) -> Option<&Event> {
        self.events[place.0 as usize].as_ref()
    }

    /// As [`Queue::at`].
    pub fn at_mut(&mut self, place: Place) -> Option<&mut Event> {
        self.events[place.0 as usize].as_mut()
    }

    /// Takes an event out.
    #[inline]
    pub fn take(&mut self, place: Place) -> Option<Event> {
        self.vacant.push(place.0);
        self.events[place.0 as usize].take()
    }

    /// Drops an event.
    #[inline]
    pub fn forget(&mut self, place: Place) {
        self.vacant.push(place.0);
        self.events[place.0 as usize] = None;
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(Time, Event)> {
        let (at, place) = self.due()?;
        self.take(place).map(|event| (at, event))
    }
}

impl Ord for Entry {
    /// Reversed: the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use policies::rng::Rng;

    use super::*;
    use crate::event::GatewayMsg;

    #[test]
    fn events_come_in_order_of_time_class_and_arrival_whatever_lane_they_were_in() {
        let mut rng = Rng::new(3);
        let mut queue = Queue::default();
        let (mut waiting, mut number) = (Vec::new(), 0);
        for round in 0..5000_u64 {
            if rng.below(3) > 0 || waiting.is_empty() {
                // Mostly later than those before, now and then not.
                let at = Time(round / 4 + rng.below(3) * 5);
                number += 1;
                let event = match rng.below(4) {
                    0 => Event::Gateway(GatewayMsg::ControllerLost),
                    1 => Event::Timer(RequestId::new(1, number)),
                    2 => Event::Leave(RequestId::new(1, number)),
                    _ => Event::Crash(number as u32),
                };
                waiting.push((at, event.class(), number));
                queue.push(at, event);
            } else {
                waiting.sort_unstable();
                let (at, class, number) = waiting.remove(0);
                let (when, event) = queue.pop().unwrap();
                assert_eq!((when, event.class()), (at, class));
                match event {
                    Event::Timer(id) | Event::Leave(id) => assert_eq!(id.number, number),
                    Event::Crash(index) => assert_eq!(u64::from(index), number),
                    _ => {}
                }
            }
        }
        let mut last = Time::ZERO;
        for _ in 0..waiting.len() {
            let (at, _) = queue.pop().unwrap();
            assert!(at >= last);
            last = at;
        }
        assert!(queue.pop().is_none());
    }
}
