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
#[derive(Debug, Default)]
pub struct Queue {
    messages: VecDeque<(Key, Event)>,
    timers: VecDeque<(Key, RequestId)>,
    /// What moves when the order changes is small; the events themselves stay where they are.
    heap: BinaryHeap<Entry>,
    events: Vec<Option<Event>>,
    vacant: Vec<u32>,
    seq: u64,
}

/// When; then class in the upper eight bits, and arrival.
type Key = (Time, u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    /// Where the event is.
    place: u32,
}

impl Queue {
    /// Puts an event in.
    pub fn push(&mut self, at: Time, event: Event) {
        self.seq += 1;
        let class = event.class();
        let key = (at, u64::from(class) << 56 | self.seq);
        match event {
            Event::Timer(request) if self.timers.back().is_none_or(|(last, _)| *last < key) => {
                self.timers.push_back((key, request));
            }
            event if class == Event::MESSAGE && self.messages.back().is_none_or(|(last, _)| *last < key) => {
                self.messages.push_back((key, event));
            }
            event => self.push_anywhere(key, event),
        }
    }

    fn push_anywhere(&mut self, key: Key, event: Event) {
        let place = if let Some(place) = self.vacant.pop() {
            self.events[place as usize] = Some(event);
            place
        } else {
            self.events.push(Some(event));
            self.events.len() as u32 - 1
        };
        self.heap.push(Entry { key, place });
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(Time, Event)> {
        const NEVER: Key = (Time::NEVER, u64::MAX);
        let message = self.messages.front().map_or(NEVER, |(key, _)| *key);
        let timer = self.timers.front().map_or(NEVER, |(key, _)| *key);
        let other = self.heap.peek().map_or(NEVER, |entry| entry.key);
        if message < timer.min(other) {
            return self.messages.pop_front().map(|((at, _), event)| (at, event));
        }
        if timer < other {
            return self.timers.pop_front().map(|((at, _), request)| (at, Event::Timer(request)));
        }
        let Entry { key: (at, _), place } = self.heap.pop()?;
        self.vacant.push(place);
        self.events[place as usize].take().map(|event| (at, event))
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
