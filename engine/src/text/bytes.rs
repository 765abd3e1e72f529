//! The bytes of every token.

use serde_json::Value;

/// The character that byte-level BPE writes for a byte: printable Latin-1 stands for itself, the rest is moved to
/// U+0100 and up in order.
pub(crate) fn byte_char(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            // How many unprintable bytes come before this one.
            let rank = match byte {
                0..=0x20 => u32::from(byte),
                0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x21,
                _ => 0x43,
            };
            char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    }
}

/// The inverse of [`byte_char`].
fn char_byte(char: char) -> Option<u8> {
    let code = u32::from(char);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// How the strings of a vocabulary stand for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Byte-level BPE.
    ByteLevel,
    /// SentencePiece: U+2581 is a space, `<0x0A>` is a byte.
    SentencePiece {
        /// A text's first space was put there by the tokenizer.
        drop_first_space: bool,
    },
}

/// What U+2581 stands for in SentencePiece vocabularies.
const SPACE_MARK: char = '\u{2581}';

impl Alphabet {
    /// Reads the decoder section of a `tokenizer.json`; an error says what it found.
    pub(super) fn of(tokenizer: &Value) -> Result<Self, String> {
        let mut steps = Vec::new();
        flatten(&tokenizer["decoder"], "decoders", &mut steps);
        let kind = |step: &Value| step["type"].as_str().unwrap_or_default().to_owned();
        if steps.iter().any(|step| kind(step) == "ByteLevel") {
            return Ok(Self::ByteLevel);
        }
        let metaspace = steps.iter().find(|step| kind(step) == "Metaspace");
        let replace = steps.iter().any(|step| {
            kind(step) == "Replace" && step["pattern"]["String"] == "\u{2581}" && step["content"] == " "
        });
        if let Some(step) = metaspace {
            return Ok(Self::SentencePiece { drop_first_space: step["prepend_scheme"] != "never" });
        }
        if replace {
            let drop_first_space = steps.iter().any(|step| kind(step) == "Strip");
            return Ok(Self::SentencePiece { drop_first_space });
        }
        let found: Vec<_> = steps.iter().map(|step| kind(step)).collect();
        Err(format!(
            "its decoder is {found:?}; supported are ByteLevel, Metaspace and Replace with ByteFallback"
        ))
    }

    fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            // A token with other characters was added as it is.
            Self::ByteLevel => token
                .chars()
                .map(char_byte)
                .collect::<Option<_>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Self::SentencePiece { .. } => {
                match token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')) {
                    Some(hex) if hex.len() == 2 => match u8::from_str_radix(hex, 16) {
                        Ok(byte) => vec![byte],
                        Err(_) => token.as_bytes().to_vec(),
                    },
                    _ => token.replace(SPACE_MARK, " ").into_bytes(),
                }
            }
        }
    }
}

/// Collects a component and, of a sequence, its parts.
fn flatten<'a>(component: &'a Value, parts: &str, out: &mut Vec<&'a Value>) {
    match component[parts].as_array() {
        Some(inner) => inner.iter().for_each(|component| flatten(component, parts, out)),
        None if component.is_null() => {}
        None => out.push(component),
    }
}

/// Bytes of all tokens in one allocation.
#[derive(Debug, Clone)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end.
    ends: Vec<u32>,
    special: Vec<bool>,
    pub(super) drop_first_space: bool,
}

impl TokenBytes {
    /// `token(id)` is the vocabulary's string and whether it was added as it is.
    pub(super) fn new(
        alphabet: Alphabet,
        size: usize,
        token: impl Fn(u32) -> Option<(String, bool)>,
        special_ids: &[u32],
    ) -> Result<Self, String> {
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            special: vec![false; size],
            drop_first_space: alphabet == Alphabet::SentencePiece { drop_first_space: true },
        };
        let size = u32::try_from(size).map_err(|_| format!("the vocabulary has {size} tokens"))?;
        for id in 0..size {
            match token(id) {
                Some((text, true)) => table.bytes.extend(text.as_bytes()),
                Some((text, false)) => table.bytes.extend(alphabet.bytes(&text)),
                None => {}
            }
            let end =
                u32::try_from(table.bytes.len()).map_err(|_| "the vocabulary is over 4 GiB".to_owned())?;
            table.ends.push(end);
        }
        for id in special_ids {
            if let Some(special) = table.special.get_mut(*id as usize) {
                *special = true;
            }
        }
        Ok(table)
    }

    /// Empty for an id outside the vocabulary.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let Some(end) = self.ends.get(id as usize) else { return &[] };
        let start = match id {
            0 => 0,
            _ => self.ends[id as usize - 1],
        };
        &self.bytes[start as usize..*end as usize]
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}
