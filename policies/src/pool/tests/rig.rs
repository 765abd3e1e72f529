//! A driver with a RAM and a disk that hold names instead of bytes, and that fails where an effect makes no sense.

use super::*;
use crate::invariant::{enforce, panic_on_broken};

pub(super) const FP: Fingerprint = Fingerprint([7; 32]);

/// Names of the pages of a prompt: two prompts share those up to where their texts differ.
pub(super) fn chain(text: &str) -> Vec<PageHash> {
    (1..=text.len())
        .map(|end| {
            let mut hash = [0; 16];
            hash[..end.min(15)].copy_from_slice(&text.as_bytes()[..end.min(15)]);
            hash[15] = end as u8;
            PageHash(hash)
        })
        .collect()
}

pub(super) fn key(hash: PageHash) -> PageKey {
    PageKey { fingerprint: FP, hash }
}

pub(super) fn owner(node: &str) -> WorkerId {
    WorkerId::new(node.into(), 3)
}

/// RAM for `ram` pages of 10 bytes and, where there is a disk, that for `disk` files of 12.
pub(super) fn limits(ram: u64, disk: Option<u64>) -> PoolLimits {
    let disk = disk.map(|pages| DiskLimits {
        capacity: 12 * pages,
        overhead: 2,
        write_window: 20,
        write_above: 10 * ram,
        min_uses: 1,
        back_off: Span::from_secs(5),
    });
    PoolLimits { ram: 10 * ram, incoming: 20, lease: Span::from_secs(30), disk }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Write(OpId, PageKey, Option<PageHash>),
    Read(OpId, PageKey),
    Delete(PageKey),
}

pub(super) struct Rig {
    pub(super) store: Store,
    pub(super) now: Time,
    ram: BTreeSet<PageKey>,
    /// Files, each with the page before it.
    pub(super) files: BTreeMap<PageKey, Option<PageHash>>,
    pub(super) orders: VecDeque<Order>,
    /// What came and is neither stored nor dropped.
    held: BTreeSet<(PutId, usize)>,
    pub(super) given: BTreeMap<ReaderId, Vec<PageKey>>,
    pub(super) cut: BTreeMap<ReaderId, usize>,
    pub(super) ended: BTreeMap<PutId, (usize, PutEnd)>,
    pub(super) reports: Vec<(DiskJob, DiskError)>,
    /// What a controller knows.
    pub(super) told: BTreeSet<PageKey>,
}

impl Rig {
    pub(super) fn new(limits: PoolLimits) -> Self {
        panic_on_broken();
        let mut store = Store::new(limits);
        assert_eq!(store.announce(), Announcement { epoch: 1, contents: vec![] });
        Self {
            store,
            now: Time(1),
            ram: BTreeSet::new(),
            files: BTreeMap::new(),
            orders: VecDeque::new(),
            held: BTreeSet::new(),
            given: BTreeMap::new(),
            cut: BTreeMap::new(),
            ended: BTreeMap::new(),
            reports: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// The process was killed, or has ended: what is on disk is found by another one.
    pub(super) fn restarted(self, limits: PoolLimits) -> Self {
        let found: Vec<Found> = self
            .files
            .iter()
            .enumerate()
            .map(|(i, (key, parent))| Found { key: *key, parent: *parent, bytes: 10, used: i as u64 })
            .collect();
        let mut rig = Self { files: self.files, now: self.now, ..Self::new(limits) };
        let mut fx = Vec::new();
        rig.store.restart(rig.now, found, &mut fx);
        for effect in fx {
            rig.carry_out(effect, None);
        }
        rig.listen_to_all();
        rig.does(|_, _, _| ());
        rig
    }

    pub(super) fn does<T>(&mut self, act: impl FnOnce(&mut Store, Time, &mut Vec<PoolEffect>) -> T) -> T {
        self.just_read(None, act)
    }

    fn just_read<T>(
        &mut self,
        read: Option<PageKey>,
        act: impl FnOnce(&mut Store, Time, &mut Vec<PoolEffect>) -> T,
    ) -> T {
        self.now = self.now + Span::from_millis(1);
        let mut fx = Vec::new();
        let result = act(&mut self.store, self.now, &mut fx);
        for effect in fx {
            self.carry_out(effect, read);
        }
        enforce(self.store.check());
        self.listen();
        let stats = self.store.stats();
        assert_eq!(stats.ram.pages, self.ram.len() as u64, "{stats:?}");
        assert_eq!(stats.pages, self.told.len() as u64, "{stats:?}");
        result
    }

    /// A controller joins.
    pub(super) fn listen_to_all(&mut self) {
        let all = self.store.announce();
        self.told.clear();
        self.hear(all.contents);
    }

    fn listen(&mut self) {
        let mut events = Vec::new();
        self.store.take_events(&mut events);
        self.hear(events);
    }

    fn hear(&mut self, events: Vec<(Fingerprint, KvEvent)>) {
        for (fingerprint, event) in events {
            match event {
                KvEvent::Stored { parent, pages, .. } => {
                    let mut before = parent;
                    for hash in pages {
                        let known = |hash| self.told.contains(&PageKey { fingerprint, hash });
                        assert!(before.is_none_or(known), "told before the page before it");
                        assert!(self.told.insert(PageKey { fingerprint, hash }), "told twice");
                        before = Some(hash);
                    }
                }
                KvEvent::Removed { pages } => {
                    for hash in pages {
                        assert!(
                            self.told.remove(&PageKey { fingerprint, hash }),
                            "removed what was not told"
                        );
                    }
                }
                KvEvent::Cleared => panic!("a pool is never cleared"),
            }
        }
    }

    fn carry_out(&mut self, effect: PoolEffect, read: Option<PageKey>) {
        match effect {
            PoolEffect::Store { put, index, key } => {
                assert!(self.held.remove(&(put, index)) && self.ram.insert(key), "{effect:?}");
            }
            PoolEffect::Discard { put, index } => {
                self.held.remove(&(put, index));
            }
            PoolEffect::EndPut { put, pages, why } => {
                self.held.retain(|(held, _)| *held != put);
                assert_eq!(self.ended.insert(put, (pages, why)), None, "{effect:?}");
            }
            PoolEffect::DropRam { key } => assert!(self.ram.remove(&key), "{effect:?}"),
            PoolEffect::WriteDisk { op, key, parent, bytes } => {
                assert!(self.ram.contains(&key) && bytes == 10, "{effect:?}");
                self.orders.push_back(Order::Write(op, key, parent));
            }
            PoolEffect::ReadDisk { op, key, .. } => self.orders.push_back(Order::Read(op, key)),
            PoolEffect::DeleteDisk { key, bytes } => {
                assert_eq!(bytes, 10);
                self.orders.push_back(Order::Delete(key));
            }
            PoolEffect::Keep { key } => assert!(read == Some(key) && self.ram.insert(key), "{effect:?}"),
            PoolEffect::Give { reader, index, key } => {
                assert!(read == Some(key) || self.ram.contains(&key), "{effect:?} is not at hand");
                let given = self.given.entry(reader).or_default();
                assert_eq!(given.len(), index, "{effect:?}");
                given.push(key);
            }
            PoolEffect::CutRead { reader, pages } => {
                self.cut.insert(reader, pages);
            }
            PoolEffect::EndRead { reader } => {
                self.cut.insert(reader, 0);
            }
            PoolEffect::Report { job, error } => self.reports.push((job, error)),
        }
    }

    /// Carries out the order that has waited longest, or has it fail. What fails to be read or deleted is still there, unless that
    /// is what was wrong.
    pub(super) fn disk(&mut self, error: Option<DiskError>) -> Option<Order> {
        let order = self.orders.pop_front()?;
        let result = error.map_or(Ok(()), Err);
        if let (Some(DiskError::Missing), Order::Read(_, key) | Order::Delete(key)) = (error, order) {
            self.files.remove(&key);
        }
        match order {
            Order::Write(op, key, parent) => {
                if error.is_none() {
                    self.files.insert(key, parent);
                    let stats = self.store.stats();
                    let most = stats.disk.capacity + stats.stuck_bytes + 12;
                    assert!(12 * self.files.len() as u64 <= most, "{stats:?} {:?}", self.files);
                }
                self.does(|store, now, fx| store.wrote(now, op, result, fx));
            }
            Order::Read(op, key) => {
                let result = if self.files.contains_key(&key) { result } else { Err(DiskError::Missing) };
                self.just_read(result.is_ok().then_some(key), |store, now, fx| {
                    store.read(now, op, result, fx);
                });
            }
            Order::Delete(key) => {
                let there = self.files.contains_key(&key);
                if error.is_none() {
                    self.files.remove(&key);
                }
                let result = if there { result } else { Err(DiskError::Missing) };
                self.does(|store, now, fx| store.deleted(now, key, 10, result, fx));
            }
        }
        Some(order)
    }

    /// Lets the disk do all that it was asked to.
    pub(super) fn settle(&mut self) {
        while self.disk(None).is_some() {}
    }

    pub(super) fn begin(&mut self, node: &str, text: &str) -> Result<Begun, PutRefusal> {
        let run = Run { fingerprint: FP, parent: None, pages: chain(text), page_bytes: 10 };
        self.does(|store, now, _| store.begin(now, &owner(node), run))
    }

    pub(super) fn arrive(&mut self, put: PutId, index: usize) {
        self.held.insert((put, index));
        self.does(|store, now, fx| store.arrived(now, put, index, 10, fx));
    }

    /// Puts all pages of a prompt; how it ended.
    pub(super) fn put(&mut self, text: &str) -> (usize, PutEnd) {
        let begun = self.begin("w", text).unwrap();
        for index in begun.first..text.len() {
            if !self.ended.contains_key(&begun.put) {
                self.arrive(begun.put, index);
            }
            while self.held.iter().any(|(put, _)| *put == begun.put) && self.disk(None).is_some() {}
        }
        self.ended[&begun.put]
    }

    pub(super) fn look_up(&mut self, text: &str) -> Hit {
        self.does(|store, now, _| store.look_up(now, &owner("r"), &FP, &chain(text), 0))
    }

    pub(super) fn grant(&mut self, reader: ReaderId, pages: usize) {
        self.does(|store, now, fx| store.grant(now, reader, pages, fx));
    }

    pub(super) fn release(&mut self, reader: ReaderId) {
        self.does(|store, now, fx| store.release(now, reader, fx));
    }

    /// Reads all that is there of a prompt; how many pages that is.
    pub(super) fn get(&mut self, text: &str) -> usize {
        let hit = self.look_up(text);
        let Some(reader) = hit.reader else { return 0 };
        self.grant(reader, hit.pages);
        self.settle();
        self.release(reader);
        let given = self.given.remove(&reader).unwrap_or_default();
        assert_eq!(given, chain(text)[..given.len()].iter().map(|h| key(*h)).collect::<Vec<_>>());
        given.len()
    }

    /// How many pages of a prompt can be found.
    pub(super) fn has(&self, text: &str) -> usize {
        self.store.holds(&FP, &chain(text))
    }

    pub(super) fn has_file(&self, text: &str) -> bool {
        chain(text).last().is_some_and(|hash| self.files.contains_key(&key(*hash)))
    }
}
