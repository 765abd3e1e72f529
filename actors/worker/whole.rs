//! Bridge to the whole mistral.rs engine: it schedules for itself and is driven by requests. The worker above sees the
//! same messages as from the scheduler.

use std::time::Duration;

use cluster::wire::ToWorker;
use config::ids::WorkerId;
use engine::whole::WholeEngine;
use policies::batch::BatchEffect;
use policies::step::SeqKey;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tracing::debug;

use crate::clock;
use crate::doors::Doors;
use crate::worker::scheduler::{Outbox, SchedulerMsg};

/// How often the load is looked at while nothing else happens.
const TICK: Duration = Duration::from_millis(250);

/// The bridge actor.
#[derive(Debug)]
pub struct Whole;

/// What a bridge is started with.
#[derive(Debug)]
pub struct WholeArgs {
    /// The node's doors.
    pub doors: Doors,
    /// The worker that it serves for.
    pub worker: WorkerId,
    /// The engine.
    pub engine: Box<WholeEngine>,
}

/// The bridge's mutable state.
#[derive(Debug)]
pub struct WholeState {
    engine: Box<WholeEngine>,
    outbox: Outbox,
    draining: bool,
}

impl Actor for Whole {
    type Msg = SchedulerMsg;
    type State = WholeState;
    type Arguments = WholeArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<SchedulerMsg>,
        args: WholeArgs,
    ) -> Result<WholeState, ActorProcessingErr> {
        myself.send_interval(TICK, || SchedulerMsg::Tick);
        Ok(WholeState { engine: args.engine, outbox: Outbox::new(args.doors, args.worker), draining: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<SchedulerMsg>,
        message: SchedulerMsg,
        state: &mut WholeState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            // Its KV is its own: it computes every prompt itself.
            SchedulerMsg::Wire(ToWorker::Submit { to: _, gateway, prefill: _, fetch: _, spec }) => {
                let (request, attempt) = (spec.id, spec.attempt);
                let result = if state.draining {
                    Err(policies::batch::Refusal::Draining)
                } else {
                    let sink = move |effect: BatchEffect| {
                        // After the bridge's end nobody waits for the event.
                        let _ = myself.cast(SchedulerMsg::Events(vec![effect]));
                    };
                    state.engine.submit(*spec, std::sync::Arc::new(sink))
                };
                debug!(request = %request, attempt = %attempt, ?result, "submitted");
                state.outbox.admitted(&gateway, request, attempt, result);
            }
            SchedulerMsg::Wire(ToWorker::Fetch { gateway, spec, .. }) => {
                let why = "its engine keeps its KV pages to itself".to_owned();
                state.outbox.fetched(&gateway, (spec.id, spec.attempt), Err(why));
            }
            SchedulerMsg::Wire(ToWorker::Take { gateway, spec, .. }) => {
                let refusal = policies::batch::Refusal::Malformed("its engine takes no running request over");
                state.outbox.admitted(&gateway, spec.id, spec.attempt, Err(refusal));
            }
            SchedulerMsg::Wire(ToWorker::Cancel { request, attempt }) => {
                state.engine.cancel(request, attempt);
                state.outbox.forget(request, attempt);
            }
            SchedulerMsg::Wire(ToWorker::CancelChoice { request, attempt, choice }) => {
                state.engine.cancel_choice(SeqKey { request, attempt, choice });
            }
            // The engine generates at its own pace, and a session has room for all of it; the worker describes its model;
            // and it has no pages that others could look for.
            SchedulerMsg::Wire(
                ToWorker::Grant { .. }
                | ToWorker::DescribeModel { .. }
                | ToWorker::KvResync { .. }
                | ToWorker::SetRole { .. },
            ) => {}
            SchedulerMsg::GatewayLeft(gateway) => {
                for (request, attempt) in state.outbox.forget_gateway(&gateway) {
                    state.engine.cancel(request, attempt);
                }
            }
            SchedulerMsg::Rename(worker) => state.outbox.rename(worker),
            SchedulerMsg::Events(events) => state.outbox.send(events),
            SchedulerMsg::Drain => state.draining = true,
            // Only the scheduler has a host that reports steps, and pages that travel.
            SchedulerMsg::Step(_) | SchedulerMsg::Tick | SchedulerMsg::Kv(_) | SchedulerMsg::Port(_) => {}
            // The engine orders its requests itself, which the configuration's check says.
            SchedulerMsg::Ranks { .. } | SchedulerMsg::RestartOrder => {}
            SchedulerMsg::SetOrders(_, reply) => {
                let _ = reply.send(Ok(()));
            }
            SchedulerMsg::Observe { mut base, reply } => {
                base.load = state.engine.load();
                // Whoever asked may have given up.
                let _ = reply.send(base);
            }
        }
        // Its KV is its own, so that there are no page sets to end.
        drop(state.outbox.take_ended());
        state.outbox.report(clock::now(), state.engine.load());
        Ok(())
    }
}
