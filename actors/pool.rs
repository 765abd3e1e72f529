//! Pool role: stores KV pages for workers to share. Its tiers come with the hand-off of pages between nodes; until a
//! worker has a way to send one, a node with this role alone is refused at start ([`crate::node`]).
