//! Lines of traces.

use std::collections::BTreeMap;

use policies::time::Span;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::scenario::{PropValue, TraceFormat};

/// A request of a trace.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// Number of its line in the file.
    pub(super) line: u64,
    /// Nanoseconds since an origin of the file's own; none: it comes when others have ended.
    pub(super) at: Option<u64>,
    /// That origin is the year 1970.
    pub(super) dated: bool,
    pub(super) input: u32,
    pub(super) output: u32,
    /// What its prompt begins with, as numbers of blocks: equal numbers are equal tokens.
    pub(super) blocks: Vec<u64>,
    /// The blocks after its full ones that prompt and answer fill together, where that is known.
    pub(super) answered: Vec<u64>,
    pub(super) block_tokens: u32,
    pub(super) session: Option<String>,
    /// Time since the former turn, or those that it waits for, have ended.
    pub(super) delay: Option<Span>,
    pub(super) name: Option<String>,
    pub(super) wait_for: Vec<String>,
    pub(super) tenant: Option<String>,
    pub(super) props: BTreeMap<String, PropValue>,
}

/// A line as JSON. Keys that it does not name are refused: they could change what the others mean.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    #[serde(alias = "created_time")]
    timestamp: Option<serde_json::Number>,
    unix_us: Option<u64>,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<Block>,
    #[serde(default)]
    answer_hash_ids: Vec<Block>,
    block_size: Option<u32>,
    session_id: Option<String>,
    #[serde(alias = "delay_ms")]
    delay: Option<serde_json::Number>,
    request_id: Option<String>,
    #[serde(default)]
    wait_for: Vec<String>,
    tool_wait_ms: Option<serde_json::Number>,
    tenant: Option<String>,
    #[serde(default)]
    props: BTreeMap<String, PropValue>,
    // What follows says again what `wait_for` and `session_id` say, or describes tools, and changes nothing here.
    #[serde(rename = "branches")]
    _branches: Option<IgnoredAny>,
    #[serde(rename = "prefix_reset")]
    _prefix_reset: Option<IgnoredAny>,
    #[serde(rename = "tool_events")]
    _tool_events: Option<IgnoredAny>,
    // What a node's log says besides: what was asked for, and what became of it there.
    #[serde(rename = "max_tokens")]
    _max_tokens: Option<IgnoredAny>,
    #[serde(rename = "n")]
    _choices: Option<IgnoredAny>,
    #[serde(rename = "outcome")]
    _outcome: Option<IgnoredAny>,
    #[serde(rename = "ttft_ms")]
    _ttft: Option<IgnoredAny>,
    #[serde(rename = "e2e_ms")]
    _e2e: Option<IgnoredAny>,
    #[serde(rename = "cached_tokens")]
    _cached: Option<IgnoredAny>,
    #[serde(rename = "worker")]
    _worker: Option<IgnoredAny>,
}

/// The number of a block, or the hash of a page in hexadecimal.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "use whole numbers, or hashes in hexadecimal as texts")]
enum Block {
    Number(u64),
    Negative(i64),
    Hash(String),
}

/// What a file is, by its first line that is not empty.
pub(super) fn guess(first: &str) -> Option<TraceFormat> {
    let first = first.trim_start();
    if first.starts_with('{') {
        Some(if first.contains("\"block_size\"") { TraceFormat::Log } else { TraceFormat::Mooncake })
    } else if first.to_ascii_lowercase().starts_with("timestamp") {
        Some(TraceFormat::Azure)
    } else {
        None
    }
}

/// A line of a Mooncake trace or of our log.
///
/// # Errors
/// Why it is none, with the key.
pub(super) fn json(text: &str, block_tokens: u32) -> Result<Row, String> {
    let json: Json = serde_json::from_str(text).map_err(|e| reason(text, &e))?;
    let nanos = |key: &str, ms: &serde_json::Number| match (ms.as_u64(), ms.as_f64()) {
        (Some(ms), _) => ms.checked_mul(1_000_000).ok_or_else(|| format!("`{key}` is {ms}: too late")),
        (None, Some(ms)) if (0.0..9e12).contains(&ms) => Ok((ms * 1e6).round() as u64),
        _ => Err(format!("`{key}` is {ms}: use milliseconds, 0 or more")),
    };
    let optional =
        |key: &str, ms: &Option<serde_json::Number>| ms.as_ref().map(|ms| nanos(key, ms)).transpose();
    let block_tokens = json.block_size.unwrap_or(block_tokens);
    let numbers = |key: &str, blocks: &[Block]| -> Result<Vec<u64>, String> {
        blocks.iter().map(|block| block.number(key)).collect()
    };
    let blocks = numbers("hash_ids", &json.hash_ids)?;
    let answered = numbers("answer_hash_ids", &json.answer_hash_ids)?;
    if json.input_length == 0 {
        return Err("`input_length` is 0: use 1 or more".into());
    }
    if block_tokens == 0 {
        return Err("`block_size` is 0: use 1 or more".into());
    }
    // The last block may be part of one, or be left out.
    let (full, all) = (json.input_length / block_tokens, json.input_length.div_ceil(block_tokens));
    if !blocks.is_empty() && !(u64::from(full)..=u64::from(all)).contains(&(blocks.len() as u64)) {
        return Err(format!(
            "`hash_ids` has {} blocks, but `input_length` {} is {all} blocks of {block_tokens} tokens: set \
             workload.block-tokens to what the trace was made with",
            blocks.len(),
            json.input_length
        ));
    }
    let filled = (u64::from(json.input_length) + u64::from(json.output_length)) / u64::from(block_tokens);
    if u64::from(full) + answered.len() as u64 > filled {
        return Err(format!(
            "`answer_hash_ids` has {} blocks, but after the {full} full ones of the prompt `input_length` {} and \
             `output_length` {} fill {} of {block_tokens} tokens: give one for each",
            answered.len(),
            json.input_length,
            json.output_length,
            filled.saturating_sub(full.into())
        ));
    }
    let (delay, tool) = (optional("delay", &json.delay)?, optional("tool_wait_ms", &json.tool_wait_ms)?);
    let delay = match (delay, tool) {
        (None, None) => None,
        (delay, tool) => Some(Span(delay.unwrap_or(0).saturating_add(tool.unwrap_or(0)))),
    };
    let unix = json.unix_us.map(|us| us.checked_mul(1000).ok_or(format!("`unix_us` is {us}: too late")));
    let at = unix.transpose()?.or(optional("timestamp", &json.timestamp)?);
    Ok(Row {
        line: 0,
        at,
        dated: json.unix_us.is_some(),
        input: json.input_length,
        output: json.output_length.max(1),
        blocks,
        answered,
        block_tokens,
        session: json.session_id,
        delay,
        name: json.request_id,
        wait_for: json.wait_for,
        tenant: json.tenant,
        props: json.props,
    })
}

/// Why a line is no request, with the key where the error itself names none.
fn reason(text: &str, error: &serde_json::Error) -> String {
    let said = error.to_string();
    // The position is that within the line, which is named by the caller.
    let said = said.split(" at line ").next().unwrap_or_default();
    let names_it =
        ["missing field", "unknown field", "duplicate field"].iter().any(|kind| said.starts_with(kind));
    let key = text.get(..error.column()).and_then(|before| {
        let (until_key, _) = before.rsplit_once("\":")?;
        until_key.rsplit_once('"').map(|(_, key)| key)
    });
    match key {
        Some(key) if error.is_data() && !names_it => {
            format!(
                "`{key}`: {}",
                said.replace("expected u32", "expected a whole number from 0 to 4294967295")
            )
        }
        _ if error.is_eof() => format!("{said}: the line is cut off"),
        _ => said.to_owned(),
    }
}

impl Block {
    fn number(&self, key: &str) -> Result<u64, String> {
        match self {
            Self::Number(n) => Ok(*n),
            Self::Negative(n) => Ok(n.cast_unsigned()),
            Self::Hash(text) => {
                let hash = u128::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16);
                // Half of a hash is as good as a whole one: it only has to tell blocks apart.
                hash.map(|hash| (hash ^ (hash >> 64)) as u64).map_err(|_| {
                    format!("`{key}` has {text:?}: use whole numbers, or up to 32 hexadecimal digits")
                })
            }
        }
    }
}

/// Where the columns of a CSV trace are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    at: usize,
    input: usize,
    output: usize,
}

impl Columns {
    /// Of a header.
    ///
    /// # Errors
    /// The column that is not there.
    pub(super) fn of(header: &str) -> Result<Self, String> {
        let find = |name: &str| {
            let mut names = header.trim().split(',');
            let at = names.position(|column| column.trim().eq_ignore_ascii_case(name));
            at.ok_or_else(|| format!("the column `{name}` is missing: the header is {:?}", header.trim()))
        };
        Ok(Self { at: find("TIMESTAMP")?, input: find("ContextTokens")?, output: find("GeneratedTokens")? })
    }

    /// A line under it.
    ///
    /// # Errors
    /// Why it is none, with the column.
    pub(super) fn row(self, text: &str) -> Result<Row, String> {
        let fields: Vec<&str> = text.trim().split(',').collect();
        let field = |at: usize, name: &str| {
            fields
                .get(at)
                .copied()
                .ok_or_else(|| format!("`{name}` is missing: the line is {:?}", text.trim()))
        };
        let number = |at: usize, name: &str| {
            let text = field(at, name)?;
            text.trim().parse().map_err(|_| format!("`{name}` is {text:?}: use a whole number of tokens"))
        };
        let at = field(self.at, "TIMESTAMP")?;
        let bad =
            || format!("`TIMESTAMP` is {at:?}: use YYYY-MM-DD HH:MM:SS with an optional fraction, in UTC");
        let (input, output): (u32, u32) =
            (number(self.input, "ContextTokens")?, number(self.output, "GeneratedTokens")?);
        if input == 0 {
            return Err("`ContextTokens` is 0: use 1 or more".into());
        }
        let at = Some(date(at.trim()).ok_or_else(bad)?);
        Ok(Row { at, dated: true, input, output: output.max(1), block_tokens: 1, ..Row::default() })
    }
}

/// Nanoseconds since 1970 of `2023-11-16 18:17:03.9799600`, with or without a zero offset after it.
fn date(text: &str) -> Option<u64> {
    let text = text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (day, time) = text.split_once([' ', 'T'])?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut day = day.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (day.next()??, day.next()??, day.next()??);
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let sane = (1970..2500).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !sane || hour > 23 || minute > 59 || second > 60 || fraction.len() > 9 {
        return None;
    }
    // Days from the civil calendar, counted in years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let nanos = match fraction {
        "" => 0,
        digits => digits.parse::<u64>().ok()? * 10_u64.pow(9 - digits.len() as u32),
    };
    Some((days * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_count_from_1970() {
        assert_eq!(date("1970-01-01 00:00:00"), Some(0));
        assert_eq!(date("2023-11-16 18:17:03.9799600"), Some(1_700_158_623_979_960_000));
        assert_eq!(date("2024-02-29T00:00:00.5Z"), Some(1_709_164_800_500_000_000));
        assert_eq!(date("2024-05-10 00:00:00.009930+00:00"), Some(1_715_299_200_009_930_000));
        for bad in ["", "yesterday", "2023-11-16", "2023-13-01 00:00:00", "2023-11-16 25:00:00"] {
            assert_eq!(date(bad), None, "{bad}");
        }
    }

    #[test]
    fn formats_are_seen_from_the_first_line() {
        assert_eq!(guess(r#"{"timestamp": 0}"#), Some(TraceFormat::Mooncake));
        assert_eq!(guess(r#"{"timestamp": 0, "block_size": 16}"#), Some(TraceFormat::Log));
        assert_eq!(guess("TIMESTAMP,ContextTokens,GeneratedTokens"), Some(TraceFormat::Azure));
        assert_eq!(guess("hello"), None);
    }
}
