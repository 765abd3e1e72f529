//! Anything at any time, against a set of names: what a controller was told is what is found, every page given is the right
//! one, and files alone are enough to go on from.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Begin(usize, u8),
    Arrive(usize),
    Commit(usize),
    Abort(usize),
    LookUp(usize),
    Grant(usize, usize),
    Release(usize),
    Disk,
    Fails(DiskError),
    Remove(usize),
    Lost(u8),
    Wait(u64),
    Restart,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let error = prop_oneof![
        4 => Just(DiskError::NoSpace),
        1 => Just(DiskError::Missing),
        1 => Just(DiskError::Permission),
        1 => Just(DiskError::Other)
    ];
    prop_oneof![
        8 => (0..TEXTS.len(), 0..3_u8).prop_map(|(t, w)| Step::Begin(t, w)),
        30 => (0..9_usize).prop_map(Step::Arrive),
        2 => (0..9_usize).prop_map(Step::Commit),
        2 => (0..9_usize).prop_map(Step::Abort),
        8 => (0..TEXTS.len()).prop_map(Step::LookUp),
        10 => (0..9_usize, 0..6_usize).prop_map(|(r, n)| Step::Grant(r, n)),
        6 => (0..9_usize).prop_map(Step::Release),
        30 => Just(Step::Disk),
        4 => error.prop_map(Step::Fails),
        1 => (0..99_usize).prop_map(Step::Remove),
        1 => (0..3_u8).prop_map(Step::Lost),
        3 => (0..20_u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        1 => Just(Step::Close),
    ]
}

const TEXTS: [&str; 9] = ["abcdefg", "abcdxyz", "abq", "a", "klmnopqrst", "klmno1234", "zz", "y", "yx"];

fn pick<T: Copy>(from: impl Iterator<Item = T>, n: usize) -> Option<T> {
    let all: Vec<T> = from.collect();
    all.get(n % all.len().max(1)).copied()
}

/// Puts under way, each with the pages that came.
type Puts = BTreeMap<PutId, (usize, usize)>;

fn run(limits: PoolLimits, steps: Vec<Step>) {
    let mut rig = Rig::new(limits);
    let mut puts = Puts::new();
    let mut reading: BTreeMap<ReaderId, usize> = BTreeMap::new();
    let mut failed = false;
    for step in steps {
        match step {
            Step::Begin(text, writer) => {
                if let Ok(begun) = rig.begin(&writer.to_string(), TEXTS[text]) {
                    assert_eq!(begun.first, rig.has(TEXTS[text]));
                    puts.insert(begun.put, (text, begun.first));
                }
            }
            Step::Arrive(n) => {
                if let Some(put) = pick(puts.keys().copied(), n) {
                    let come = puts.get_mut(&put).unwrap();
                    come.1 += 1;
                    let index = come.1 - 1;
                    rig.arrive(put, index);
                }
            }
            Step::Commit(n) => {
                if let Some(put) = pick(puts.keys().copied(), n) {
                    rig.does(|store, now, fx| store.commit(now, put, fx));
                }
            }
            Step::Abort(n) => {
                if let Some(put) = pick(puts.keys().copied(), n) {
                    rig.does(|store, now, fx| store.abort(now, put, fx));
                    assert!(rig.ended.contains_key(&put));
                }
            }
            Step::LookUp(text) => {
                let known = |hash: &&PageHash| rig.told.contains(&key(**hash));
                let expected = chain(TEXTS[text]).iter().take_while(known).count();
                let hit = rig.look_up(TEXTS[text]);
                assert_eq!((hit.pages, hit.reader.is_some()), (expected, expected > 0));
                if let Some(reader) = hit.reader {
                    reading.insert(reader, text);
                }
            }
            Step::Grant(n, pages) => {
                if let Some(reader) = pick(reading.keys().copied(), n) {
                    rig.grant(reader, pages);
                }
            }
            Step::Release(n) => {
                if let Some(reader) = pick(reading.keys().copied(), n) {
                    rig.release(reader);
                    reading.remove(&reader);
                }
            }
            Step::Disk => {
                rig.disk(None);
            }
            Step::Fails(error) => {
                failed |= rig.disk(Some(error)).is_some();
            }
            Step::Remove(n) => {
                if let Some(file) = pick(rig.files.keys().copied(), n) {
                    rig.files.remove(&file);
                    failed = true;
                }
            }
            Step::Lost(writer) => {
                let owner = owner(&writer.to_string());
                rig.does(|store, now, fx| store.owner_lost(now, &owner, fx));
            }
            Step::Wait(seconds) => {
                rig.now = rig.now + Span::from_secs(seconds);
                rig.does(|store, now, fx| store.tick(now, fx));
            }
            Step::Restart => {
                let there = rig.files.len() as u64;
                rig = rig.restarted(limits);
                puts.clear();
                reading.clear();
                let stats = rig.store.stats();
                assert!(
                    failed
                        || limits.disk.is_none()
                        || stats.disk.pages == there
                        || stats.disk.pages * 12 + 12 > stats.disk.capacity,
                    "orphans: {there} files, {stats:?}"
                );
                rig.listen_to_all();
            }
            Step::Close => {
                rig.does(|store, now, fx| store.close(now, fx));
                rig.settle();
                assert!(rig.store.is_flushed(rig.now) || rig.store.stats().paused);
                rig = rig.restarted(limits);
                puts.clear();
                reading.clear();
                rig.listen_to_all();
            }
        }
        puts.retain(|put, _| !rig.ended.contains_key(put));
        for (reader, given) in &rig.given {
            if let Some(text) = reading.get(reader) {
                let names: Vec<PageKey> = chain(TEXTS[*text]).iter().map(|hash| key(*hash)).collect();
                assert!(names.starts_with(given), "{given:?}");
            }
        }
    }
    // Whoever is owed pages gets them, or is told.
    rig.settle();
    for (reader, text) in &reading {
        rig.grant(*reader, 99);
        rig.settle();
        let given = rig.given.get(reader).map_or(0, Vec::len);
        assert!(
            rig.cut.contains_key(reader) || given == TEXTS[*text].len() || rig.has(TEXTS[*text]) >= given
        );
        rig.release(*reader);
    }
    for put in puts.keys() {
        rig.does(|store, now, fx| store.commit(now, *put, fx));
    }
    rig.settle();
    let stats = rig.store.stats();
    assert_eq!((stats.puts, stats.readers, stats.waiting_bytes, stats.writing_bytes), (0, 0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn ram_alone(ram in 1..20_u64, steps in prop::collection::vec(step(), 1..300)) {
        run(limits(ram, None), steps);
    }

    #[test]
    fn ram_and_disk(
        (ram, disk) in (1..12_u64, 0..24_u64),
        (above, uses) in (0..12_u64, 1..3_u32),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let all = limits(ram, Some(disk));
        let disk = all.disk.map(|d| DiskLimits { write_above: 10 * above, min_uses: uses, ..d });
        run(PoolLimits { disk, ..all }, steps);
    }
}
