use super::*;
use crate::kv::{Fingerprint, page_hashes};

const KEY: Fingerprint = Fingerprint([7; 32]);

/// Takes, fills and publishes the pages of `tokens` (two a page).
fn fill(table: &mut PageTable, tokens: &[Token]) -> Vec<PageId> {
    let hashes = page_hashes(&KEY, 2, tokens);
    let mut pages = Vec::new();
    for (page, hash) in tokens.chunks_exact(2).zip(hashes) {
        let id = table.take().unwrap();
        assert_eq!(table.publish(id, hash, pages.last().copied(), page), Published::Now);
        pages.push(id);
    }
    pages
}

fn find(table: &PageTable, tokens: &[Token]) -> Vec<PageId> {
    let mut hits: Vec<PageId> = Vec::new();
    for (page, hash) in tokens.chunks_exact(2).zip(page_hashes(&KEY, 2, tokens)) {
        let Some(hit) = table.find(&hash, hits.last().copied(), page) else { break };
        hits.push(hit);
    }
    hits
}

fn release(table: &mut PageTable, pages: &[PageId]) {
    pages.iter().rev().for_each(|p| table.release(*p));
}

fn check(table: &PageTable, held: &[&[PageId]]) {
    let mut holders = vec![0; table.total() as usize];
    held.iter().copied().flatten().for_each(|p| holders[p.index()] += 1);
    table.check(&holders).unwrap();
}

#[test]
fn released_pages_stay_findable_until_they_are_needed_leaves_first() {
    let mut table = PageTable::new(4, 2);
    let chain = fill(&mut table, &[1, 2, 3, 4, 5, 6]);
    check(&table, &[&chain]);
    release(&mut table, &chain);
    assert_eq!((table.held(), table.idle(), table.available()), (0, 3, 4));
    assert_eq!(find(&table, &[1, 2, 3, 4, 5, 6, 7, 8]), chain);
    table.take().unwrap();
    let taken: Vec<PageId> = (0..3).map(|_| table.take().unwrap()).collect();
    assert_eq!(taken, [chain[2], chain[1], chain[0]]);
    assert_eq!(table.take(), None);
    assert!(find(&table, &[1, 2]).is_empty());
}

#[test]
fn the_least_recently_released_content_goes_first() {
    let mut table = PageTable::new(4, 2);
    let (a, b) = (fill(&mut table, &[1, 1, 1, 1]), fill(&mut table, &[2, 2, 2, 2]));
    release(&mut table, &a);
    release(&mut table, &b);
    let again = table.claim(&find(&table, &[1, 1, 1, 1]), 0).unwrap();
    assert_eq!(again, a);
    release(&mut table, &a);
    table.take().unwrap();
    table.take().unwrap();
    assert!(find(&table, &[2, 2]).is_empty());
    assert_eq!(find(&table, &[1, 1, 1, 1]), a);
}

#[test]
fn b72_a_claim_is_all_or_nothing_and_never_evicts_its_own_hits() {
    let mut table = PageTable::new(20, 2);
    let tokens: Vec<Token> = (0..36).collect();
    let chain = fill(&mut table, &tokens);
    release(&mut table, &chain);
    let hits = find(&table, &tokens);
    assert_eq!((hits.len(), table.room_beside(&hits), table.available()), (18, 2, 20));
    let before = table.clone();
    assert_eq!(table.claim(&hits, 3), None);
    assert_eq!(format!("{table:?}"), format!("{before:?}"), "nothing changed");
    let claimed = table.claim(&hits, 2).unwrap();
    assert_eq!(claimed[..18], chain);
    check(&table, &[&claimed]);
    assert_eq!(table.take(), None);
}

#[test]
fn b74_equal_hashes_of_other_content_are_misses() {
    let mut table = PageTable::new(8, 2);
    let hash = PageHash([0; 16]);
    let (a, b, c) = (table.take().unwrap(), table.take().unwrap(), table.take().unwrap());
    assert_eq!(table.publish(a, hash, None, &[1, 2]), Published::Now);
    assert_eq!(table.publish(b, hash, None, &[1, 3]), Published::Private);
    assert_eq!(table.publish(c, hash, Some(a), &[1, 2]), Published::Private, "same tokens, other parent");
    assert_eq!(table.find(&hash, None, &[1, 3]), None);
    assert_eq!(table.find(&hash, Some(a), &[1, 2]), None);
    assert_eq!(table.find(&hash, None, &[1, 2]), Some(a));
    let child = table.take().unwrap();
    assert_eq!(
        table.publish(child, PageHash([1; 16]), Some(b), &[5, 5]),
        Published::Private,
        "its parent cannot be found"
    );
    check(&table, &[&[a, b, c, child]]);
}

#[test]
fn a_second_page_with_the_same_content_is_a_duplicate() {
    let mut table = PageTable::new(4, 2);
    let chain = fill(&mut table, &[1, 2]);
    let other = table.take().unwrap();
    let hash = page_hashes(&KEY, 2, &[1, 2])[0];
    assert_eq!(table.publish(other, hash, None, &[1, 2]), Published::Duplicate(chain[0]));
    assert!(!table.is_cached(other));
    table.release(other);
    release(&mut table, &chain);
    assert_eq!((table.available(), table.idle()), (4, 1));
}

#[test]
fn the_check_sees_what_is_broken() {
    let mut table = PageTable::new(3, 2);
    let chain = fill(&mut table, &[1, 2, 3, 4]);
    assert_eq!(table.check(&[0, 0, 0]).unwrap_err().name, "page_refcount");
    let mut orphan = table.clone();
    orphan.pages[chain[0].index()].cached = None;
    let holders: Vec<u32> = orphan.pages.iter().map(|p| p.holders).collect();
    assert_eq!(orphan.check(&holders).unwrap_err().name, "page_parent");
    let mut lost = table.clone();
    lost.free.clear();
    assert_eq!(lost.check(&holders).unwrap_err().name, "page_lost");
    let mut twice = table.clone();
    twice.free.push(chain[1]);
    assert_eq!(twice.check(&holders).unwrap_err().name, "page_free");
    // Released first to last, the parent would go before its child.
    table.release(chain[0]);
    let holders: Vec<u32> = table.pages.iter().map(|p| p.holders).collect();
    assert_eq!(table.check(&holders).unwrap_err().name, "page_parent");
}
