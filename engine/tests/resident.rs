//! How much memory a loaded model takes. Alone in its binary, since the figure is the process's.

use config::ids::{Attempt, PageId, RequestId};
use config::{Device, KvDtype};
use engine::Engine;
use engine::paged::{KvBudget, LoadOptions, PagedEngine, resident_memory};
use engine::store::{ModelFiles, default_model_for_tests};
use policies::step::{SeqKey, Slice, StepPlan};

#[test]
fn a_model_takes_at_most_twice_its_file() {
    let path = default_model_for_tests();
    let file = std::fs::metadata(&path).unwrap().len();
    let options = LoadOptions {
        device: Device::Cpu,
        kv_dtype: KvDtype::F16,
        kv: KvBudget::Pages(256),
        ..LoadOptions::new(ModelFiles::Gguf(path))
    };
    let (mut engine, _card) = PagedEngine::load(&options).unwrap();
    let after_load = resident_memory().unwrap();
    let tokens: Vec<u32> = (0..512).map(|i| 100 + i * 37 % 40_000).collect();
    for sequence in 0..8 {
        let slice = Slice {
            seq: SeqKey { request: RequestId::new(1, u64::from(sequence)), attempt: Attempt(0), choice: 0 },
            tokens: tokens.clone(),
            start: 0,
            block_table: (sequence * 32..(sequence + 1) * 32).map(PageId).collect(),
            draws: vec![],
            prompt_logprobs: None,
        };
        let plan = StepPlan { step: 1, copies: vec![], slices: vec![slice] };
        assert_eq!(engine.step(&plan).unwrap().failed, []);
    }
    let kv = engine.kv();
    let pages = u64::from(kv.pages) * kv.layout.page_bytes() as u64;
    let used = resident_memory().unwrap();
    let (mb, limit) = (1_000_000, 2 * file + pages + 300_000_000);
    println!(
        "file {} MB, weights {} MB, KV {} MB; resident {} MB loaded, {} MB in use, limit {} MB",
        file / mb,
        engine.weight_bytes() as u64 / mb,
        pages / mb,
        after_load / mb,
        used / mb,
        limit / mb
    );
    assert!(used <= limit, "{used} of {limit} bytes");
}
