//! What storms are held against.

use sim::scenario::{Faults, Network};
use sim::{Run, Scenario, simulate};

/// Runs the scenario of a storm again with nothing that goes wrong, `change`d besides: all requests finish, and what the
/// storm left of each answer is its beginning.
pub(crate) fn agrees(stormy: &Scenario, run: &Run, change: impl FnOnce(&mut Scenario)) {
    let (seed, asked) = (stormy.seed, stormy.workload.requests);
    let mut calm = Scenario { random_faults: Faults::default(), ..stormy.clone() };
    calm.workload.leave = 0.0;
    // Late messages may have the first request come before its workers have said what they serve.
    calm.network = Network { bandwidth: calm.network.bandwidth, ..Network::default() };
    change(&mut calm);
    let calm = simulate(&calm).expect("a run that holds");
    assert_eq!(calm.report.finished, asked, "seed {seed}: {:?}", calm.report.failed);
    // A gateway that dies while it stands still has never heard of some.
    assert!(
        run.report.requests == asked || stormy.random_faults.random.all_roles,
        "seed {seed}: {}",
        run.report.requests
    );
    for (id, answers) in &run.answers {
        for (got, all) in answers.iter().zip(&calm.answers[id]) {
            assert!(all.starts_with(got), "seed {seed}: {id}");
        }
    }
}
