//! Questions for tests of policies.

use std::sync::Arc;

use config::ids::{Attempt, RequestId, SessionId, WorkerId};

use super::{CandidateRow, PolicyQuery};
use crate::placement::{PlaceRequest, WorkerInfo};
use crate::time::Time;

/// An idle worker with no pages in use.
pub(super) fn row(n: u64) -> CandidateRow {
    let worker = WorkerId::new(format!("w{n}").as_str().into(), 1);
    let info = WorkerInfo::unified(worker.clone(), "m".into(), 1_000_000, 100, 16);
    CandidateRow {
        worker,
        info: Arc::new(info),
        work_tokens: 0,
        prefill_tokens: 0,
        requests: 0,
        handoffs: 0,
        max_requests: 100,
        pages_used: 0,
        pages_free: 0,
        pages_total: 0,
        kv_tokens: 0,
        hit_tokens: 0,
        last_chosen: 0,
    }
}

/// A question about a prompt of so many tokens.
pub(super) fn query(prompt_tokens: u32, session: Option<&str>, rows: Vec<CandidateRow>) -> PolicyQuery {
    let request = PlaceRequest {
        request: RequestId::new(1, 1),
        attempt: Attempt(0),
        model: "m".into(),
        prompt_tokens,
        context_tokens: prompt_tokens,
        max_tokens: 10,
        choices: 1,
        resumed: false,
        prompt_logprobs: false,
        avoid: Vec::new(),
        pin: None,
        hashes: Arc::default(),
        session: session.map(SessionId::from),
        props: Arc::default(),
        deadline: Time::NEVER,
    };
    PolicyQuery {
        request: Arc::new(request),
        rows: rows.into(),
        prefill: Arc::default(),
        prefill_known: 0,
        pools: Arc::default(),
    }
}
