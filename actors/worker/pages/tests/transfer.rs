//! Page sets that fail in the middle of a transfer, at either end.

use config::WorkerRole;
use futures_util::future::join_all;

use super::super::chaos::{Death, Plan, is_planned, plan};
use super::super::report::End;
use super::nodes::Nodes;
use super::*;

/// Tokens of a page, and of a step.
const PAGE: u32 = 16;
const STEP: u32 = 64;

fn prompt(salt: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| 33 + (i * 7 + salt * 13 + (i + salt) * i % 31) % 90).collect()
}

const fn moment(end: End, before: &'static str, nth: u32, death: Death) -> Plan {
    Plan { end, before, nth, death }
}

/// A prompt is computed by one worker for another. Whichever end of it fails, wherever it stands: the answer is what one node
/// gives, neither worker keeps anything, and nothing waits for a time limit, none of which passes here.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_set_that_fails_in_a_transfer_loses_nothing() {
    use Death::{Kill, Panic};
    use End::{Receiver, Sender};
    let one = Nodes::start(&[WorkerRole::Unified], Dur::from_millis(0)).await;
    let pair = Nodes::start(&[WorkerRole::Prefill, WorkerRole::Decode], Dur::from_millis(1)).await;
    let generation = pair.workers[1].id.incarnation;
    let moments = [
        ("linked", Receiver),
        ("accepted", Receiver),
        ("begun", Receiver),
        ("reserved", Receiver),
        ("pages", Receiver),
        ("imported", Receiver),
        ("last", Receiver),
        ("submitted", Sender),
        ("open", Sender),
        ("computed", Sender),
        ("credit", Sender),
        ("prefilled", Sender),
        ("ack", Sender),
    ];
    let mut salt = 0;
    for (before, end) in moments {
        for death in [Panic, Kill] {
            salt += 1;
            let asked = prompt(salt, 5 * STEP + salt);
            plan(generation, moment(end, before, 1, death));
            let answer = pair.complete(&asked, 20).await;
            let what = format!("{end:?} before `{before}`, {death:?}");
            assert_eq!(answer, one.complete(&asked, 20).await, "{what}");
            pair.until_idle().await;
            assert!(!is_planned(generation), "it did not come to that: {what}");
        }
    }
}

/// A stream moves: pages are fetched, then the rest is taken over. Whichever page set fails meanwhile, the stream goes on, here
/// or there, as if nothing had happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_set_that_fails_in_a_move_loses_nothing() {
    use Death::{Kill, Panic};
    use End::{Receiver, Sender};
    // The second of a kind is that of what takes over.
    let moments = [
        moment(Receiver, "pages", 1, Panic),
        moment(Receiver, "last", 1, Kill),
        moment(Sender, "exported", 1, Panic),
        moment(Sender, "ack", 1, Kill),
        moment(Receiver, "accepted", 2, Panic),
        moment(Receiver, "last", 2, Panic),
        moment(Receiver, "last", 2, Kill),
        moment(Sender, "prefilled", 2, Kill),
        moment(Sender, "prefilled", 2, Panic),
    ];
    let one = Nodes::start(&[WorkerRole::Unified], Dur::from_millis(0)).await;
    join_all((0..).zip(moments).map(|(salt, moment)| {
        let one = &one;
        async move {
            let pair = Nodes::start(&[WorkerRole::Unified; 2], Dur::from_millis(10)).await;
            let asked = prompt(1000 + salt, 6 * PAGE + salt);
            let mut stream = pair.stream(&asked, 300).await;
            let request = stream.after(5 + salt as usize).await;
            // It goes to where it is not.
            for worker in &pair.workers {
                plan(worker.id.incarnation, moment);
            }
            let moved = pair.migrate(&request).await;
            let expected = one.complete(&asked, 300).await;
            assert_eq!(stream.text().await, expected[0]["text"].as_str().unwrap(), "{moment:?}: {moved}");
            pair.until_idle().await;
            let struck = pair.workers.iter().filter(|worker| !is_planned(worker.id.incarnation)).count();
            assert_eq!(struck, 1, "it did not come to that: {moment:?}: {moved}");
        }
    }))
    .await;
}

/// A worker fetches what another one holds of a prompt. Whichever page set fails meanwhile, the answer is what one node gives,
/// nothing is kept and nothing waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_set_that_fails_in_a_fetch_loses_nothing() {
    use Death::{Kill, Panic};
    use End::{Receiver, Sender};
    let in_turn = |config: &mut Config| {
        config.cluster.cluster_policies = vec!["replicate".into()];
        config.controller.choice = config::Choice::RoundRobin;
        config.policy.replicate.min_tokens = Some(32);
    };
    let one = Nodes::start(&[WorkerRole::Unified], Dur::from_millis(0)).await;
    let pair = Nodes::start_with(&[WorkerRole::Unified; 2], Dur::from_millis(1), in_turn).await;
    // Each prompt is computed by the one, and goes on at the other.
    let generation = pair.workers[1].id.incarnation;
    let moments = [
        ("linked", Receiver),
        ("accepted", Receiver),
        ("pages", Receiver),
        ("imported", Receiver),
        ("last", Receiver),
        ("submitted", Sender),
        ("prefilled", Sender),
        ("exported", Sender),
        ("credit", Sender),
        ("ack", Sender),
    ];
    let (mut salt, mut held) = (5000, 0);
    for (before, end) in moments {
        for death in [Panic, Kill] {
            salt += 1;
            let what = format!("{end:?} before `{before}`, {death:?}");
            let start = prompt(salt, 3 * STEP + salt % 16);
            let _ = pair.complete(&start, 1).await;
            held += (start.len() / PAGE as usize) as u64;
            pair.until_held(0, held).await;
            plan(generation, moment(end, before, 1, death));
            let more = [start, prompt(salt + 500, STEP)].concat();
            assert_eq!(pair.complete(&more, 20).await, one.complete(&more, 20).await, "{what}");
            pair.until_idle().await;
            assert!(!is_planned(generation), "it did not come to that: {what}");
        }
    }
}
