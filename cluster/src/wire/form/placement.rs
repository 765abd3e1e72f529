//! What the controller is told and what it says.

use config::WorkerRole;
use policies::cost::{Hardware, HardwareProfile, ModelShape};
use policies::kv::PageLayout;
use policies::placement::{
    KvPeer, PlaceRequest, PlacementEffect, Plan, PoolInfo, Prefix, Rejection, SwitchCause, WorkerInfo,
};
use policies::policy::{PolicyMode, Stage};
use policies::time::Time;

use super::{Form, form_enum, form_struct, words};
use crate::wire::codec::{DecodeError, Decoder, EncodeError, Encoder};

form_struct!(WorkerInfo {
    id,
    models,
    max_context,
    max_requests,
    page_tokens,
    role,
    switching_to,
    switchable,
    hardware,
    shape,
    kv,
});

form_enum!(WorkerRole { 0 => Unified, 1 => Prefill, 2 => Decode });
form_enum!(SwitchCause { 0 => Admin, 1 => Policy });

form_struct!(HardwareProfile { name, figures });
form_struct!(Hardware { flops, memory, link, step_overhead, link_latency });
form_struct!(ModelShape { params, weight_bytes, layers, heads, kv_heads, head_dim, element_bytes });

form_struct!(KvPeer { address, fingerprint, layout });
form_struct!(PageLayout { page_tokens, layers, kv_heads, head_dim, element_bytes });

form_struct!(PlaceRequest {
    request,
    attempt,
    model,
    prompt_tokens,
    context_tokens,
    max_tokens,
    choices,
    resumed,
    prompt_logprobs,
    avoid,
    hashes,
    session,
    props,
    pin,
} not sent {
    // The envelope carries it.
    deadline: Time::NEVER
});

form_enum!(PlacementEffect {
    0 => Placed { request, attempt, plan },
    1 => Rejected { request, attempt, reason },
    2 => Lost { request, attempt, worker },
});

form_enum!(Rejection {
    0 => UnknownModel(model),
    1 => NoWorker(model),
    2 => QueueFull { queued },
    3 => Timeout(waited),
    4 => TooLong { tokens, window },
    5 => NoPrefill(model),
    6 => Pinned { worker, why },
});

form_struct!(Stage { policy, mode, action, why, numbers, saved, took });

form_enum!(PolicyMode { 0 => Off, 1 => Shadow, 2 => Prod });

form_struct!(Prefix { from, pool, tokens });

form_struct!(PoolInfo { id, address, hardware });

impl Form for Plan {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        let Self { worker, prefill, fetch, store, why, stages } = self;
        worker.put(to)?;
        prefill.put(to)?;
        fetch.put(to)?;
        store.put(to)?;
        words::put(why, to)?;
        stages.put(to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Ok(Self {
            worker: Form::take(from)?,
            prefill: Form::take(from)?,
            fetch: Form::take(from)?,
            store: Form::take(from)?,
            why: words::take(&words::WHY, words::OTHER_WHY, from)?,
            stages: Form::take(from)?,
        })
    }
}
