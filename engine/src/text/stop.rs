//! Stop strings over a stream of text.

use std::collections::VecDeque;
use std::sync::Arc;

use super::trie::{ROOT, Trie};

/// A compiled set of stop strings; shared by the choices of a request.
///
/// An Aho-Corasick automaton over bytes: its state after some text is the longest end of the text that starts a stop
/// string, which is exactly what has to be withheld.
#[derive(Debug, Clone)]
pub struct StopSet {
    trie: Trie,
    /// For each node, the node of its longest proper end that is in the trie.
    fail: Vec<usize>,
    /// For each node, the longest stop string that ends there: index and length in bytes.
    found: Vec<Option<(usize, usize)>>,
}

impl StopSet {
    /// Compiles the strings; empty ones are ignored.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Self {
        let trie = Trie::new(stops);
        let mut fail = vec![ROOT; trie.len()];
        let mut found: Vec<Option<(usize, usize)>> = vec![None; trie.len()];
        // Breadth first, so that the shorter ends of a node are done before it.
        let mut queue = VecDeque::from([ROOT]);
        while let Some(node) = queue.pop_front() {
            found[node] = trie.end(node).map(|index| (index, trie.depth(node))).or(found[fail[node]]);
            for (byte, child) in trie.children(node) {
                if node != ROOT {
                    fail[*child] = step(&trie, &fail, fail[node], *byte);
                }
                queue.push_back(*child);
            }
        }
        Self { trie, fail, found }
    }

    /// No stop strings at all.
    pub fn is_empty(&self) -> bool {
        self.trie.len() == 1
    }
}

fn step(trie: &Trie, fail: &[usize], mut node: usize, byte: u8) -> usize {
    loop {
        match trie.child(node, byte) {
            Some(child) => return child,
            None if node == ROOT => return ROOT,
            None => node = fail[node],
        }
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
pub struct StopMatcher {
    set: Arc<StopSet>,
    node: usize,
    held: String,
    matched: Option<StopMatch>,
}

impl StopMatcher {
    /// A matcher at the start of a stream.
    pub fn new(set: Arc<StopSet>) -> Self {
        Self { set, node: ROOT, held: String::new(), matched: None }
    }

    /// Feeds text; appends to `out` what is certainly before any stop string. After a match nothing more is released
    /// and the match is returned again.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        if self.matched.is_some() {
            return self.matched;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            self.node = step(&self.set.trie, &self.set.fail, self.node, byte);
            if let Some((index, len)) = self.set.found[self.node] {
                self.matched = Some(StopMatch { index });
                out.push_str(&self.held[..before + at + 1 - len]);
                self.held.clear();
                return self.matched;
            }
        }
        // A stop string starts at a character's first byte, so this cut is between characters.
        let free = self.held.len() - self.set.trie.depth(self.node);
        out.push_str(&self.held[..free]);
        self.held.drain(..free);
        None
    }

    /// The match, once there was one.
    pub fn matched(&self) -> Option<StopMatch> {
        self.matched
    }

    /// Ends the stream: releases what was withheld, unless there was a match.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.node = ROOT;
    }
}
