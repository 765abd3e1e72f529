//! Pre-tokenizers: how byte-level BPE cuts text into words, by the name that GGUF files carry.
//!
//! Each is a list of patterns applied one after the other, each to the pieces that the one before left; what a pattern
//! does not match stays a piece. Patterns are those of the models' own tokenizers, in the form llama.cpp uses.

use serde_json::{Value, json};

/// Words of GPT-2: contractions, letters, digits, other characters, spaces but for the one before a word.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// One pre-tokenizer with the settings that go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// A word that is a token is that token, whatever the merges would make of it.
    pub(super) ignore_merges: bool,
    /// The default of `tokenizer.ggml.add_bos_token`.
    pub(super) add_bos: bool,
}

const TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["gpt-2", "mpt", "olmo", "phi-2", "mellum", "trillion"],
        patterns: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"],
        patterns: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer { names: &["smaug-bpe", "dbrx"], patterns: &[LLAMA3], ignore_merges: false, add_bos: false },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"],
        patterns: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer { names: &["tekken"], patterns: &[TEKKEN], ignore_merges: true, add_bos: true },
];

impl PreTokenizer {
    pub(super) fn find(name: &str) -> Option<Self> {
        TABLE.iter().find(|entry| entry.names.contains(&name)).copied()
    }

    /// All names, for error messages.
    pub(super) fn supported() -> String {
        TABLE.iter().flat_map(|entry| entry.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// In the format of `tokenizer.json`.
    pub(super) fn json(self) -> Value {
        let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let mut steps: Vec<_> = self.patterns.iter().map(split).collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
