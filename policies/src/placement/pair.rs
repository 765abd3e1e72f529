//! Which two workers can share a request: one computes the prompt, the other takes its KV pages and generates.

use super::WorkerInfo;
use crate::kv::{Fingerprint, PageLayout};

/// Where a worker exchanges KV pages with others, and what its pages are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPeer {
    /// `HOST:PORT` of its door for pages.
    pub address: String,
    /// Identity of its pages.
    pub fingerprint: Fingerprint,
    /// Their shape.
    pub layout: PageLayout,
}

impl WorkerInfo {
    /// Why `self` cannot compute prompts for `decode`, with the first field in which they differ; none: it can.
    #[must_use]
    pub fn mismatch(&self, decode: &Self) -> Option<String> {
        let (Some(ours), Some(theirs)) = (&self.kv, &decode.kv) else {
            let without = if self.kv.is_none() { &self.id } else { &decode.id };
            return Some(format!("{without} exchanges no KV pages"));
        };
        let differs = |field: &str, a: u32, b: u32| {
            (a != b).then(|| format!("{field} is {a} at {} and {b} at {}", self.id, decode.id))
        };
        let (a, b) = (&ours.layout, &theirs.layout);
        let fields = [
            ("page-tokens", a.page_tokens, b.page_tokens),
            ("layers", a.layers, b.layers),
            ("kv-heads", a.kv_heads, b.kv_heads),
            ("head-dim", a.head_dim, b.head_dim),
            ("bytes of a KV element", a.element_bytes, b.element_bytes),
        ];
        if a.page_tokens == 0 {
            return Some(format!("page-tokens is 0 at {}", self.id));
        }
        fields.into_iter().find_map(|(field, a, b)| differs(field, a, b)).or_else(|| {
            (ours.fingerprint != theirs.fingerprint).then(|| {
                format!(
                    "the fingerprint (weights, quantisation, dtype, RoPE settings) of {} is not that of {}",
                    self.id, decode.id
                )
            })
        })
    }

    /// Whether `self` can compute prompts for `decode`.
    #[must_use]
    pub fn pairs_with(&self, decode: &Self) -> bool {
        match (&self.kv, &decode.kv) {
            (Some(a), Some(b)) => {
                a.layout.page_tokens > 0 && a.layout == b.layout && a.fingerprint == b.fingerprint
            }
            _ => false,
        }
    }
}
