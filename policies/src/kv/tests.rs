use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Nodes of different builds, machines and times find each other's pages only while these values stay what they are.
/// They were computed with the BLAKE3 library for Python.
#[test]
fn b75_hashes_are_the_same_everywhere_and_for_ever() {
    let key = Fingerprint::of(&[("weights", &[1, 2, 3]), ("dtype", b"f16"), ("page", &16_u32.to_le_bytes())]);
    assert_eq!(hex(&key.0), "a7a20aa4b38301fa44b6401ba561f269f32c1578d7a8905e19c2141f3ecf2cac");
    let tokens: Vec<Token> = (0..35).map(|i| i * 1_000_003).collect();
    let hashes: Vec<String> = page_hashes(&key, 16, &tokens).iter().map(|h| hex(&h.0)).collect();
    assert_eq!(hashes, ["cdc3a0ffb807b89f6e2e35d21c907821", "d5bc0fb4a49106dcc17793f5c1eea81b"]);
}

#[test]
fn fields_cannot_run_into_each_other() {
    let of = |a: &str, b: &str| Fingerprint::of(&[("tenant", a.as_bytes()), ("adapter", b.as_bytes())]);
    assert_ne!(of("a", "bc"), of("ab", "c"));
    assert_ne!(of("", "a"), of("a", ""));
    assert_ne!(Fingerprint::of(&[("x", b"y")]), Fingerprint::of(&[("xy", b"")]));
    assert_ne!(Fingerprint::of(&[]), Fingerprint::of(&[("", b"")]));
}

#[test]
fn a_layout_counts_bytes_and_pages() {
    let layout = PageLayout { page_tokens: 16, layers: 30, kv_heads: 3, head_dim: 64, element_bytes: 2 };
    assert_eq!(layout.page_bytes(), 2 * 30 * 16 * 3 * 64 * 2);
    assert_eq!(
        (layout.pages_for(0), layout.pages_for(1), layout.pages_for(16), layout.pages_for(17)),
        (0, 1, 1, 2)
    );
}

proptest! {
    /// Hashes agree exactly as far as the tokens do, and computing them page by page gives the same as at once.
    #[test]
    fn a_hash_stands_for_all_tokens_up_to_it(
        a in prop::collection::vec(0_u32..3, 0..40),
        b in prop::collection::vec(0_u32..3, 0..40),
        page in 1_u32..5,
    ) {
        let key = Fingerprint([9; 32]);
        let (ha, hb) = (page_hashes(&key, page, &a), page_hashes(&key, page, &b));
        prop_assert_eq!(ha.len(), a.len() / page as usize);
        for i in 0..ha.len().min(hb.len()) {
            let end = (i + 1) * page as usize;
            prop_assert_eq!(ha[i] == hb[i], a[..end] == b[..end]);
            let parent = i.checked_sub(1).map(|i| ha[i]);
            prop_assert_eq!(ha[i], PageHash::chained(&key, parent, &a[i * page as usize..end]));
        }
        prop_assert!(ha.is_empty() || ha != page_hashes(&Fingerprint([8; 32]), page, &a));
    }
}
