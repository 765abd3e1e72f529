//! Transfers under policies that order: who is charged, who gives way, who is not judged.

use super::*;
use crate::batch::Refusal;
use crate::order::deadline::Deadline;
use crate::order::fair::Fair;
use crate::order::priority::Priority;
use crate::order::{Ranks, WorkerPolicy};
use crate::request::Prop;
use crate::time::Span;

fn with_prop(mut spec: RequestSpec, name: &str, value: i64) -> RequestSpec {
    Arc::make_mut(&mut spec.props).insert(name.to_owned(), Prop::Int(value));
    spec
}

/// What a tenant is charged where its prompt is computed, and where its tokens are drawn.
#[test]
fn a_tenant_is_charged_for_each_token_once_and_where_it_is_computed() {
    let len = 3 * CHUNK + 5;
    // The first worker is lost after so many steps; never.
    for lost_after in [None, Some(2)] {
        let mut pair = Pair::one(64);
        pair.p.batch.order_by_policy(true, Vec::new());
        pair.d.batch.order_by_policy(true, Vec::new());
        let mut spec = request(&limits(64), 1, &prompt(1, len), 9);
        (spec.tenant, spec.hashes) = (Some("a".into()), Arc::default());
        pair.add(&spec);
        let mut there = len;
        if let Some(steps) = lost_after {
            (0..steps).for_each(|_| _ = pair.step());
            there = pair.streams[&id(&spec)].there;
            assert!(there > 0 && there < len);
            pair.p.cancel(id(&spec));
            pair.fall_back(id(&spec));
        }
        while pair.step() {}
        let charged = |driver: &mut Driver| {
            let mut events = Vec::new();
            driver.batch.take_order_events(&mut events);
            let mut fair = Fair::new(Default::default());
            fair.observe(driver.now, &events, &mut Ranks::default());
            fair.check().unwrap();
            fair.counter(spec.tenant.as_ref()).unwrap()
        };
        let (p, d) = (charged(&mut pair.p), charged(&mut pair.d));
        let tokens = 2.0 * 9.0;
        assert_eq!((p, d), (f64::from(there), f64::from(len - there) + tokens), "{lost_after:?}");
        pair.run();
    }
}

/// What is recomputed after a preemption is told anew from its first page on: the pages are others.
#[test]
fn a_prompt_for_another_worker_that_is_pushed_out_is_told_anew() {
    let config = BatchConfig { watermark: 0.0, ..limits(12) };
    let mut p = Driver::new(&config);
    p.order_by(Some(Box::new(Priority::default())));
    let spec = request(&config, 1, &prompt(1, 10 * PAGE), 5);
    p.add_prefill(&spec, true).unwrap();
    (0..2).for_each(|_| _ = p.step().unwrap());
    let high = with_prop(request(&config, 2, &prompt(2, 10 * PAGE), 5), "priority", 1);
    p.add(&high);
    let (mut table, mut recalled): (Vec<PageId>, u32) = Default::default();
    let mut last: Vec<PageId> = Vec::new();
    for step in 0.. {
        assert!(step < 100, "it ends");
        if let Some(plan) = p.step() {
            let of_it = plan.slices.iter().find(|slice| slice.seq.request == spec.id);
            last = of_it.map_or(last, |slice| slice.block_table.clone());
        }
        let mut ends = false;
        for work in p.kv_work() {
            match work {
                KvWork::Computed { first, pages, .. } => {
                    recalled += u32::from(pages.is_empty());
                    table.truncate(first as usize);
                    table.extend(pages);
                }
                KvWork::Prefilled { tail: None, .. } => ends = true,
                other => panic!("{other:?}"),
            }
        }
        if ends {
            break;
        }
        assert!(table.is_empty() || last.starts_with(&table) || recalled == 0, "{table:?} of {last:?}");
    }
    assert_eq!((recalled, &table), (1, &last));
    p.expect_complete(&high);
    p.cancel(id(&spec));
    p.expect_idle();
}

/// A worker that does not compute a prompt does not judge how long it takes.
#[test]
fn a_prompt_that_comes_from_elsewhere_is_not_hopeless_here() {
    // Smaller steps say nothing about the speed.
    let config = BatchConfig { max_batch_tokens: 64, ..limits(64) };
    let mut d = Driver::new(&config);
    d.order_by(Some(Box::new(Deadline::default())));
    d.add(&request(&config, 0, &prompt(0, 40 * PAGE), 1));
    d.run();
    let mut spec = request(&config, 1, &prompt(1, 40 * PAGE), 1);
    spec.deadline = d.now + Span::from_millis(2);
    let spec = with_prop(spec, "deadline-ms", 2);
    assert!(matches!(d.submit(&spec), Err(Refusal::Hopeless { .. })), "by its own speed");
    d.add_received(&spec, 1);
    assert!(d.plan().is_none());
    assert!(matches!(d.kv_work()[..], [KvWork::Reserved { .. }]));
    assert_eq!(d.batch.set_aside().receiving, 1);
    d.cancel(id(&spec));
    d.expect_idle();
}
