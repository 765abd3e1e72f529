//! From what a client wants to the request as the gateway gets it.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{Attempt, RequestId, TenantId};
use policies::kv::Fingerprint;
use policies::request::{Prop, Props, RequestSpec, ResumedChoice, Sampling, WEIGHT_ONE};
use policies::time::Span;

use super::draw::{seconds, stream};
use super::{Arrival, Ask, END, GATEWAY, MODEL, fingerprint};
use crate::pages::page_hashes;
use crate::scenario::{PropValue, Scenario, Workload};

/// What all requests of a scenario have in common.
#[derive(Debug)]
pub(super) struct Make {
    workload: Workload,
    seed: u64,
    page_tokens: u32,
    credit: u32,
    kinds: Vec<Kind>,
    /// By tenant: no two share a page.
    fingerprints: BTreeMap<Option<TenantId>, Fingerprint>,
    end_tokens: Arc<[u32]>,
}

#[derive(Debug)]
struct Kind {
    tenant: Option<TenantId>,
    weight: u32,
    props: Arc<Props>,
}

impl Make {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let kinds = scenario.workload.classes.iter().map(|class| Kind {
            tenant: class.tenant.as_deref().map(TenantId::from),
            weight: (class.weight * f64::from(WEIGHT_ONE)).round().max(1.0) as u32,
            props: Arc::new(props(&class.props)),
        });
        Self {
            workload: scenario.workload.clone(),
            seed: scenario.seed,
            page_tokens: scenario.cluster.page_tokens,
            credit: scenario.cluster.credit,
            kinds: kinds.collect(),
            fingerprints: BTreeMap::new(),
            end_tokens: vec![END].into(),
        }
    }

    pub(super) fn arrival(&mut self, ask: Ask) -> Arrival {
        let Ask { at, number, prompt, max_tokens, exact, session, class, tenant, props } = ask;
        let w = &self.workload;
        let mut patience = stream(self.seed, 4, number);
        let stays = patience.exponential(w.patience.get().as_secs_f64());
        let leaves = (patience.unit() < w.leave).then(|| at + seconds(stays));
        let mut stalls = stream(self.seed, 6, number);
        let stall = stalls.exponential(w.stall_for.get().as_secs_f64());
        let reads = (stalls.unit() < w.stall).then(|| at + seconds(stall));
        let kind = self.kinds.get(class);
        let tenant = tenant.or_else(|| kind.and_then(|kind| kind.tenant.clone()));
        let props = match kind {
            Some(kind) if props.is_empty() => Arc::clone(&kind.props),
            Some(kind) => {
                Arc::new(kind.props.iter().map(|(k, v)| (k.clone(), v.clone())).chain(props).collect())
            }
            None => Arc::new(props),
        };
        let print = self.fingerprints.entry(tenant.clone());
        let print = print.or_insert_with(|| fingerprint().of_tenant(tenant.as_ref()));
        let sampling = Sampling { temperature: w.temperature, seed: number, ..Sampling::default() };
        let spec = RequestSpec {
            id: RequestId::new(GATEWAY, number),
            attempt: Attempt(0),
            model: MODEL.into(),
            hashes: page_hashes(print, self.page_tokens, &prompt).into(),
            prompt,
            resumed: vec![ResumedChoice::default(); w.choices as usize],
            max_tokens,
            credit: self.credit,
            end_tokens: Arc::clone(&self.end_tokens),
            ignore_end: exact,
            sampling: Arc::new(sampling),
            prompt_logprobs: false,
            props,
            session,
            tenant,
            weight: kind.map_or(WEIGHT_ONE, |kind| kind.weight),
            deadline: at + Span::from(w.deadline.get()),
        };
        Arrival { at, spec, leaves, reads }
    }
}

/// Hints as policies read them.
pub(super) fn props(values: &BTreeMap<String, PropValue>) -> Props {
    let prop = |value: &PropValue| match value {
        PropValue::Bool(b) => Prop::Bool(*b),
        PropValue::Int(n) => Prop::Int(*n),
        PropValue::Float(x) => Prop::Float(*x),
        PropValue::Text(text) => Prop::Text(text.clone()),
    };
    values.iter().map(|(name, value)| (name.clone(), prop(value))).collect()
}
