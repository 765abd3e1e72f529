//! Stop strings over a stream of text.

use std::sync::Arc;

/// A compiled set of stop strings; shared by the choices of a request.
#[derive(Debug, Clone)]
pub struct StopSet {}

impl StopSet {
    /// Compiles the strings; empty ones are ignored.
    pub fn new<S: AsRef<str>>(_stops: &[S]) -> Self {
        todo!()
    }
}

/// A stop string that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Index in the list given to [`StopSet::new`].
    pub index: usize,
}

/// Finds the stop string that is completed first (of several completed by the same character the longest), and
/// withholds exactly the longest end of the text that may still become one. The result does not depend on how the
/// text is cut into pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {}

impl StopMatcher {
    /// A matcher at the start of a stream.
    pub fn new(_set: Arc<StopSet>) -> Self {
        todo!()
    }

    /// Feeds text; appends to `out` what is certainly before any stop string. After a match nothing more is released.
    pub fn push(&mut self, _text: &str, _out: &mut String) -> Option<StopMatch> {
        todo!()
    }

    /// Ends the stream without a match: releases what was withheld.
    pub fn finish(&mut self, _out: &mut String) {
        todo!()
    }
}
