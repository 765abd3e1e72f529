//! `POST /v1/chat/completions` and `/v1/completions`: from body to sessions to answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use config::GatewayConfig;
use config::ids::{Attempt, ModelId};
use engine::text::StopSet;
use futures_util::stream::SelectAll;
use futures_util::{Stream, StreamExt};
use policies::kv::page_hashes;
use policies::order::deadline;
use policies::request::{RequestSpec, ResumedChoice, Sampling, prop_millis};
use policies::time::{Span, Time};

use super::{REQUEST_ID, body};
use crate::clock;
use crate::gateway::Shared;
use crate::gateway::auth::Identity;
use crate::gateway::collect::Collector;
use crate::gateway::error::{ApiError, unix_seconds};
use crate::gateway::openai::body::Body;
use crate::gateway::openai::reply::Reply;
use crate::gateway::openai::{Generation, chat as chat_request, completion};
use crate::gateway::session::{self, SessionArgs, SessionOut, SessionStream};
use crate::gateway::stages::Placed;
use crate::gateway::stream;
use crate::gateway::tokenize::{Prepared, off_thread, prepare};

/// The sessions of one HTTP request, one a prompt.
pub(crate) type Merged = SelectAll<Tagged>;

/// A session with the index of its prompt.
#[derive(Debug)]
pub(crate) struct Tagged {
    prompt: usize,
    session: SessionStream,
}

impl Stream for Tagged {
    type Item = (usize, SessionOut);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let out = ready!(Pin::new(&mut self.session).poll_next(cx));
        Poll::Ready(out.map(|out| (self.prompt, out)))
    }
}

type Validate = fn(Body, &HeaderMap, &GatewayConfig, u64) -> Result<Generation, ApiError>;

/// `POST /v1/chat/completions`.
pub(super) async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    generate(shared, request, chat_request::validate).await
}

/// `POST /v1/completions`.
pub(super) async fn completions(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    generate(shared, request, completion::validate).await
}

async fn generate(shared: Arc<Shared>, request: Request, validate: Validate) -> Result<Response, ApiError> {
    let arrived = clock::now();
    let (head, body) = request.into_parts();
    let identity = head.extensions.get().cloned().unwrap_or(Identity::ANYBODY);
    let request_id =
        head.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let bytes = body::read(&shared, &head.headers, body).await?;
    if shared.draining.load(Ordering::Relaxed) {
        return Err(ApiError::unavailable(
            "draining",
            "this server is being stopped and takes no new requests",
        ));
    }
    let permit = Arc::clone(&shared.in_work).try_acquire_owned().map_err(|_| {
        let limit = shared.http.max_concurrent_requests;
        ApiError::overloaded(format!(
            "{limit} requests are in work, the limit of http.max-concurrent-requests"
        ))
    })?;
    let prepared = {
        let (shared_too, size) = (Arc::clone(&shared), bytes.len());
        let work = move || {
            let parsed = Body::parse(&bytes, body::keep(&shared_too))?;
            // The bytes are not needed while the prompt is tokenized.
            drop(bytes);
            let generation = validate(parsed, &head.headers, &shared_too.limits(), fresh_seed())?;
            prepare(&shared_too, generation)
        };
        off_thread(&shared, size, work).await?
    };
    let (mut reply, mut sessions) = start(&shared, prepared, identity, arrived).await?;
    // The one place that says which of our ids belongs to which of a client's.
    tracing::debug!(request_id, id = reply.id, model = reply.served.card.name, "generation started");
    let (early, workers) = accepted(&mut sessions, reply.prompts.len(), &mut reply.placements).await?;
    let mut response = if reply.output.stream {
        stream::respond(reply, sessions, early, permit)
    } else {
        whole(reply, sessions, early).await?
    };
    if let Ok(value) = HeaderValue::from_str(&workers) {
        response.headers_mut().insert("x-served-by", value);
    }
    Ok(response)
}

/// Starts one session a prompt.
async fn start(
    shared: &Arc<Shared>,
    prepared: Prepared,
    identity: Identity,
    arrived: Time,
) -> Result<(Reply, Merged), ApiError> {
    let Prepared { generation, served, prompts, budgets } = prepared;
    let (said, limits) = (generation.session.clone(), shared.limits());
    let deadline = ends_at(shared, &generation, arrived);
    let stops = (!generation.stop.is_empty()).then(|| Arc::new(StopSet::new(&generation.stop)));
    let end_tokens: Arc<[u32]> = served.text.end_ids().into();
    let props = Arc::new(generation.props);
    let output = generation.output;
    // What another tenant computed is nothing that this one could find.
    let fingerprint = served.card.fingerprint.of_tenant(identity.tenant.as_ref());
    let mut sessions = Merged::new();
    let mut first = None;
    for (index, (prompt, &budget)) in prompts.iter().zip(&budgets).enumerate() {
        let id = shared.ids.next_id();
        first.get_or_insert(id);
        // Prompts of one request draw from different streams, as its choices do.
        let sampling = Sampling {
            seed: generation.sampling.seed.wrapping_add(index as u64),
            ..generation.sampling.clone()
        };
        let spec = RequestSpec {
            id,
            attempt: Attempt::default(),
            model: ModelId::from(served.card.name.as_str()),
            prompt: Arc::clone(&prompt.tokens),
            hashes: page_hashes(&fingerprint, served.card.page_tokens, &prompt.tokens).into(),
            resumed: vec![ResumedChoice::default(); output.n as usize],
            max_tokens: budget.max(1),
            end_tokens: Arc::clone(&end_tokens),
            ignore_end: generation.ignore_end,
            sampling: Arc::new(sampling),
            prompt_logprobs: output.echo && output.logprobs,
            props: Arc::clone(&props),
            session: said.clone(),
            tenant: identity.tenant.clone(),
            weight: identity.weight,
            credit: limits.stream_credit,
            deadline,
        };
        let text = Arc::clone(&served.text);
        let (shared, stops) = (Arc::clone(shared), stops.clone());
        let door =
            shared.door().ok_or_else(|| ApiError::unavailable("unavailable", "the gateway is restarting"))?;
        let page_tokens = served.card.page_tokens;
        let discard_output = budget == 0;
        let args = SessionArgs { shared, spec, text, stops, discard_output, page_tokens, fingerprint };
        let session = session::start(args, &door).await.map_err(|e| {
            tracing::error!(error = %e, "a session did not start");
            ApiError::unavailable("unavailable", "the gateway is restarting")
        })?;
        sessions.push(Tagged { prompt: index, session });
    }
    let kind = if output.chat { "chatcmpl" } else { "cmpl" };
    let id = first.map_or_else(|| kind.to_owned(), |id| format!("{kind}-{id}"));
    let reply = Reply { id, created: unix_seconds(), served, output, prompts, placements: Vec::new() };
    Ok((reply, sessions))
}

/// The end of the request's time: the configured limit, or earlier where the client's hint says so.
fn ends_at(shared: &Shared, generation: &Generation, arrived: Time) -> Time {
    let limit = Span::from(shared.http.request_timeout.get());
    let hint = prop_millis(&generation.props, deadline::PROP).filter(|hint| *hint > Span::ZERO);
    arrived + hint.map_or(limit, |hint| hint.min(limit))
}

/// Waits until every session has a worker, so that whatever goes wrong before is a plain HTTP error. Gives what came
/// meanwhile, and the workers' names.
async fn accepted(
    sessions: &mut Merged,
    prompts: usize,
    placements: &mut Vec<Placed>,
) -> Result<(VecDeque<(usize, SessionOut)>, String), ApiError> {
    let mut early = VecDeque::new();
    let mut waiting = vec![true; prompts];
    let mut workers: Vec<String> = Vec::new();
    while waiting.contains(&true) {
        let (prompt, out) =
            sessions.next().await.ok_or_else(|| ApiError::internal("the request ended early"))?;
        waiting[prompt] = false;
        match out {
            SessionOut::Failed(failure) => return Err(ApiError::from(&failure)),
            SessionOut::Accepted(placed) => {
                let name = placed.worker.node.to_string();
                if !workers.contains(&name) {
                    workers.push(name);
                }
                placements.push(placed);
            }
            out => early.push_back((prompt, out)),
        }
    }
    Ok((early, workers.join(",")))
}

async fn whole(
    reply: Reply,
    mut sessions: Merged,
    mut early: VecDeque<(usize, SessionOut)>,
) -> Result<Response, ApiError> {
    let mut collector = Collector::new(reply);
    while !collector.is_done() {
        let next = match early.pop_front() {
            Some(early) => Some(early),
            None => sessions.next().await,
        };
        let (prompt, out) = next.ok_or_else(|| ApiError::internal("the request ended early"))?;
        collector.take(prompt, out)?;
    }
    Ok(collector.into_response())
}

/// A seed for a request that names none, from the operating system. Without its randomness (a sandbox, say) the clock
/// has to do: such a seed is no secret.
fn fresh_seed() -> u64 {
    getrandom::u64().unwrap_or_else(|_| policies::rng::mix64(clock::now().0))
}
