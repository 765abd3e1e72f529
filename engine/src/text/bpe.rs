//! Byte-level BPE without the generality of the `tokenizers` crate: same ids, several times as fast.
//!
//! The crate keeps, for each piece of text, the piece, its normalised form and a map between their characters, which
//! costs more than the merging. Prompts need ids only. Everything that is not plain byte-level BPE stays with the crate.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use serde_json::Value;
use tokenizers::utils::SysRegex;

use super::byte_char;
use super::segment::{Segment, Segmenter, SpecialToken};

/// Longest word, in bytes, that is merged by looking for the best pair each time instead of keeping a heap of pairs.
const SHORT_WORD: usize = 48;

/// A tokenizer that is byte-level BPE over words cut by patterns, and nothing else.
#[derive(Debug)]
pub(super) struct ByteLevelBpe {
    patterns: Vec<SysRegex>,
    /// Tokens that are cut out of the text before words are made.
    added: Segmenter,
    /// The token of each byte; bytes without one are left out, as the crate does.
    bytes: Vec<Option<u32>>,
    merges: HashMap<u64, Merge, BuildHasherDefault<PairHasher>>,
    /// Words that are a token are that token, where the tokenizer says so.
    whole: Option<HashMap<Box<str>, u32>>,
}

#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    result: u32,
}

impl ByteLevelBpe {
    /// From a `tokenizer.json`; none when it asks for anything else than this does.
    pub(super) fn of(json: &Value) -> Option<Self> {
        let model = &json["model"];
        let off = |key: &str| matches!(&model[key], Value::Null | Value::Bool(false)) || model[key] == "";
        let plain =
            ["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"];
        if model["type"] != "BPE" || !plain.into_iter().all(off) || !json["normalizer"].is_null() {
            return None;
        }
        let vocab = model["vocab"].as_object()?;
        let id = |token: &str| vocab.get(token)?.as_u64().and_then(|id| u32::try_from(id).ok());
        let mut merges = HashMap::default();
        for (rank, merge) in (0..).zip(model["merges"].as_array()?) {
            let (left, right) = match merge {
                Value::String(line) => line.split_once(' ')?,
                pair => (pair[0].as_str()?, pair[1].as_str()?),
            };
            let result = id(&format!("{left}{right}"))?;
            merges.insert(pair_key(id(left)?, id(right)?), Merge { rank, result });
        }
        let whole = (model["ignore_merges"] == true)
            .then(|| vocab.keys().filter_map(|token| Some((token.as_str().into(), id(token)?))).collect());
        Some(Self {
            patterns: patterns(&json["pre_tokenizer"])?,
            added: added(&json["added_tokens"])?,
            bytes: (0..=u8::MAX).map(|byte| id(byte_char(byte).encode_utf8(&mut [0; 4]))).collect(),
            merges,
            whole,
        })
    }

    /// Appends the ids of a text.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        for segment in self.added.split(text) {
            match segment {
                Segment::Special(id) => ids.push(id),
                Segment::Plain(text) => self.words(&self.patterns, text, ids),
            }
        }
    }

    /// Cuts by the first pattern, and the pieces by the next ones.
    fn words(&self, patterns: &[SysRegex], text: &str, ids: &mut Vec<u32>) {
        let Some((pattern, rest)) = patterns.split_first() else { return self.word(text, ids) };
        let mut from = 0;
        for (start, end) in pattern.find_iter(text) {
            if from < start {
                self.words(rest, &text[from..start], ids);
            }
            if start < end {
                self.words(rest, &text[start..end], ids);
            }
            from = end;
        }
        if from < text.len() {
            self.words(rest, &text[from..], ids);
        }
    }

    fn word(&self, word: &str, ids: &mut Vec<u32>) {
        if let Some(whole) = &self.whole {
            let mapped: String = word.bytes().map(byte_char).collect();
            if let Some(id) = whole.get(mapped.as_str()) {
                ids.push(*id);
                return;
            }
        }
        let symbols = word.bytes().filter_map(|byte| self.bytes[usize::from(byte)]);
        if word.len() <= SHORT_WORD {
            self.merge_short(symbols, ids);
        } else {
            self.merge_long(symbols.collect(), ids);
        }
    }

    fn merge(&self, left: u32, right: u32) -> Option<Merge> {
        self.merges.get(&pair_key(left, right)).copied()
    }

    /// Merges the pair of lowest rank, leftmost first, until there is none.
    fn merge_short(&self, symbols: impl Iterator<Item = u32>, ids: &mut Vec<u32>) {
        let first = ids.len();
        ids.extend(symbols);
        let word = &ids[first..];
        let mut pairs = [None; SHORT_WORD];
        for (pair, at) in pairs.iter_mut().zip(1..word.len()) {
            *pair = self.merge(word[at - 1], word[at]);
        }
        let mut len = word.len();
        loop {
            let candidates = pairs[..len.saturating_sub(1)].iter().enumerate();
            let best =
                candidates.filter_map(|(at, pair)| pair.map(|merge| (merge.rank, at, merge.result))).min();
            let Some((_, at, result)) = best else { break };
            let word = &mut ids[first..];
            word[at] = result;
            word.copy_within(at + 2..len, at + 1);
            pairs.copy_within(at + 1..len - 1, at);
            len -= 1;
            if at > 0 {
                pairs[at - 1] = self.merge(word[at - 1], result);
            }
            pairs[at] = if at + 1 < len { self.merge(result, word[at + 1]) } else { None };
        }
        ids.truncate(first + len);
    }

    /// The same with a heap of pairs over a linked list, for words of any length.
    fn merge_long(&self, mut word: Vec<u32>, ids: &mut Vec<u32>) {
        const NONE: usize = usize::MAX;
        let len = word.len();
        let mut next: Vec<usize> = (1..=len).map(|at| if at == len { NONE } else { at }).collect();
        let mut previous: Vec<usize> = (0..len).map(|at| at.checked_sub(1).unwrap_or(NONE)).collect();
        let mut alive = vec![true; len];
        // Rank first, then place; both fit, a prompt being far from 4 GiB.
        let entry = |left: u32, right: u32, at: usize| {
            self.merge(left, right).map(|merge| Reverse(u64::from(merge.rank) << 32 | at as u64))
        };
        let mut heap: BinaryHeap<_> =
            (1..len).filter_map(|at| entry(word[at - 1], word[at], at - 1)).collect();
        while let Some(Reverse(best)) = heap.pop() {
            let (rank, at) = ((best >> 32) as u32, (best & u64::from(u32::MAX)) as usize);
            let after = next[at];
            if !alive[at] || after == NONE {
                continue;
            }
            // Symbols may have changed since the pair went in.
            let Some(merge) = self.merge(word[at], word[after]).filter(|merge| merge.rank == rank) else {
                continue;
            };
            word[at] = merge.result;
            alive[after] = false;
            next[at] = next[after];
            if next[at] != NONE {
                previous[next[at]] = at;
                heap.extend(entry(word[at], word[next[at]], at));
            }
            if previous[at] != NONE {
                heap.extend(entry(word[previous[at]], word[at], previous[at]));
            }
        }
        ids.extend(word.iter().zip(&alive).filter(|(_, alive)| **alive).map(|(id, _)| *id));
    }
}

/// The patterns of a pre-tokenizer that cuts by patterns and then maps bytes.
fn patterns(json: &Value) -> Option<Vec<SysRegex>> {
    let (last, splits) = json["pretokenizers"].as_array()?.split_last()?;
    if last["type"] != "ByteLevel" || last["add_prefix_space"] != false || last["use_regex"] != false {
        return None;
    }
    let pattern = |split: &Value| {
        let isolated =
            split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
        SysRegex::new(split["pattern"]["Regex"].as_str().filter(|_| isolated)?).ok()
    };
    splits.iter().map(pattern).collect()
}

/// Added tokens that are not control tokens.
fn added(json: &Value) -> Option<Segmenter> {
    let mut tokens = Vec::new();
    for token in json.as_array()?.iter().filter(|token| token["special"] != true) {
        if ["single_word", "lstrip", "rstrip"].into_iter().any(|key| token[key] == true) {
            return None;
        }
        let id = u32::try_from(token["id"].as_u64()?).ok()?;
        tokens.push(SpecialToken {
            id,
            text: token["content"].as_str()?.to_owned(),
            lstrip: false,
            rstrip: false,
        });
    }
    Some(Segmenter::new(tokens))
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Pairs of ids are looked up for every byte of a prompt; one multiplication spreads them well enough. Ids come from the
/// model, not from clients, so that nobody can choose colliding ones.
#[derive(Debug, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
