//! Identity of pages in a simulation.
//!
//! Where nobody means harm, a multiplication a pair of tokens does for what BLAKE3 does in a cluster at many times the
//! price. Workers compare the tokens of what they find, so that two pages with one hash would cost a hit and no more.

use policies::kv::{Fingerprint, PageHash};
use policies::request::Token;
use policies::rng::mix64;

/// Hash of the page that holds `tokens` after the page `parent`, in place of [`PageHash::chained`].
///
/// What a page holds goes into four chains, none of which waits for another or for the parent; only what comes out of them
/// is chained to that.
#[must_use]
pub fn page_hash(fingerprint: &Fingerprint, parent: Option<PageHash>, tokens: &[Token]) -> PageHash {
    // Odd constants of SplitMix64 and of Knuth's MMIX generator.
    const ONE: u64 = 0xbf58_476d_1ce4_e5b9;
    const OTHER: u64 = 0x5851_f42d_4c95_7f2d;
    let mut lanes = [ONE, OTHER, !ONE, !OTHER];
    let add = |lane: &mut u64, word: u64| *lane = (*lane ^ word).wrapping_mul(ONE).rotate_left(29);
    let (blocks, rest) = tokens.as_chunks();
    for [a, b, c, d, e, f, g, h] in blocks {
        for (lane, (one, other)) in lanes.iter_mut().zip([(a, b), (c, d), (e, f), (g, h)]) {
            add(lane, (u64::from(*one) << 32) | u64::from(*other));
        }
    }
    rest.iter().zip((0..4).cycle()).for_each(|(&token, lane)| add(&mut lanes[lane], token.into()));
    let (a, b) = halves(fingerprint.0.first_chunk().unwrap_or(&[0; 16]));
    let (c, d) = halves(&parent.map_or([0; 16], |parent| parent.0));
    let (mut low, mut high) = (mix64(a ^ c), mix64(b ^ d.rotate_left(32)));
    for word in lanes.into_iter().chain([tokens.len() as u64]) {
        low = (low ^ word).wrapping_mul(ONE).rotate_left(29);
        high = (high ^ word).wrapping_mul(OTHER).rotate_left(31);
    }
    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&mix64(low ^ high.rotate_left(17)).to_le_bytes());
    hash[8..].copy_from_slice(&mix64(high).to_le_bytes());
    PageHash(hash)
}

/// Hashes of the full pages of `tokens`, in order; a partly filled last page has none.
#[must_use]
pub fn page_hashes(fingerprint: &Fingerprint, page_tokens: u32, tokens: &[Token]) -> Vec<PageHash> {
    let mut parent = None;
    let pages = tokens.chunks_exact(page_tokens.max(1) as usize);
    let chained = |page| {
        parent = Some(page_hash(fingerprint, parent, page));
        parent
    };
    pages.filter_map(chained).collect()
}

fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let all = u128::from_le_bytes(*bytes);
    (all as u64, (all >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn different_pages_have_different_hashes() {
        let prints = [Fingerprint::of(&[("a", b"1")]), Fingerprint::of(&[("a", b"2")])];
        let mut pages: Vec<Vec<Token>> = (0..2000_u32).map(|n| vec![n / 40, n % 40, 7, n / 1000]).collect();
        pages.extend([vec![1], vec![1, 0], vec![0, 1], vec![1, 0, 0], vec![0, 0, 1]]);
        let mut seen = BTreeSet::new();
        for print in prints {
            let first = page_hash(&print, None, &[9, 9]);
            for parent in [None, Some(first)] {
                seen.extend(pages.iter().map(|page| page_hash(&print, parent, page)));
            }
        }
        assert_eq!(seen.len(), 4 * pages.len());
        // Half of a hash does: a table uses no more of it.
        let halves: BTreeSet<[u8; 8]> =
            seen.iter().filter_map(|hash| hash.0.first_chunk().copied()).collect();
        assert_eq!(halves.len(), seen.len());
    }

    #[test]
    fn a_page_knows_what_is_before_it() {
        let print = Fingerprint::of(&[]);
        let (one, other) = ([1, 2, 3, 4, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7]);
        let (one, other) = (page_hashes(&print, 2, &one), page_hashes(&print, 2, &other));
        assert_eq!((one.len(), other.len()), (3, 3));
        assert!(one.iter().zip(&other).all(|(a, b)| a != b));
        assert_eq!(page_hash(&print, Some(one[1]), &[5, 6]), one[2]);
    }
}
