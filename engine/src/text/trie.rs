//! A byte trie, for control tokens and stop strings.

/// A set of strings, each with the index it was given.
#[derive(Debug, Clone)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Sorted by byte.
    children: Vec<(u8, usize)>,
    /// Index of the string that ends here.
    end: Option<usize>,
    depth: usize,
}

pub(super) const ROOT: usize = 0;

impl Trie {
    /// Empty strings are ignored; of equal ones the first counts.
    pub(super) fn new<S: AsRef<str>>(strings: &[S]) -> Self {
        let mut trie = Self { nodes: vec![Node::default()] };
        for (index, string) in strings.iter().enumerate() {
            if string.as_ref().is_empty() {
                continue;
            }
            let mut node = ROOT;
            for (depth, byte) in string.as_ref().bytes().enumerate() {
                node = match trie.nodes[node].children.binary_search_by_key(&byte, |(byte, _)| *byte) {
                    Ok(at) => trie.nodes[node].children[at].1,
                    Err(at) => {
                        let child = trie.nodes.len();
                        trie.nodes.push(Node { depth: depth + 1, ..Node::default() });
                        trie.nodes[node].children.insert(at, (byte, child));
                        child
                    }
                };
            }
            trie.nodes[node].end.get_or_insert(index);
        }
        trie
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn child(&self, node: usize, byte: u8) -> Option<usize> {
        let children = &self.nodes[node].children;
        children.binary_search_by_key(&byte, |(byte, _)| *byte).ok().map(|at| children[at].1)
    }

    pub(super) fn children(&self, node: usize) -> &[(u8, usize)] {
        &self.nodes[node].children
    }

    pub(super) fn end(&self, node: usize) -> Option<usize> {
        self.nodes[node].end
    }

    pub(super) fn depth(&self, node: usize) -> usize {
        self.nodes[node].depth
    }

    /// The longest string that `text` starts with: its index and length.
    pub(super) fn longest_prefix(&self, text: &[u8]) -> Option<(usize, usize)> {
        let (mut node, mut found) = (ROOT, None);
        for (at, byte) in text.iter().enumerate() {
            match self.child(node, *byte) {
                Some(child) => node = child,
                None => break,
            }
            if let Some(index) = self.end(node) {
                found = Some((index, at + 1));
            }
        }
        found
    }

    /// Whether `text` ends inside one of the strings: some non-empty end of it is the start of a longer string.
    pub(super) fn ends_inside(&self, text: &[u8]) -> bool {
        let longest = self.nodes.iter().map(|node| node.depth).max().unwrap_or(0);
        let from = text.len().saturating_sub(longest);
        (from..text.len()).any(|start| {
            let mut node = ROOT;
            for byte in &text[start..] {
                match self.child(node, *byte) {
                    Some(child) => node = child,
                    None => return false,
                }
            }
            !self.children(node).is_empty()
        })
    }
}
