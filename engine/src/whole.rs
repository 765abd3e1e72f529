//! The whole mistral.rs engine, adapted to the worker (`engine.kind = "mistralrs"`).
//!
//! mistral.rs has its own scheduler and keeps its KV to itself, so this engine takes requests rather than steps, and no
//! page ever leaves it: it serves the role `unified` alone ([`Capabilities`]). In return it runs every architecture that
//! mistral.rs knows.
//!
//! **Tokens in, tokens out.** A prompt goes in as token ids. mistral.rs answers with text, so a logits processor sits in
//! every sequence ([`stream`]) that sees the logits of each step, draws the token with our own [`crate::sample::Sampler`]
//! and hands mistral.rs a row in which that token is the only one left. Thereby both engines have the same sampling:
//! counter-based draws (a resumed request goes on with the same tokens as far as the logits agree), penalties, biases and
//! natural log-probabilities, none of which mistral.rs 0.8.1 offers in this form (it drops `logit_bias`, shares one
//! random generator between all sequences, and reports base-10 logarithms of raw logits for greedy ones).
//!
//! **Ends.** End tokens, `max_tokens` and the context window are judged here; mistral.rs' own rules are switched off. A
//! sequence is ended or cancelled by closing its response channel: mistral.rs drops a sequence when it cannot deliver a
//! chunk, which happens within one step. A prompt that is being computed is computed to its end, and a choice that ends
//! with its first token costs one more step (mistral.rs sets every sequence of a prompt step to running).
//!
//! **Queue.** mistral.rs can neither refuse nor cancel what waits in its scheduler, so no more than `max_running`
//! sequences are given to it and the others wait here ([`queue`]).
//!
//! **One at a time on CPU.** mistral.rs 0.8.1 batches sequences of equal length, and on CPU such a batch gives wrong
//! results: the scratch memory of its attention kernel for single queries (`flash_attn_cpu_single_q`) has no room for
//! more than one row, so all rows of a decode step get the attention of the last one. Measured: with two prompts of 24
//! tokens, the first decode step of one has another top token and log-probabilities off by more than 1; alone, and with
//! identical prompts, it is right. So on CPU mistral.rs holds one sequence at a time, whatever `max_running` says.
//!
//! **What is off, and why.** Its prefix cache: without paged attention, entries are shared with the sequences that reuse
//! them and written in place, on CPU nothing is ever evicted, and penalties would see only the part of the prompt that
//! is not cached. Paged attention on CPU: it does not exist there. Its start-up dummy run, interval logger and progress
//! bars.
//!
//! **What differs from `paged`.** Requests do not share steps on CPU, and elsewhere only where their lengths are equal;
//! `cached_tokens` is always 0; log-probabilities of a prompt are computed in a pass of their own, during which nothing
//! else runs.

mod loader;
mod prompt;
mod queue;
mod stream;

use std::sync::Arc;

use config::engine::Device;
use config::ids::{Attempt, RequestId};
use policies::batch::{BatchEffect, BatchLoad, Refusal};
use policies::request::RequestSpec;
use policies::step::SeqKey;

use crate::store::ModelFiles;
use crate::{EngineError, KvInfo, ModelCard};

use queue::Queue;

/// The name that errors use.
const NAME: &str = "mistralrs";

/// Takes what the engine produces, in order for each request, from threads of the engine. It has to return at once and
/// must not call the [`WholeEngine`].
pub type EffectSink = Arc<dyn Fn(BatchEffect) + Send + Sync>;

/// What a [`WholeEngine`] is made of.
#[derive(Clone, Debug)]
pub struct WholeOptions {
    /// Id that clients ask for.
    pub name: String,
    /// The model's files on this machine; nothing is fetched.
    pub files: ModelFiles,
    /// What it computes on.
    pub device: Device,
    /// Compute threads; 0 is one for each core that the process may use. mistral.rs computes on rayon's global pool, so
    /// the first engine of a process decides, and the environment variable `RAYON_NUM_THREADS` set to the same number
    /// also keeps candle from cutting its work into more pieces than there are threads.
    pub threads: usize,
    /// Sequences in mistral.rs at once; at least 1, and on CPU always 1.
    pub max_running: u32,
    /// Sequences that wait; the next request is refused.
    pub max_waiting: u32,
    /// A shorter context window than the model's.
    pub max_context: Option<u32>,
}

/// What an engine offers beyond generating tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// KV pages can be exported and imported. Without it there are no roles `prefill` and `decode`, no pools, no
    /// replication and no migration with KV; a request can still move by being computed again elsewhere.
    pub pages: bool,
}

/// mistral.rs with one model. Dropping it ends what runs, without further effects.
#[derive(Debug)]
pub struct WholeEngine {
    queue: Arc<Queue>,
}

impl WholeEngine {
    /// What this kind of engine offers.
    pub const CAPABILITIES: Capabilities = Capabilities { pages: false };

    /// Loads the model and starts the engine's thread. Blocks while it loads (seconds to minutes): not for async threads.
    /// Needs no runtime; mistral.rs makes one for its thread.
    ///
    /// # Errors
    /// [`EngineError::Load`]: the files, or what mistral.rs says about them.
    pub fn start(options: &WholeOptions) -> Result<(Self, ModelCard), EngineError> {
        let loaded = loader::load(options)?;
        let limits = queue::Limits {
            // See "One at a time on CPU" above.
            max_running: if loaded.cpu { 1 } else { options.max_running.max(1) as usize },
            max_waiting: options.max_waiting as usize,
            window: loaded.card.max_context,
            vocab: loaded.card.vocab,
            filler: loaded.filler,
        };
        Ok((Self { queue: Queue::new(loaded.engine, limits) }, loaded.card))
    }

    /// Takes a request. Its tokens, and at last [`BatchEffect::Done`] or [`BatchEffect::Failed`], go to `sink`; a request
    /// with nothing left to generate is done, and one that this engine cannot serve has failed, before this returns.
    ///
    /// # Errors
    /// Why it was not taken; `sink` is not called then.
    pub fn submit(&self, spec: RequestSpec, sink: EffectSink) -> Result<(), Refusal> {
        self.queue.submit(spec, sink)
    }

    /// Ends an attempt. No token of it reaches its sink once this has returned; mistral.rs frees its KV within a step.
    pub fn cancel(&self, request: RequestId, attempt: Attempt) {
        self.queue.cancel(request, attempt);
    }

    /// Ends one choice (a stop string was found). With the last one the request is done.
    pub fn cancel_choice(&self, seq: SeqKey) {
        self.queue.cancel_choice(seq);
    }

    /// Figures. `running` counts what mistral.rs holds, cancelled sequences included until it has dropped them; all
    /// figures of pages and prefix cache are 0.
    #[must_use]
    pub fn load(&self) -> BatchLoad {
        self.queue.load()
    }

    /// Its KV pages: there are none to be had.
    ///
    /// # Errors
    /// Always [`EngineError::Unsupported`], with what to do instead.
    pub fn kv(&self) -> Result<KvInfo, EngineError> {
        Err(EngineError::Unsupported {
            engine: NAME,
            what: "KV pages (worker-role prefill or decode, pools, moving KV); use worker-role `unified`, or engine.kind = \"paged\""
                .to_owned(),
        })
    }
}

impl Drop for WholeEngine {
    fn drop(&mut self) {
        self.queue.close();
    }
}
