//! Cuts text at control tokens, and keeps those that a message brought along from being cut at.

use super::trie::Trie;

/// A control token as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpecialToken {
    pub(super) id: u32,
    pub(super) text: String,
    /// It takes whitespace before it along.
    pub(super) lstrip: bool,
    /// It takes whitespace after it along.
    pub(super) rstrip: bool,
}

/// A piece of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    /// A control token.
    Special(u32),
    /// Text that has none, never empty.
    Plain(&'a str),
}

/// Finds control tokens in text, leftmost first and longest.
#[derive(Debug)]
pub(super) struct Segmenter {
    tokens: Vec<SpecialToken>,
    trie: Trie,
}

impl Segmenter {
    pub(super) fn new(tokens: Vec<SpecialToken>) -> Self {
        let texts: Vec<_> = tokens.iter().map(|token| token.text.as_str()).collect();
        Self { trie: Trie::new(&texts), tokens }
    }

    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        let mut out = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            let Some((index, len)) = self.trie.longest_prefix(&text.as_bytes()[at..]) else {
                at += 1;
                continue;
            };
            let token = &self.tokens[index];
            let mut plain = &text[start..at];
            if token.lstrip {
                plain = plain.trim_end();
            }
            if !plain.is_empty() {
                out.push(Segment::Plain(plain));
            }
            out.push(Segment::Special(token.id));
            at += len;
            if token.rstrip {
                at += text[at..].len() - text[at..].trim_start().len();
            }
            start = at;
        }
        if start < text.len() {
            out.push(Segment::Plain(&text[start..]));
        }
        out
    }

    /// Puts `marker` inside every string of a control token in `text`, and at an end of `text` where such a string
    /// could form with what surrounds it. Without `marker` the result is `text` again.
    pub(super) fn disarm(&self, text: &str, marker: char) -> String {
        let mut out = String::with_capacity(text.len());
        if self.starts_inside(text) {
            out.push(marker);
        }
        let mut last = 0;
        for (at, char) in text.char_indices() {
            if self.trie.longest_prefix(&text.as_bytes()[at..]).is_some() {
                // After the first character of each occurrence, so that overlapping ones are all broken.
                let cut = at + char.len_utf8();
                out.push_str(&text[last..cut]);
                out.push(marker);
                last = cut;
            }
        }
        out.push_str(&text[last..]);
        if self.trie.ends_inside(text.as_bytes()) {
            out.push(marker);
        }
        out
    }

    /// Whether the start of `text` could be the end or the middle of a control token's string.
    fn starts_inside(&self, text: &str) -> bool {
        let Some(first) = text.chars().next() else { return false };
        self.tokens.iter().any(|token| {
            token.text.char_indices().skip(1).any(|(at, char)| {
                let rest = &token.text[at..];
                char == first && (text.starts_with(rest) || rest.starts_with(text))
            })
        })
    }
}

/// A character that occurs in none of the texts, from the 32 noncharacters U+FDD0 to U+FDEF and then the private use
/// planes. There always is one: no text holds all 65,000 of the latter within the API's size limit.
pub(super) fn unused_char<'a, I: Iterator<Item = &'a str>>(texts: impl Fn() -> I) -> char {
    ('\u{FDD0}'..='\u{FDEF}')
        .chain('\u{F0000}'..='\u{FFFFD}')
        .find(|candidate| !texts().any(|text| text.contains(*candidate)))
        .unwrap_or('\u{FDD0}')
}
