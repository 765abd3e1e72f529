//! How many KV pages there are.

use policies::kv::PageLayout;

use super::options::KvBudget;
use crate::EngineError;

/// The share of free memory that `auto` takes: a quarter, since pages only cost memory once they are used, and other
/// processes (and the page cache under the model files) need some too.
const SHARE: u64 = 4;

/// The most that `auto` takes to hold a single longest sequence.
const ONE_SEQUENCE_SHARE: (u64, u64) = (3, 4);

/// More than so many longest sequences are not worth memory to `auto`.
const ENOUGH_SEQUENCES: u64 = 64;

/// KV pages, and the context that fits into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// How many.
    pub(crate) count: u32,
    /// Longest sequence in tokens.
    pub(crate) context: u32,
}

/// Divides the memory into pages. `context` is the longest sequence wanted, `free` the memory that is free now.
pub(crate) fn pages(
    budget: KvBudget,
    layout: &PageLayout,
    context: u32,
    free: u64,
) -> Result<Pages, EngineError> {
    let page = layout.page_bytes() as u64;
    let sequence = u64::from(layout.pages_for(context)) * page;
    let count = match budget {
        KvBudget::Pages(pages) => u64::from(pages),
        KvBudget::Bytes(bytes) if bytes < page => {
            return Err(EngineError::Load(format!(
                "engine.kv-memory = {bytes} bytes does not hold one page of {page} bytes ({} tokens); give more, or lower \
                 engine.page-tokens",
                layout.page_tokens
            )));
        }
        KvBudget::Bytes(bytes) => bytes / page,
        KvBudget::Auto => {
            let one = sequence.min(free / ONE_SEQUENCE_SHARE.1 * ONE_SEQUENCE_SHARE.0);
            let bytes = (free / SHARE).min(sequence.saturating_mul(ENOUGH_SEQUENCES)).max(one);
            if bytes < page {
                return Err(EngineError::Load(format!(
                    "{free} bytes of memory are free, too few for KV pages of {page} bytes; use a smaller model or set \
                     engine.kv-memory"
                )));
            }
            bytes / page
        }
    };
    if count == 0 {
        return Err(EngineError::Load(
            "engine.kv-pages = 0 leaves no room for a sequence; use at least 1".to_owned(),
        ));
    }
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let held = u64::from(count) * u64::from(layout.page_tokens);
    Ok(Pages { count, context: u64::from(context).min(held) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 16 · 2 · 2 · 2 · 8 · 2 = 2048 bytes.
    const LAYOUT: PageLayout =
        PageLayout { page_tokens: 16, layers: 2, kv_heads: 2, head_dim: 8, element_bytes: 2 };

    fn of(budget: KvBudget, context: u32, free: u64) -> Pages {
        pages(budget, &LAYOUT, context, free).unwrap()
    }

    #[test]
    fn a_budget_in_bytes_or_pages_is_kept() {
        assert_eq!(of(KvBudget::Pages(7), 1000, 0), Pages { count: 7, context: 112 });
        assert_eq!(of(KvBudget::Bytes(10_000), 50, 0), Pages { count: 4, context: 50 });
    }

    #[test]
    fn auto_holds_one_longest_sequence_and_takes_a_quarter() {
        assert_eq!(of(KvBudget::Auto, 160, 2048 * 400), Pages { count: 100, context: 160 });
        assert_eq!(
            of(KvBudget::Auto, 1600, 2048 * 200),
            Pages { count: 100, context: 1600 },
            "more than a quarter"
        );
        assert_eq!(
            of(KvBudget::Auto, 3200, 2048 * 200),
            Pages { count: 150, context: 2400 },
            "a shorter context"
        );
        assert_eq!(of(KvBudget::Auto, 16, 1 << 40).count, 64, "enough is enough");
    }

    #[test]
    fn too_little_is_refused_with_the_key() {
        for (budget, key) in
            [(KvBudget::Bytes(2047), "engine.kv-memory"), (KvBudget::Pages(0), "engine.kv-pages")]
        {
            let message = pages(budget, &LAYOUT, 16, 0).unwrap_err().to_string();
            assert!(message.contains(key), "{message}");
        }
        assert!(pages(KvBudget::Auto, &LAYOUT, 16, 100).is_err());
    }
}
