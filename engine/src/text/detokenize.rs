//! Incremental detokenizer: bytes to text, one token at a time.

/// State of one stream. Cheap: a few bytes and a reference to the model.
///
/// It can be rebuilt at any time from prompt and tokens so far (`push` them again and drop the text).
#[derive(Debug, Clone)]
pub struct Detokenizer {}

impl Detokenizer {
    /// Appends to `out` the text that this token completes; bytes of an unfinished character are kept.
    pub fn push(&mut self, _id: u32, _out: &mut String) {
        todo!()
    }

    /// Ends the stream: bytes that never became a character are shown as U+FFFD.
    pub fn finish(&mut self, _out: &mut String) {
        todo!()
    }
}
