use std::sync::atomic::AtomicU32;

use super::*;

#[test]
fn every_task_runs_once() {
    for threads in 1..=4 {
        let compute = Compute::new(threads).unwrap();
        assert_eq!(compute.threads(), threads);
        for tasks in [0, 1, 2, 3, 7, 64, 1000] {
            let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
            compute.run(tasks, |task| {
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{threads} threads, {tasks} tasks"
            );
        }
    }
}

#[test]
fn many_short_regions_follow_one_another() {
    let compute = Compute::new(3).unwrap();
    let sum = AtomicU64::new(0);
    for _ in 0..20_000 {
        compute.run(5, |task| {
            sum.fetch_add(task as u64, Ordering::Relaxed);
        });
    }
    assert_eq!(sum.into_inner(), 200_000);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let compute = Compute::new(3).unwrap();
    for bad in [0, 13, 99] {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            compute.run(100, |task| assert!(task != bad, "task {task} fails"));
        }));
        let message = *caught.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, format!("task {bad} fails"));
        let ran = AtomicU32::new(0);
        compute.run(100, |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 100);
    }
}

#[test]
fn a_region_within_a_region_runs_inline() {
    let compute = Compute::new(2).unwrap();
    let ran = AtomicU32::new(0);
    compute.run(8, |_| {
        let outer = std::thread::current().id();
        compute.run(8, |_| {
            assert_eq!(std::thread::current().id(), outer);
            ran.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(ran.into_inner(), 64);
}

#[test]
fn callers_on_several_threads_take_turns() {
    let compute = Compute::new(2).unwrap();
    let ran = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    compute.run(10, |_| {
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(ran.into_inner(), 20_000);
}

#[test]
fn workers_take_part_and_end_with_the_pool() {
    let compute = Compute::new(2).unwrap();
    let shared = Arc::downgrade(&compute.shared);
    // Both threads must be inside at once for this to end.
    let inside = AtomicU32::new(0);
    compute.run(2, |_| {
        inside.fetch_add(1, Ordering::SeqCst);
        while inside.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
    });
    drop(compute);
    assert!(shared.upgrade().is_none(), "a worker outlived its pool");
}
