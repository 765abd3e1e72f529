//! Whoever replays a scheduler's events knows at any moment which pages can be found there.

use std::collections::{BTreeMap, BTreeSet};

use super::driver::{Driver, config, prompt, request};
use crate::batch::{Batch, BatchConfig};
use crate::kv::PageHash;
use crate::kv::events::{KvEvent, Recording};
use crate::request::Token;

/// What a listener knows: the findable pages, each with its parent.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pages: BTreeMap<PageHash, Option<PageHash>>,
}

impl Replay {
    /// Takes the news, each of which has to be one, and compares with the scheduler.
    pub(super) fn follow(&mut self, batch: &mut Batch, real_hashes: bool) {
        let mut events = Vec::new();
        batch.take_kv_events(&mut events);
        let config = batch.config().clone();
        if config.kv_events == Recording::Off {
            assert_eq!(events, []);
            return;
        }
        let news = !events.is_empty();
        for event in events {
            match event {
                KvEvent::Stored { mut parent, pages, tokens } => {
                    assert_eq!(tokens.len(), pages.len() * config.page_tokens as usize);
                    for (page, tokens) in pages.iter().zip(tokens.chunks(config.page_tokens as usize)) {
                        assert!(
                            parent.is_none_or(|p| self.pages.contains_key(&p)),
                            "{page:?} before its parent"
                        );
                        let right = is_content(&config, page, parent, tokens);
                        assert!(!real_hashes || right, "{page:?} has other content");
                        assert_eq!(self.pages.insert(*page, parent), None, "{page:?} is news");
                        parent = Some(*page);
                    }
                }
                KvEvent::Removed { pages } => {
                    for page in pages {
                        assert!(self.pages.remove(&page).is_some(), "{page:?} was there");
                    }
                }
                KvEvent::Cleared => self.pages.clear(),
            }
        }
        let known: Vec<PageHash> = self.pages.keys().copied().collect();
        assert_eq!(known, batch.kv_snapshot());
        if news {
            self.check_contents(batch, real_hashes);
        }
        let orphan =
            self.pages.iter().find(|(_, parent)| parent.is_some_and(|p| !self.pages.contains_key(&p)));
        assert_eq!(orphan, None, "a page goes after those that follow it");
    }

    /// Whoever is told everything anew knows the same.
    fn check_contents(&self, batch: &Batch, real_hashes: bool) {
        let config = batch.config();
        let mut anew = BTreeMap::new();
        let contents = batch.kv_contents();
        for event in &contents {
            let KvEvent::Stored { parent, pages, tokens } = event else { panic!("{event:?}") };
            assert_eq!(tokens.len(), pages.len() * config.page_tokens as usize);
            let mut parent = *parent;
            for (page, tokens) in pages.iter().zip(tokens.chunks(config.page_tokens as usize)) {
                assert!(parent.is_none_or(|p| anew.contains_key(&p)), "{page:?} before its parent");
                let right = is_content(config, page, parent, tokens);
                assert!(!real_hashes || right, "{page:?} has other content");
                assert_eq!(anew.insert(*page, parent), None, "{page:?} is told once");
                parent = Some(*page);
            }
        }
        assert_eq!(anew, self.pages);
        let parents: BTreeSet<PageHash> = self.pages.values().flatten().copied().collect();
        let leaves = self.pages.keys().filter(|page| !parents.contains(page)).count();
        assert_eq!(contents.len(), leaves, "one event a leaf");
    }
}

/// Whether a page has the hash of its content, of whichever tenant.
fn is_content(config: &BatchConfig, page: &PageHash, parent: Option<PageHash>, tokens: &[Token]) -> bool {
    [None, Some("a".into()), Some("b".into())].iter().any(|tenant| {
        let fingerprint = config.fingerprint.of_tenant(tenant.as_ref());
        *page == PageHash::chained(&fingerprint, parent, tokens)
    })
}

#[test]
fn pages_of_one_prompt_are_one_event_and_eviction_is_told() {
    let config = BatchConfig { kv_events: Recording::Hashes, watermark: 0.0, ..config(4, 6) };
    let mut batch = Driver::new(&config);
    batch.silent = true;
    let (first, second) = (request(&config, 1, &prompt(1, 17), 1), request(&config, 2, &prompt(2, 17), 1));
    batch.add(&first);
    batch.run();
    let mut events = Vec::new();
    batch.batch.take_kv_events(&mut events);
    let stored = |pages: &[PageHash]| KvEvent::Stored { parent: None, pages: pages.to_vec(), tokens: vec![] };
    assert_eq!(events, [stored(&first.hashes)]);
    batch.add(&second);
    batch.run();
    events.clear();
    batch.batch.take_kv_events(&mut events);
    let gone = first.hashes[1..].iter().rev().copied().collect();
    assert_eq!(events, [KvEvent::Removed { pages: gone }, stored(&second.hashes)]);
    assert_eq!(batch.batch.kv_snapshot().len(), 5);
}

#[test]
fn a_listener_may_come_late_and_starts_with_a_snapshot() {
    let config = BatchConfig { kv_events: Recording::Off, ..config(4, 64) };
    let mut driver = Driver::new(&config);
    driver.silent = true;
    driver.add(&request(&config, 1, &prompt(1, 17), 4));
    driver.run();
    let mut events = Vec::new();
    driver.batch.take_kv_events(&mut events);
    assert_eq!(events, [], "nobody listens");
    driver.batch.record_kv_events(Recording::Hashes);
    let before = driver.batch.kv_snapshot();
    assert_eq!(before.len(), 5);
    let next = request(&config, 2, &[prompt(1, 17), prompt(9, 8)].concat(), 1);
    driver.add(&next);
    driver.run();
    driver.batch.take_kv_events(&mut events);
    let [KvEvent::Stored { parent, pages, tokens }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*parent, &pages[..], tokens.len()), (Some(next.hashes[3]), &next.hashes[4..], 0));
    assert_eq!(driver.batch.kv_snapshot().len(), 5 + pages.len());
}
