//! Rows that come after others: turns of a session, and those that wait for named requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use policies::time::{Span, Time};

use super::row::Row;

/// When a row comes.
#[derive(Debug)]
pub(super) enum Come {
    /// At its own time.
    ByItself(Row),
    /// What it comes after has ended already.
    At(Time, Row),
    /// When others have ended.
    Later,
}

/// Who waits for whom.
#[derive(Debug, Default)]
pub(super) struct After {
    sessions: BTreeMap<String, Talk>,
    /// Rows that wait for others, by line.
    waiting: BTreeMap<u64, Waiting>,
    /// Lines that wait for a name.
    waits: BTreeMap<String, Vec<u64>>,
    /// All names so far; with the time of their end where they have.
    names: BTreeMap<String, Option<Time>>,
    /// Sessions and names of requests under way.
    live: BTreeMap<u64, (Option<String>, Option<String>)>,
}

/// A session.
#[derive(Debug, Default)]
struct Talk {
    /// Its turns that have come or will come at a time that is known, and have not ended.
    open: u32,
    /// When the last one ended.
    ended: Time,
    /// Turns that come when the former one has ended.
    turns: VecDeque<Row>,
}

#[derive(Debug)]
struct Waiting {
    row: Row,
    names: BTreeSet<String>,
    /// The end of the last one so far.
    ended: Time,
}

impl After {
    /// Takes in a row that was read.
    ///
    /// # Errors
    /// A name that another row has.
    pub(super) fn take(&mut self, row: Row) -> Result<Come, String> {
        if let Some(name) = &row.name
            && self.names.insert(name.clone(), None).is_some()
        {
            return Err(format!("`request_id` is {name:?}, as on an earlier line: names are unique"));
        }
        if !row.wait_for.is_empty() {
            return Ok(self.wait(row));
        }
        let Some(session) = row.session.clone() else { return Ok(Come::ByItself(row)) };
        let follows = row.delay.is_some() || row.at.is_none();
        Ok(match self.sessions.get_mut(&session) {
            Some(talk) if follows && (talk.open > 0 || !talk.turns.is_empty()) => {
                talk.turns.push_back(row);
                Come::Later
            }
            Some(talk) if follows => {
                talk.open += 1;
                Come::At(talk.ended + row.delay.unwrap_or(Span::ZERO), row)
            }
            Some(talk) => {
                talk.open += 1;
                Come::ByItself(row)
            }
            None => {
                self.sessions.insert(session, Talk { open: 1, ..Talk::default() });
                Come::ByItself(row)
            }
        })
    }

    fn wait(&mut self, row: Row) -> Come {
        if let Some(session) = &row.session {
            self.sessions.entry(session.clone()).or_default().open += 1;
        }
        let mut ended = Time::ZERO;
        let mut names = BTreeSet::new();
        for name in &row.wait_for {
            match self.names.get(name) {
                Some(Some(at)) => ended = ended.max(*at),
                _ => {
                    names.insert(name.clone());
                }
            }
        }
        if names.is_empty() {
            return Come::At(ended + row.delay.unwrap_or(Span::ZERO), row);
        }
        for name in &names {
            self.waits.entry(name.clone()).or_default().push(row.line);
        }
        self.waiting.insert(row.line, Waiting { row, names, ended });
        Come::Later
    }

    /// A row has become a request.
    pub(super) fn begun(&mut self, number: u64, row: Row) {
        if row.session.is_some() || row.name.is_some() {
            self.live.insert(number, (row.session, row.name));
        }
    }

    /// Whether others may come after a request.
    pub(super) fn is_followed(&self, number: u64) -> bool {
        self.live.contains_key(&number)
    }

    /// A request has ended: the rows that come because of it, and when.
    pub(super) fn ended(&mut self, now: Time, number: u64) -> Vec<(Time, Row)> {
        let Some((session, name)) = self.live.remove(&number) else { return Vec::new() };
        let mut come = Vec::new();
        if let Some(talk) = session.and_then(|session| self.sessions.get_mut(&session)) {
            talk.open -= 1;
            talk.ended = now;
            if talk.open == 0
                && let Some(row) = talk.turns.pop_front()
            {
                talk.open = 1;
                come.push((now + row.delay.unwrap_or(Span::ZERO), row));
            }
        }
        let Some(name) = name else { return come };
        for line in self.waits.remove(&name).unwrap_or_default() {
            let Some(waiting) = self.waiting.get_mut(&line) else { continue };
            waiting.names.remove(&name);
            waiting.ended = now;
            if waiting.names.is_empty()
                && let Some(Waiting { row, ended, .. }) = self.waiting.remove(&line)
            {
                come.push((ended + row.delay.unwrap_or(Span::ZERO), row));
            }
        }
        self.names.insert(name, Some(now));
        come
    }

    /// A line that waits for a name that no row has, and the name.
    pub(super) fn unknown(&self) -> Option<(u64, &str)> {
        let (name, lines) = self.waits.iter().find(|(name, _)| !self.names.contains_key(*name))?;
        Some((*lines.first()?, name))
    }

    /// A line that still waits.
    pub(super) fn waiting(&self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }
}
