//! Requests replayed from a file, line by line.
//!
//! JSON lines, with the keys of Mooncake's traces (FAST'25) and the extensions of DynoSim's:
//!
//! | key | |
//! |---|---|
//! | `timestamp` | when it comes, in milliseconds since some origin (`created_time` is another name) |
//! | `unix_us` | of a node's log: the same in microseconds since 1970, and that is what counts |
//! | `input_length`, `output_length` | tokens of its prompt and of its answer |
//! | `hash_ids` | its prompt in blocks: whole numbers or hexadecimal hashes, equal ones for equal content |
//! | `block_size` | tokens a block; else `workload.block-tokens` |
//! | `answer_hash_ids` | of a node's log: the blocks after the prompt's full ones that prompt and answer fill together |
//! | `session_id` | the conversation that it belongs to |
//! | `delay` or `delay_ms` | it comes so many milliseconds after the former turn of its session has ended |
//! | `request_id`, `wait_for` | its name; it comes when all of these have ended, after `delay` and `tool_wait_ms` |
//! | `tenant`, `props` | whose it is, and its hints |
//! | `branches`, `prefix_reset`, `tool_events` | read over: `wait_for` and `session_id` say the same |
//! | `max_tokens`, `n`, `outcome`, `ttft_ms`, `e2e_ms`, `cached_tokens`, `worker` | of a node's log, read over: one choice is simulated |
//!
//! Or CSV with the columns of Azure's LLM inference traces: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
//!
//! The tokens of a block are a function of its number, so equal numbers are equal pages; those of an answer's blocks are
//! what the simulated model answers. What the blocks leave of a prompt is its own. Times count from the first line's.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use config::ids::{SessionId, TenantId};
use policies::request::Token;
use policies::time::{Span, Time};

use self::after::After;
use self::row::{Columns, Row};
use self::text::Answers;
use super::draw::{class, stream};
use super::{Ask, Source, make, model};
use crate::SimError;
use crate::scenario::{Class, Scenario, TraceFormat, Workload};

mod after;
mod row;
mod text;

#[cfg(test)]
mod tests;

/// Lines that are read ahead, so that those which are out of order come in order: a log is in the order of ends.
const AHEAD: usize = 4096;

/// When the first request of a file comes, in nanoseconds since 1970, if its lines say so.
///
/// # Errors
/// A file that cannot be opened or is no trace, and a line that is no request.
pub(crate) fn first_moment(path: &Path, workload: &Workload) -> Result<Option<u64>, SimError> {
    let mut lines = Lines::open(path, workload.format, workload.limit, workload.block_tokens)?;
    let mut first: Option<Row> = None;
    let mut read = 0;
    while read < AHEAD
        && let Some(row) = lines.next()?
    {
        read += 1;
        if row.at.is_some() && first.as_ref().is_none_or(|first| row.at < first.at) {
            first = Some(row);
        }
    }
    Ok(first.filter(|row| row.dated).and_then(|row| row.at))
}

/// A file that is replayed.
#[derive(Debug)]
pub(super) struct Replay {
    lines: Lines,
    seed: u64,
    speedup: f64,
    classes: Vec<Class>,
    /// When the first row comes, in the file's own count.
    origin: Option<u64>,
    /// Rows that were read before it was known when the first one comes, in the order of their lines.
    begin: VecDeque<Row>,
    /// Rows that come by themselves, by time and line.
    ahead: BTreeMap<(Time, u64), Row>,
    /// When the last of those came that came by itself.
    last: Time,
    /// Rows that come after others.
    after: After,
    answers: Answers,
    numbers: u64,
}

impl Replay {
    /// # Errors
    /// A file that cannot be opened or is no trace.
    pub(super) fn open(path: &Path, scenario: &Scenario) -> Result<Self, SimError> {
        let w = &scenario.workload;
        Ok(Self {
            lines: Lines::open(path, w.format, w.limit, w.block_tokens)?,
            seed: scenario.seed,
            speedup: w.speedup,
            classes: w.classes.clone(),
            origin: None,
            begin: VecDeque::new(),
            ahead: BTreeMap::new(),
            last: Time::ZERO,
            after: After::default(),
            answers: Answers::new(model(w), w.temperature),
            numbers: 0,
        })
    }

    /// Reads ahead until enough rows come by themselves or nothing is left.
    fn fill(&mut self) -> Result<(), SimError> {
        if self.origin.is_none() {
            while self.begin.len() < AHEAD
                && let Some(row) = self.lines.next()?
            {
                self.begin.push_back(row);
            }
            self.origin = self.begin.iter().filter_map(|row| row.at).min();
        }
        while self.ahead.len() < AHEAD {
            let read = self.begin.pop_front().map_or_else(|| self.lines.next(), |row| Ok(Some(row)))?;
            let Some(mut row) = read else { return self.end_of_file() };
            row.delay = row.delay.map(|delay| Span((delay.0 as f64 / self.speedup) as u64));
            let line = row.line;
            let at = row.at.map(|at| {
                let origin = *self.origin.get_or_insert(at);
                (Time((at.saturating_sub(origin) as f64 / self.speedup) as u64), at < origin)
            });
            let come = self.after.take(row).map_err(|reason| self.lines.error(line, reason))?;
            match (come, at) {
                (after::Come::Later, _) => {}
                (after::Come::At(at, row), _) => {
                    self.ahead.insert((at.max(self.last), line), row);
                }
                (after::Come::ByItself(row), Some((at, false))) if at >= self.last => {
                    self.ahead.insert((at, line), row);
                }
                (after::Come::ByItself(_), Some(_)) => {
                    let reason = format!(
                        "`timestamp` is before that of a line {AHEAD} lines earlier: sort the file by timestamp"
                    );
                    return Err(self.lines.error(line, reason));
                }
                (after::Come::ByItself(_), None) => {
                    let reason = "`timestamp` is missing: a request has one, or a `delay` after the former turn of its \
                                  `session_id`, or a `wait_for`";
                    return Err(self.lines.error(line, reason.into()));
                }
            }
        }
        Ok(())
    }

    fn end_of_file(&self) -> Result<(), SimError> {
        match self.after.unknown() {
            Some((line, name)) => {
                let reason = format!("`wait_for` names {name:?}, and no line has that `request_id`");
                Err(self.lines.error(line, reason))
            }
            None => Ok(()),
        }
    }

    fn ask(&mut self, at: Time, row: Row) -> Ask {
        self.numbers += 1;
        let number = self.numbers;
        let prompt = self.answers.prompt(&row, self.seed);
        self.answers.remember(&row, number, &prompt);
        let ask = Ask {
            at,
            number,
            prompt,
            max_tokens: row.output,
            exact: true,
            session: row.session.as_deref().map(SessionId::from),
            class: class(&self.classes, &mut stream(self.seed, 9, row.line)),
            tenant: row.tenant.as_deref().map(TenantId::from),
            props: make::props(&row.props),
        };
        self.after.begun(number, row);
        ask
    }
}

impl Source for Replay {
    fn next(&mut self) -> Result<Option<Ask>, SimError> {
        self.fill()?;
        Ok(self.ahead.pop_first().map(|((at, _), row)| {
            self.last = at;
            self.ask(at, row)
        }))
    }

    fn is_followed(&self, number: u64) -> bool {
        self.after.is_followed(number)
    }

    fn ended(&mut self, now: Time, number: u64, _answer: &[Token]) -> Result<Vec<Ask>, SimError> {
        let rows = self.after.ended(now, number);
        Ok(rows.into_iter().map(|(at, row)| self.ask(at, row)).collect())
    }

    fn check_all_came(&self) -> Result<(), SimError> {
        match self.after.waiting() {
            Some(line) => Err(self.lines.error(line, "`wait_for` goes round in a circle".into())),
            None => Ok(()),
        }
    }
}

/// The rows of a file.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    line: u64,
    left: u64,
    block_tokens: u32,
    /// Where the columns are; none: the lines are JSON.
    columns: Option<Columns>,
    /// The first line, where it was read to see what the file is, and is a row.
    first: VecDeque<String>,
}

impl Lines {
    fn open(
        path: &Path,
        format: Option<TraceFormat>,
        limit: u64,
        block_tokens: u32,
    ) -> Result<Self, SimError> {
        let file =
            File::open(path).map_err(|source| SimError::ReadTrace { path: path.to_path_buf(), source })?;
        let mut lines = Self {
            path: path.to_path_buf(),
            reader: BufReader::new(file),
            line: 0,
            left: if limit == 0 { u64::MAX } else { limit },
            block_tokens,
            columns: None,
            first: VecDeque::new(),
        };
        let Some(first) = lines.text()? else {
            return Err(SimError::EmptyTrace { path: lines.path });
        };
        let formats = "use JSON lines, or CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens";
        match format.or_else(|| row::guess(&first)) {
            Some(TraceFormat::Azure) => {
                lines.columns = Some(Columns::of(&first).map_err(|reason| lines.error(lines.line, reason))?);
            }
            Some(TraceFormat::Mooncake | TraceFormat::Log) => lines.first.push_back(first),
            None => return Err(lines.error(lines.line, format!("no known trace format: {formats}"))),
        }
        // A header alone asks for nothing.
        match lines.text()? {
            Some(line) => lines.first.push_front(line),
            None => return Err(SimError::EmptyTrace { path: lines.path }),
        }
        Ok(lines)
    }

    fn next(&mut self) -> Result<Option<Row>, SimError> {
        if self.left == 0 {
            return Ok(None);
        }
        let Some(text) = self.text()? else { return Ok(None) };
        self.left -= 1;
        let row = match self.columns {
            Some(columns) => columns.row(&text),
            None => row::json(&text, self.block_tokens),
        };
        let row = row.map_err(|reason| self.error(self.line, reason))?;
        Ok(Some(Row { line: self.line, ..row }))
    }

    /// The next line that is not empty.
    fn text(&mut self) -> Result<Option<String>, SimError> {
        if let Some(first) = self.first.pop_front() {
            return Ok(Some(first));
        }
        let mut text = String::new();
        loop {
            text.clear();
            let read = self.reader.read_line(&mut text);
            let read = read.map_err(|source| match source.kind() {
                ErrorKind::InvalidData => self.error(self.line + 1, "it is no text in UTF-8".into()),
                _ => SimError::ReadTrace { path: self.path.clone(), source },
            })?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            if !text.trim().is_empty() {
                return Ok(Some(text));
            }
        }
    }

    fn error(&self, line: u64, reason: String) -> SimError {
        SimError::Trace { path: self.path.clone(), line, reason }
    }
}
