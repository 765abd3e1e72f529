//! KV pages as the cores see them: layout, identity by content, and the table of who holds what.

use blake3::Hasher;
use config::ids::TenantId;

use crate::request::Token;

pub mod directory;
pub mod events;
pub mod handoff;
pub mod table;

pub(crate) mod by_page;

/// Shape of one KV page of one model, the same on every node that may exchange pages.
///
/// A page holds `page_tokens` tokens of keys and values for all layers, contiguous, as
/// `[layer][k, v][token][kv head][dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Tokens a page.
    pub page_tokens: u32,
    /// Transformer layers.
    pub layers: u32,
    /// KV heads a layer.
    pub kv_heads: u32,
    /// Elements a head.
    pub head_dim: u32,
    /// Bytes an element: 2 for f16, 4 for f32.
    pub element_bytes: u32,
}

impl PageLayout {
    /// Bytes of one page.
    #[must_use]
    pub const fn page_bytes(&self) -> usize {
        2 * self.layers as usize
            * self.page_tokens as usize
            * self.kv_heads as usize
            * self.head_dim as usize
            * self.element_bytes as usize
    }

    /// Pages that hold `tokens` tokens.
    #[must_use]
    pub const fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens)
    }
}

/// What all pages of a cluster that may be shared have in common: weights, quantisation, dtype, page size, RoPE
/// settings, adapter and tenant salt, each as a length-delimited field so that no two fields can run into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of named fields, in the order given. Deterministic over processes, machines and endianness.
    #[must_use]
    pub fn of(fields: &[(&str, &[u8])]) -> Self {
        let mut hasher = Hasher::new_derive_key("actor-node kv fingerprint v1");
        for (name, value) in fields {
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
            hasher.update(&(value.len() as u64).to_le_bytes()).update(value);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The fingerprint of a tenant's own pages, which no other tenant finds; of those that belong to nobody, itself. The
    /// tenant is a field of its own, so that no name of one can pass for an adapter, a model or another tenant.
    #[must_use]
    pub fn of_tenant(&self, tenant: Option<&TenantId>) -> Self {
        tenant.map_or(*self, |tenant| {
            Self::of(&[("fingerprint", &self.0), ("tenant", tenant.as_str().as_bytes())])
        })
    }
}

/// Identity of a full page: its tokens and everything before them, under a [`Fingerprint`]. 128 bits of BLAKE3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageHash(pub [u8; 16]);

impl PageHash {
    /// Hash of the page that holds `tokens` after the page `parent` (none: the first page).
    #[must_use]
    pub fn chained(fingerprint: &Fingerprint, parent: Option<Self>, tokens: &[Token]) -> Self {
        let mut hasher = Hasher::new_keyed(&fingerprint.0);
        hasher.update(&parent.map_or([0; 16], |p| p.0));
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        let mut out = [0; 16];
        out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(out)
    }
}

/// Hashes of the full pages of `tokens`, in order; a partly filled last page has none.
#[must_use]
pub fn page_hashes(fingerprint: &Fingerprint, page_tokens: u32, tokens: &[Token]) -> Vec<PageHash> {
    page_hashes_after(fingerprint, page_tokens, None, tokens)
}

/// As [`page_hashes`], of tokens that come after the page `parent`.
#[must_use]
pub fn page_hashes_after(
    fingerprint: &Fingerprint,
    page_tokens: u32,
    mut parent: Option<PageHash>,
    tokens: &[Token],
) -> Vec<PageHash> {
    tokens
        .chunks_exact(page_tokens.max(1) as usize)
        .map(|page| {
            let hash = PageHash::chained(fingerprint, parent, page);
            parent = Some(hash);
            hash
        })
        .collect()
}

#[cfg(test)]
mod tests;
