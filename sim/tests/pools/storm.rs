//! Pools in storms: they die, are cut off, stand still, start again, and their disks are full.

use super::*;

fn storm(seed: u64) -> Scenario {
    let pools = match seed % 4 {
        0 => vec![pool(15, Some(75)), pool(15, Some(75))],
        1 => vec![pool(100, None), pool(25, Some(500))],
        2 => vec![PoolClass {
            disk_write: Size(100_000_000),
            disk_read: Size(200_000_000),
            ..pool(10, Some(125))
        }],
        _ => vec![PoolClass { disk_latency: Dur::from_millis(5), ..pool(50, Some(250)) }, pool(5, None)],
    };
    let mut scenario = Scenario { seed, ..scenario(pools) };
    let w = &mut scenario.workload;
    (w.requests, w.rate, w.leave, w.deadline) = (60, 30.0, 0.1, Dur::from_secs(20));
    scenario.cluster.pages = [75, 175, 500][seed as usize / 4 % 3];
    if seed.is_multiple_of(3) {
        scenario.cluster.cluster_policies = vec!["replicate".into(), "pool-replicate".into()];
    }
    weather::storm(&mut scenario);
    let random = &mut scenario.random_faults.random;
    (random.crashes, random.partitions, random.full_disks) = (5, 4, 3);
    scenario
}

fn hold(seeds: u64) {
    let (mut fetched, mut stored, mut written, mut from_disk, mut lives, mut full) = (0, 0, 0, 0, 0, 0);
    let mut broken = 0;
    for seed in 0..seeds {
        let scenario = storm(seed);
        let run = simulate(&scenario).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        calm::agrees(&scenario, &run, |calm| calm.cluster.cluster_policies.clear());
        let all = pools(&run.report);
        fetched += all.fetched_tokens;
        stored += all.stored;
        written += all.written;
        from_disk += all.given_disk;
        full += all.no_space;
        for one in &all.each {
            lives += u64::from(one.lives);
            broken +=
                one.taken.iter().filter(|(how, _)| **how != "committed").map(|(_, count)| count).sum::<u64>();
        }
        if seed < 3 {
            assert_eq!(run.report, simulate(&scenario).expect("a run that holds").report, "seed {seed}");
        }
    }
    assert!(
        fetched > 100 * seeds && stored > 25 * seeds && written > 3 * seeds,
        "{fetched}, {stored}, {written}"
    );
    assert!(
        from_disk > seeds / 2 && lives > 2 * seeds && full > 0 && broken > seeds,
        "{from_disk}, {lives}, {full}, {broken}"
    );
}

#[test]
fn some_seeds_of_a_storm_over_pools_hold() {
    hold(30);
}

/// `cargo test --release -p sim -- --ignored a_thousand`
#[test]
#[ignore = "minutes"]
fn a_thousand_seeds_of_a_storm_over_pools_hold() {
    hold(1000);
}
