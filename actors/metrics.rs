//! Names of the figures that a node exports at `/metrics`, and what they mean.
//!
//! Names follow vLLM's where the meaning is the same, so that existing dashboards work; ours begin with `actor_node_`.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use policies::invariant::{self, Broken};
use tracing::error;

/// HTTP requests answered. Labels: `path`, `status`.
pub const HTTP_REQUESTS: &str = "actor_node_http_requests_total";
/// Generation requests by how they ended. Label `outcome`: `success`, `cancelled`, `worker_lost`, `overloaded`, …
pub const REQUESTS: &str = "actor_node_requests_total";
/// Panics of background tasks. Label `task`.
pub const TASK_PANICS: &str = "actor_node_task_panics_total";
/// Restarts of supervised actors. Label `actor`.
pub const RESTARTS: &str = "actor_node_actor_restarts_total";
/// Broken invariants seen in the cores. Label `name`.
pub const BROKEN_INVARIANTS: &str = "actor_node_broken_invariants_total";
/// Sessions that live at the gateway.
pub const SESSIONS: &str = "actor_node_gateway_sessions";
/// Sequences being computed.
pub const RUNNING: &str = "vllm:num_requests_running";
/// Requests waiting at the worker.
pub const WAITING: &str = "vllm:num_requests_waiting";
/// Share of KV pages in use, 0 to 1.
pub const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
/// KV pages held by sequences, and those that are kept for conversations.
pub const KV_PAGES_USED: &str = "actor_node_kv_pages_used";
/// KV pages with reusable content that no sequence holds.
pub const KV_PAGES_CACHED: &str = "actor_node_kv_pages_cached";
/// KV pages that are kept for conversations between their turns; one that two share counts twice.
pub const KV_PAGES_KEPT: &str = "actor_node_kv_pages_kept";
/// KV pages in all.
pub const KV_PAGES_TOTAL: &str = "actor_node_kv_pages_total";
/// Prompt tokens looked up in the prefix cache.
pub const PREFIX_QUERIES: &str = "vllm:prefix_cache_queries_total";
/// Prompt tokens found in the prefix cache.
pub const PREFIX_HITS: &str = "vllm:prefix_cache_hits_total";
/// Prompt tokens received.
pub const PROMPT_TOKENS: &str = "vllm:prompt_tokens_total";
/// Tokens generated.
pub const GENERATION_TOKENS: &str = "vllm:generation_tokens_total";
/// Tokens computed in prefill, recomputation included.
pub const PREFILLED_TOKENS: &str = "actor_node_prefilled_tokens_total";
/// Sequences that lost their pages to others.
pub const PREEMPTIONS: &str = "vllm:num_preemptions_total";
/// Time to first token.
pub const TTFT: &str = "vllm:time_to_first_token_seconds";
/// Time between tokens of a stream.
pub const INTER_TOKEN: &str = "vllm:inter_token_latency_seconds";
/// Time from request to last token.
pub const E2E: &str = "vllm:e2e_request_latency_seconds";
/// Duration of engine steps.
pub const STEP: &str = "actor_node_engine_step_seconds";
/// Tokens in an engine step.
pub const STEP_TOKENS: &str = "actor_node_engine_step_tokens";

/// KV pages that wait for their content from another worker.
pub const KV_PAGES_RECEIVING: &str = "actor_node_kv_pages_receiving";
/// KV pages that are kept until another worker has them.
pub const KV_PAGES_HELD: &str = "actor_node_kv_pages_held";
/// Hand-offs of KV pages that are over. Labels: `end` (`receiver`, `sender`), `outcome`.
pub const KV_TRANSFERS: &str = "actor_node_kv_transfers_total";
/// Bytes of KV pages handed off. Label `end`.
pub const KV_TRANSFER_BYTES: &str = "actor_node_kv_transfer_bytes_total";
/// KV messages of transfers that were over, or of others.
pub const KV_IGNORED: &str = "actor_node_kv_ignored_messages_total";
/// Time from asking another worker for a prompt to its last page and first tokens.
pub const PD_PREFILL: &str = "actor_node_pd_prefill_seconds";
/// Time from a prompt's first page to the last.
pub const PD_TRANSFER: &str = "actor_node_pd_transfer_seconds";
/// Time from a prompt's last page to the worker that goes on having taken it over.
pub const PD_COMMIT: &str = "actor_node_pd_commit_seconds";
/// Tokens a second of a request's answer after the first, where prompts may be computed elsewhere. Label `prefill`:
/// `remote`, `local`.
pub const PD_DECODE_RATE: &str = "actor_node_pd_decode_tokens_per_second";
/// 99th percentile of the gaps between tokens of one request, where prompts may be computed elsewhere. Label `prefill`.
pub const PD_TAIL: &str = "actor_node_pd_inter_token_p99_seconds";
/// Lines that are missing in a log of requests or steps because its file was too slow or could not be written. Label `log`:
/// the key of the configuration that names the file.
pub const RECORD_LOST: &str = "actor_node_record_lost_lines_total";
/// Waiting prompts that another worker was asked to compute (worker policy `offload`), by how that ended. Label `outcome`:
/// `computed`, `failed` (and then computed here), `withdrawn` (given up, or called back for want of pages).
pub const OFFLOADED: &str = "actor_node_offload_prompts_total";
/// Their tokens that were computed there instead of here.
pub const OFFLOADED_TOKENS: &str = "actor_node_offload_tokens_total";
/// Prompts that other workers compute for this one at its wish.
pub const OFFLOAD_OUTSTANDING: &str = "actor_node_offload_outstanding";
/// Migrations of running requests, by how they ended. Label `outcome`: `moved`, `stayed`, `elsewhere`, `ended`, `refused`.
pub const MIGRATIONS: &str = "actor_node_migrations_total";
/// Batches of KV events published for routers of others.
pub const KV_EVENT_BATCHES: &str = "actor_node_kv_event_batches_total";
/// KV events in them.
pub const KV_EVENTS: &str = "actor_node_kv_events_total";
/// KV events dropped because too many batches waited; everything is published anew after that.
pub const KV_EVENTS_DROPPED: &str = "actor_node_kv_events_dropped_total";

/// KV pages that a pool holds. Label `tier`: `ram`, `disk`.
pub const POOL_PAGES: &str = "actor_node_pool_pages";
/// Their bytes; on disk with what a file takes beside its page, and with what is being written. Label `tier`.
pub const POOL_BYTES: &str = "actor_node_pool_bytes";
/// Bytes that a pool may hold (`pool.ram`, `pool.disk-size`). Label `tier`.
pub const POOL_CAPACITY: &str = "actor_node_pool_capacity_bytes";
/// Prompts whose pages a pool was to store. Label `outcome`: `complete`; `part`: some of the pages came; `failed`: none did;
/// `known`, `under_way`: there was nothing to do; `too_large`, `refused`; `dropped`: too many waited.
pub const POOL_STORES: &str = "actor_node_pool_stores_total";
/// Prompts that wait until a pool fetches their pages.
pub const POOL_STORES_WAITING: &str = "actor_node_pool_stores_waiting";
/// Puts under way at a pool.
pub const POOL_PUTS: &str = "actor_node_pool_puts";
/// Readers of a pool's pages.
pub const POOL_READERS: &str = "actor_node_pool_readers";
/// Bytes of files that a pool could neither use nor delete; they count against `pool.disk-size`.
pub const POOL_STUCK: &str = "actor_node_pool_stuck_bytes";
/// 1 while a pool writes nothing to its disk because that is full or fails.
pub const POOL_DISK_PAUSED: &str = "actor_node_pool_disk_paused";
/// Pages that a pool was asked for.
pub const POOL_LOOKED_UP: &str = "actor_node_pool_looked_up_pages_total";
/// Of those, found.
pub const POOL_FOUND: &str = "actor_node_pool_found_pages_total";
/// Pages that a pool gave. Label `tier`: where they were.
pub const POOL_GIVEN: &str = "actor_node_pool_given_pages_total";
/// Pages that a pool stored.
pub const POOL_STORED: &str = "actor_node_pool_stored_pages_total";
/// Pages that a pool wrote to its disk.
pub const POOL_WRITTEN: &str = "actor_node_pool_written_pages_total";
/// Copies of pages that left a tier for want of room. Label `tier`.
pub const POOL_EVICTED: &str = "actor_node_pool_evicted_pages_total";
/// Pages that were gone, damaged or unreadable when they were to be read from disk.
pub const POOL_LOST: &str = "actor_node_pool_lost_pages_total";
/// Failures of a pool's disk. Label `error`: `no_space`, `permission`, `missing`, `other`.
pub const POOL_DISK_ERRORS: &str = "actor_node_pool_disk_errors_total";
/// Times that a pool gave up writing to its disk for a while.
pub const POOL_DISK_PAUSES: &str = "actor_node_pool_disk_pauses_total";

/// Nodes of the cluster, this one included. Label `state`.
pub const NODES: &str = "actor_node_cluster_nodes";
/// Nodes that were lost. Label `why`: `closed`, `silent`, `replaced`, `goodbye`.
pub const LOST_NODES: &str = "actor_node_cluster_lost_nodes_total";
/// Nodes that were turned away at the door. Label `reason`.
pub const REFUSED_NODES: &str = "actor_node_cluster_refused_nodes_total";
/// Actors that ractor_cluster announces to every peer: the doors, and nothing that grows with work.
pub const ANNOUNCED_ACTORS: &str = "actor_node_cluster_announced_actors";
/// Messages between nodes that could not be read or written. Label `door`.
pub const WIRE_FAILURES: &str = "actor_node_wire_failures_total";
/// 1 while no controller is there and the gateway places by its own choice.
pub const WITHOUT_CONTROLLER: &str = "actor_node_without_controller";
/// Requests that the gateway placed by its own choice for want of a controller.
pub const STAND_IN_PLACEMENTS: &str = "actor_node_stand_in_placements_total";

/// Requests that this node's controller has booked on workers.
pub const BOOKED: &str = "actor_node_controller_booked";
/// Requests that wait at this node's controller for a worker with room.
pub const QUEUED: &str = "actor_node_controller_queued";

/// Reloads of the configuration. Label `result`: `reloaded`, `refused`.
pub const RELOADS: &str = "actor_node_reloads_total";
/// Prompt tokens that the controller's directory expected at the worker that it chose.
pub const PREDICTED_HITS: &str = "actor_node_predicted_hit_tokens_total";
/// Prompt tokens that were found there.
pub const ACTUAL_HITS: &str = "actor_node_actual_hit_tokens_total";
/// Requests whose expected and found tokens differ by more than a page.
pub const MISPREDICTED: &str = "actor_node_mispredicted_hits_total";
/// What policies said about requests. Labels: `policy`, `mode`, `action`.
pub const POLICY_DECISIONS: &str = "actor_node_policy_decisions_total";
/// Requests worth a prefill worker that had to go without one. Label `reason`.
pub const PD_FALLBACKS: &str = "actor_node_pd_fallback_total";
/// Changes of a worker's role while it ran. Labels: `cause` (`admin`, `policy`), `role` (the new one).
pub const ROLE_SWITCHES: &str = "actor_node_role_switches_total";
/// Time to an opinion. Label `policy`.
pub const POLICY_SECONDS: &str = "actor_node_policy_seconds";

/// Logs and counts a broken invariant of a core; panics in tests ([`invariant::panic_on_broken`]).
pub fn enforce(core: &'static str, result: Result<(), Broken>) {
    if let Some(broken) = invariant::enforce(result) {
        error!(core, invariant = broken.name, detail = broken.detail, "an invariant is broken");
        metrics::counter!(BROKEN_INVARIANTS, "name" => broken.name).increment(1);
    }
}

/// Registers the descriptions; called once, before anything is recorded.
pub fn describe() {
    describe_counter!(HTTP_REQUESTS, "HTTP requests answered, by path and status");
    describe_counter!(REQUESTS, "Generation requests, by outcome");
    describe_counter!(TASK_PANICS, "Panics of background tasks, by task");
    describe_counter!(RESTARTS, "Restarts of supervised actors, by actor");
    describe_counter!(BROKEN_INVARIANTS, "Broken invariants seen in the cores");
    describe_gauge!(SESSIONS, "Sessions that live at the gateway");
    describe_gauge!(RUNNING, "Sequences being computed");
    describe_gauge!(WAITING, "Requests waiting at the worker");
    describe_gauge!(KV_USAGE, "Share of KV pages in use, 0 to 1");
    describe_gauge!(KV_PAGES_USED, "KV pages held by sequences");
    describe_gauge!(KV_PAGES_CACHED, "KV pages with reusable content that no sequence holds");
    describe_gauge!(KV_PAGES_KEPT, "KV pages that are kept for conversations between their turns");
    describe_gauge!(KV_PAGES_TOTAL, "KV pages in all");
    describe_counter!(PREFIX_QUERIES, "Prompt tokens looked up in the prefix cache");
    describe_counter!(PREFIX_HITS, "Prompt tokens found in the prefix cache");
    describe_counter!(PROMPT_TOKENS, "Prompt tokens received");
    describe_counter!(GENERATION_TOKENS, "Tokens generated");
    describe_counter!(PREFILLED_TOKENS, "Tokens computed in prefill, recomputation included");
    describe_counter!(PREEMPTIONS, "Sequences that lost their pages to others");
    describe_gauge!(KV_PAGES_RECEIVING, "KV pages that wait for their content from another worker");
    describe_gauge!(KV_PAGES_HELD, "KV pages kept until another worker has them");
    describe_counter!(KV_TRANSFERS, "Hand-offs of KV pages, by end and outcome");
    describe_counter!(KV_TRANSFER_BYTES, Unit::Bytes, "Bytes of KV pages handed off, by end");
    describe_counter!(KV_IGNORED, "KV messages of transfers that were over");
    describe_histogram!(PD_PREFILL, Unit::Seconds, "Time to a prompt's last page from another worker");
    describe_histogram!(PD_TRANSFER, Unit::Seconds, "Time from a prompt's first page to its last");
    describe_histogram!(PD_COMMIT, Unit::Seconds, "Time from a prompt's last page to taking it over");
    describe_histogram!(PD_DECODE_RATE, "Tokens a second of an answer, by where the prompt is computed");
    describe_histogram!(PD_TAIL, Unit::Seconds, "Gaps, 99th percentile, by where the prompt is computed");
    describe_counter!(RECORD_LOST, "Lines that are missing in a log of requests or steps");
    describe_counter!(OFFLOADED, "Waiting prompts that another worker was asked to compute, by outcome");
    describe_counter!(OFFLOADED_TOKENS, "Prompt tokens that another worker computed instead of this one");
    describe_gauge!(OFFLOAD_OUTSTANDING, "Prompts that other workers compute for this one at its wish");
    describe_counter!(MIGRATIONS, "Migrations of running requests, by outcome");
    describe_counter!(KV_EVENT_BATCHES, "Batches of KV events published for routers of others");
    describe_counter!(KV_EVENTS, "KV events published for routers of others");
    describe_counter!(KV_EVENTS_DROPPED, "KV events dropped because too many batches waited");
    describe_gauge!(POOL_PAGES, "KV pages that the pool holds, by tier");
    describe_gauge!(POOL_BYTES, Unit::Bytes, "Bytes of the pool's pages, by tier");
    describe_gauge!(POOL_CAPACITY, Unit::Bytes, "Bytes that the pool may hold, by tier");
    describe_counter!(POOL_STORES, "Prompts whose pages the pool was to store, by outcome");
    describe_gauge!(POOL_STORES_WAITING, "Prompts that wait until the pool fetches their pages");
    describe_gauge!(POOL_PUTS, "Puts under way at the pool");
    describe_gauge!(POOL_READERS, "Readers of the pool's pages");
    describe_gauge!(POOL_STUCK, Unit::Bytes, "Bytes of files that the pool can neither use nor delete");
    describe_gauge!(POOL_DISK_PAUSED, "1 while the pool writes nothing to its disk");
    describe_counter!(POOL_LOOKED_UP, "Pages that the pool was asked for");
    describe_counter!(POOL_FOUND, "Pages that the pool was asked for and had");
    describe_counter!(POOL_GIVEN, "Pages that the pool gave, by tier");
    describe_counter!(POOL_STORED, "Pages that the pool stored");
    describe_counter!(POOL_WRITTEN, "Pages that the pool wrote to its disk");
    describe_counter!(POOL_EVICTED, "Copies of pages that left a tier of the pool for want of room");
    describe_counter!(POOL_LOST, "Pages of the pool that could not be read from disk");
    describe_counter!(POOL_DISK_ERRORS, "Failures of the pool's disk, by kind");
    describe_counter!(POOL_DISK_PAUSES, "Times that the pool gave up writing to its disk for a while");
    describe_gauge!(NODES, "Nodes of the cluster, by state");
    describe_counter!(LOST_NODES, "Nodes that were lost, by reason");
    describe_counter!(REFUSED_NODES, "Nodes that were turned away");
    describe_gauge!(ANNOUNCED_ACTORS, "Actors of this process that other nodes can reach");
    describe_counter!(WIRE_FAILURES, "Messages between nodes that could not be read or written");
    describe_gauge!(WITHOUT_CONTROLLER, "1 while no controller is there");
    describe_counter!(STAND_IN_PLACEMENTS, "Requests placed by the gateway itself for want of a controller");
    describe_gauge!(BOOKED, "Requests that this node's controller has booked on workers");
    describe_gauge!(QUEUED, "Requests that wait at this node's controller for a worker with room");
    describe_counter!(PREDICTED_HITS, "Prompt tokens expected in the chosen worker's cache");
    describe_counter!(ACTUAL_HITS, "Prompt tokens found in the chosen worker's cache");
    describe_counter!(MISPREDICTED, "Requests whose expected and found hits differ by more than a page");
    describe_counter!(RELOADS, "Reloads of the configuration, by result");
    describe_counter!(POLICY_DECISIONS, "What policies said about requests, by policy, mode and action");
    describe_counter!(PD_FALLBACKS, "Requests worth a prefill worker that had to go without one, by reason");
    describe_counter!(ROLE_SWITCHES, "Changes of a worker's role while it ran, by cause and new role");
    describe_histogram!(POLICY_SECONDS, Unit::Seconds, "Time to a policy's opinion");
    describe_histogram!(TTFT, Unit::Seconds, "Time to first token");
    describe_histogram!(INTER_TOKEN, Unit::Seconds, "Time between tokens of a stream");
    describe_histogram!(E2E, Unit::Seconds, "Time from request to last token");
    describe_histogram!(STEP, Unit::Seconds, "Duration of engine steps");
    describe_histogram!(STEP_TOKENS, Unit::Count, "Tokens in an engine step");
}
