//! Pools whose disks are full.

use super::*;

/// RAM for two prompts, and a disk that takes all that is stored in half a minute, and gives it sooner than it is computed.
fn with(faults: Vec<Fault>) -> Scenario {
    let kept = PoolClass { disk_read: Size(12_000_000_000), ..pool(40, Some(2000)) };
    let mut scenario = scenario(vec![kept]);
    (scenario.workload.requests, scenario.workload.rate) = (300, 10.0);
    scenario.faults = faults;
    scenario
}

fn full(at_ms: u64, lasting_ms: u64) -> Fault {
    fault(FaultKind::PoolDiskFull, &["p0"], at_ms, lasting_ms)
}

#[test]
fn nothing_is_written_to_a_full_disk_and_reads_go_on() {
    let calm = unharmed(&with(Vec::new())).report;
    let one = only(&calm);
    assert!(one.written > 125 && one.given_disk > 125 && one.no_space + one.pauses == 0, "{one:?}");
    // From the start to after the end.
    let never = unharmed(&with(vec![full(0, 3_600_000)])).report;
    let one = only(&never);
    // When it has room again, an hour later, there is what RAM holds then.
    assert!(one.written <= 40 && one.no_space > 2 && one.pauses > 1 && one.given_ram > 100, "{one:?}");
    assert_eq!(one.given_disk, 0);
    assert!(one.stored > 125 && one.dropped > 125, "pages come and go: {one:?}");
    // Long after the first pages were written, to after the end: those are read all along.
    let since = unharmed(&with(vec![full(8_000, 3_600_000)])).report;
    let one = only(&since);
    assert!(one.written > 25 && one.no_space > 2 && one.pauses > 1, "{one:?}");
    assert!(one.written < only(&calm).written, "nothing more was written");
    // Of what was given until then, in the same course of events, this is more than all of it.
    let until = only(&run(&Scenario { workload: until(8_000), ..with(Vec::new()) }).unwrap()).given_disk;
    assert!(one.given_disk > until + 50, "{} pages from disk, {until} until it was full", one.given_disk);
}

/// The clients of the first so many milliseconds.
fn until(ms: u64) -> sim::scenario::Workload {
    let scenario = with(Vec::new());
    let mut clients = sim::workload::Clients::new(&scenario).expect("a source of arrivals");
    let mut requests = 0;
    while clients.next().expect("a source of arrivals").is_some_and(|arrival| arrival.at.0 < ms * 1_000_000) {
        requests += 1;
    }
    sim::scenario::Workload { requests, ..scenario.workload }
}

#[test]
fn a_disk_that_has_room_again_is_written_to() {
    // Tried again after ten seconds.
    let again = unharmed(&with(vec![full(0, 12_000)])).report;
    let one = only(&again);
    assert!(one.no_space > 1 && one.pauses > 0, "{one:?}");
    assert!(one.written > 25 && one.given_disk > 12, "{one:?}");
    assert_eq!(again, run(&with(vec![full(0, 12_000)])).unwrap());
}

#[test]
fn a_full_disk_and_a_crash_lose_nothing_that_was_written() {
    let crash = |at, lasting| fault(FaultKind::Crash, &["p0"], at, lasting);
    // The disk is full before, while and after the pool is dead.
    let run = unharmed(&with(vec![full(8_000, 3_600_000), crash(12_000, 500), crash(16_000, 500)]));
    let one = only(&run.report);
    assert!(one.lives == 3 && one.lost == 0 && one.given_disk > 125, "{one:?}");
    assert!(one.disk_pages > 12 && one.disk_pages <= one.written, "{one:?}");
}
