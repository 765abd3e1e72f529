//! Why a request went where it went: the stages of its placements, for the client that asks and for `/v1/requests/{id}`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use config::ids::{Attempt, RequestId, WorkerId};
use policies::policy::disaggregate::Disaggregate;
use policies::policy::{PolicyMode, Stage};
use policies::session::Migrated;
use serde_json::{Map, Value, json};

use super::session::Measured;

/// The state of a migration that has not ended.
const MOVING: &str = "moving";

/// Requests that are remembered.
const KEPT: usize = 1000;

/// One placement of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placed {
    pub(crate) request: RequestId,
    pub(crate) attempt: Attempt,
    pub(crate) worker: WorkerId,
    pub(crate) why: &'static str,
    pub(crate) stages: Arc<[Stage]>,
}

impl Placed {
    /// Prompt tokens that the directory expects at the worker, where there is one.
    pub(crate) fn predicted_hits(&self) -> Option<u32> {
        let choice = self.stages.iter().find(|stage| stage.policy.as_str() == Stage::PLACEMENT)?;
        choice.numbers.iter().find(|(name, _)| name == "hit-tokens").map(|(_, tokens)| *tokens as u32)
    }

    /// A policy in effect decides whether the prompt is computed on another worker than the answer.
    pub(crate) fn splits_prompts(&self) -> bool {
        let decides = |s: &Stage| s.policy.as_str() == Disaggregate::STAGE && s.mode == PolicyMode::Prod;
        self.stages.iter().any(decides)
    }

    /// As it is shown.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "request": self.request.to_string(),
            "attempt": self.attempt.0,
            "worker": self.worker.to_string(),
            "why": self.why,
            "stages": self.stages.iter().map(stage).collect::<Vec<_>>(),
        })
    }
}

fn stage(stage: &Stage) -> Value {
    let numbers: Map<String, Value> =
        stage.numbers.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    json!({
        "policy": stage.policy.as_str(),
        "mode": stage.mode.as_str(),
        "action": stage.action,
        "why": stage.why,
        "numbers": numbers,
        "saved_tokens": stage.saved,
        "duration_us": stage.took.to_duration().as_micros() as u64,
    })
}

/// The last requests and their placements.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    requests: BTreeMap<RequestId, Record>,
    order: VecDeque<RequestId>,
}

#[derive(Debug)]
struct Record {
    placements: Vec<Placed>,
    migrations: Vec<Move>,
    outcome: Option<&'static str>,
    measured: Option<Measured>,
}

/// A migration of a request.
#[derive(Debug)]
struct Move {
    from: Option<WorkerId>,
    to: Option<WorkerId>,
    /// `moving`, or how it ended.
    state: &'static str,
    why: Option<String>,
}

impl Move {
    fn to_json(&self) -> Value {
        json!({
            "from": self.from.as_ref().map(ToString::to_string),
            "to": self.to.as_ref().map(ToString::to_string),
            "state": self.state,
            "why": self.why,
        })
    }
}

impl Recent {
    /// A placement of a request, its first or a later one.
    pub(crate) fn placed(&self, placed: Placed) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let request = placed.request;
        if let Some(record) = kept.requests.get_mut(&request) {
            record.placements.push(placed);
            return;
        }
        let (placements, migrations) = (vec![placed], Vec::new());
        kept.requests.insert(request, Record { placements, migrations, outcome: None, measured: None });
        kept.order.push_back(request);
        if kept.order.len() > KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.requests.remove(&oldest);
        }
    }

    /// A request begins to move, to a worker that is named or one that the controller will name. The session sees to it
    /// that there are few, one at a time.
    pub(crate) fn moving(&self, request: RequestId, to: Option<WorkerId>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = kept.requests.get_mut(&request) {
            record.migrations.push(Move { from: None, to, state: MOVING, why: None });
        }
    }

    /// How its last migration ended.
    pub(crate) fn moved(&self, request: RequestId, end: &Migrated) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = kept.requests.get_mut(&request).and_then(|record| record.migrations.last_mut()) {
            last.state = end.as_str();
            match end {
                Migrated::Moved { from, to } => {
                    (last.from, last.to) = (Some(from.clone()), Some(to.clone()));
                }
                Migrated::Stayed(why) | Migrated::Elsewhere(why) => last.why = Some(why.clone()),
                Migrated::Ended => {}
            }
        }
    }

    /// How a request ended, and what was measured of it.
    pub(crate) fn ended(&self, request: RequestId, outcome: &'static str, measured: Measured) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = kept.requests.get_mut(&request) {
            record.outcome = Some(outcome);
            record.measured = Some(measured);
            for moving in record.migrations.iter_mut().filter(|moving| moving.state == MOVING) {
                moving.state = Migrated::Ended.as_str();
            }
        }
    }

    /// What is known of a request, by the id of its answer (`chatcmpl-…`, `cmpl-…`) or our own.
    pub(crate) fn find(&self, id: &str) -> Option<Value> {
        let number: RequestId = id.rsplit('-').next()?.parse().ok()?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let record = kept.requests.get(&number)?;
        Some(json!({
            "id": number.to_string(),
            "object": "request",
            "outcome": record.outcome.unwrap_or("running"),
            "measured": record.measured.as_ref().map(Measured::to_json),
            "placements": record.placements.iter().map(Placed::to_json).collect::<Vec<_>>(),
            "migrations": record.migrations.iter().map(Move::to_json).collect::<Vec<_>>(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use policies::time::{Span, Time};

    use super::*;

    fn placed(number: u64, attempt: u32) -> Placed {
        Placed {
            request: RequestId::new(7, number),
            attempt: Attempt(attempt),
            worker: WorkerId::new("w1".into(), 1),
            why: "only-worker",
            stages: Arc::new([]),
        }
    }

    #[test]
    fn requests_are_found_by_the_id_of_their_answer_until_newer_ones_take_their_place() {
        let recent = Recent::default();
        recent.placed(placed(1, 0));
        recent.placed(placed(1, 1));
        let measured = Measured {
            started: Time::ZERO,
            ttft: Some(Span::from_millis(3)),
            whole: Span::from_millis(9),
            tokens: 2,
            decode_rate: None,
            tail: None,
            remote: None,
        };
        recent.ended(RequestId::new(7, 1), "success", measured);
        let found = recent.find(&format!("chatcmpl-{}", RequestId::new(7, 1))).unwrap();
        assert_eq!(found["placements"].as_array().unwrap().len(), 2);
        assert_eq!(found["outcome"], "success");
        assert_eq!(found["measured"]["ttft_ms"], 3.0);
        assert!(recent.find("chatcmpl-x").is_none());
        for number in 2..2 + KEPT as u64 {
            recent.placed(placed(number, 0));
        }
        assert!(recent.find(&RequestId::new(7, 1).to_string()).is_none());
        assert!(recent.find(&RequestId::new(7, 2).to_string()).is_some());
    }
}
