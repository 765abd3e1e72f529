//! Incremental detokenizer: bytes to text, one token at a time.

use std::sync::Arc;

use super::bytes::TokenBytes;

/// Longest start of a character that is not yet one.
const MAX_PENDING: usize = 3;

/// State of one stream. Cheap: a few bytes and a reference to the model.
///
/// It can be rebuilt at any time from the prompt and the tokens so far
/// ([`TextModel::resume_detokenizer`](super::TextModel::resume_detokenizer)).
#[derive(Debug, Clone)]
pub struct Detokenizer {
    table: Arc<TokenBytes>,
    /// The start of a character whose end has not come yet.
    pending: [u8; MAX_PENDING],
    len: usize,
    /// How many of the pending bytes are the prompt's. They may become part of a character but are never shown alone.
    from_prompt: usize,
}

impl Detokenizer {
    pub(super) fn new(table: Arc<TokenBytes>, prompt: &[u32]) -> Self {
        let mut new = Self { table, pending: [0; MAX_PENDING], len: 0, from_prompt: 0 };
        // Enough tokens from the end that their bytes hold the last character's start.
        let mut tail = Vec::new();
        for id in prompt.iter().rev() {
            // A control token between them ends a character.
            if tail.len() >= MAX_PENDING || new.table.is_special(*id) {
                break;
            }
            tail.splice(..0, new.table.get(*id).iter().copied());
        }
        let start = unfinished(&tail);
        new.len = tail.len() - start;
        new.from_prompt = new.len;
        new.pending[..new.len].copy_from_slice(&tail[start..]);
        new
    }

    /// Appends to `out` the text that this token completes; bytes of an unfinished character are kept. Control tokens
    /// give no text.
    pub fn push(&mut self, id: u32, out: &mut String) {
        if self.table.is_special(id) {
            // It ends whatever came before, as it does in a full decode.
            self.finish(out);
            return;
        }
        let table = Arc::clone(&self.table);
        let new = table.get(id);
        if self.len == 0 {
            self.decode(new, out);
        } else {
            let mut joined = Vec::with_capacity(self.len + new.len());
            joined.extend_from_slice(&self.pending[..self.len]);
            joined.extend_from_slice(new);
            self.decode(&joined, out);
        }
    }

    /// Ends the stream: bytes that never became a character are shown as U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if self.len > self.from_prompt {
            out.push(char::REPLACEMENT_CHARACTER);
        }
        self.len = 0;
        self.from_prompt = 0;
    }

    /// `bytes` are all pending bytes and the new ones.
    fn decode(&mut self, mut bytes: &[u8], out: &mut String) {
        let mut prompt_bytes = std::mem::take(&mut self.from_prompt);
        self.len = 0;
        loop {
            match std::str::from_utf8(bytes) {
                Ok(text) => {
                    out.push_str(text);
                    return;
                }
                Err(error) => {
                    let (good, rest) = bytes.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(good));
                    if !good.is_empty() {
                        prompt_bytes = 0;
                    }
                    match error.error_len() {
                        Some(len) => {
                            // A broken character that the prompt began is the prompt's, not the model's.
                            if len > prompt_bytes {
                                out.push(char::REPLACEMENT_CHARACTER);
                            }
                            prompt_bytes = prompt_bytes.saturating_sub(len);
                            bytes = &rest[len..];
                        }
                        None => {
                            self.len = rest.len();
                            self.from_prompt = prompt_bytes.min(self.len);
                            self.pending[..self.len].copy_from_slice(rest);
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Where an unfinished character at the end of `bytes` starts; the length when there is none.
fn unfinished(bytes: &[u8]) -> usize {
    for start in bytes.len().saturating_sub(MAX_PENDING)..bytes.len() {
        if let Err(error) = std::str::from_utf8(&bytes[start..])
            && error.valid_up_to() == 0
            && error.error_len().is_none()
        {
            return start;
        }
    }
    bytes.len()
}

/// All bytes as text at once; what [`Detokenizer`] gives piece by piece.
pub(super) fn decode(table: &TokenBytes, ids: &[u32], skip_special: bool) -> String {
    let mut out = String::new();
    let mut bytes = Vec::new();
    for id in ids {
        if !table.is_special(*id) {
            bytes.extend_from_slice(table.get(*id));
            continue;
        }
        out.push_str(&String::from_utf8_lossy(&std::mem::take(&mut bytes)));
        if !skip_special {
            out.push_str(&String::from_utf8_lossy(table.get(*id)));
        }
    }
    out.push_str(&String::from_utf8_lossy(&bytes));
    if table.drop_first_space && out.starts_with(' ') {
        out.remove(0);
    }
    out
}
