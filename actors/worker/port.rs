//! The worker's KV port: started with the first load, kept over reloads of the engine, started again where it fails.

use std::time::Duration;

use policies::cost::HardwareProfile;
use policies::kv::handoff::HandoffConfig;
use policies::kv::handoff::chunking::Rates;
use policies::kv::{Fingerprint, PageLayout};
use policies::placement::KvPeer;
use ractor::{ActorProcessingErr, ActorRef};
use tracing::error;

use super::{Msg, WorkerState};
use crate::kv::{self, Exchanged, KvPortArgs};
use crate::worker::load::Executor;
use crate::worker::scheduler::{KvSide, SchedulerMsg};

/// Pause before a port that failed is started again.
const AGAIN: Duration = Duration::from_millis(500);

/// Memory for pages on their way: as many pages as this holds, on the way in and on the way out each, but no fewer than
/// [`FEWEST`].
const BUFFER_BYTES: usize = 256 * 1024 * 1024;
const FEWEST: usize = 64;

impl WorkerState {
    /// What the scheduler needs for transfers; none for a node alone.
    pub(super) async fn kv_side(
        &mut self,
        myself: &ActorRef<Msg>,
        layout: PageLayout,
    ) -> Result<Option<KvSide>, ActorProcessingErr> {
        let Some(entry) = self.args.kv.clone() else { return Ok(None) };
        let buffers = buffers(layout);
        self.layout = Some(layout);
        let port = match &self.port {
            Some(port) => port.clone(),
            None => {
                let exchanged = Exchanged::One { layout, pages: buffers };
                let args = KvPortArgs { entry, worker: self.id.clone(), exchanged };
                kv::start(args, myself.get_cell()).await?
            }
        };
        self.port = Some(port.clone());
        let config = &self.args.config;
        let limits = HandoffConfig::from(&config.policy.disaggregate);
        let rates = self.rates();
        Ok(Some(KvSide { port, supervisor: myself.get_cell(), limits, rates, buffers }))
    }

    /// Where other workers exchange pages with this one; none where its engine keeps them to itself.
    pub(super) fn kv_peer(&self, executor: &Executor, fingerprint: Fingerprint) -> Option<KvPeer> {
        let Executor::Steps(engine) = executor else { return None };
        let address = self.args.kv.as_ref()?.address().to_owned();
        Some(KvPeer { address, fingerprint, layout: engine.kv().layout })
    }

    /// What chunks are sized by until something is measured: a prefill of some hundred tokens a second, which is a CPU's,
    /// and the link that the configuration says.
    fn rates(&self) -> Rates {
        let link = HardwareProfile::from(&self.args.config.cluster.hardware).figures.link;
        Rates { compute: 500.0, link: if link == 0 { 1e9 } else { link as f64 } }
    }

    pub(super) fn port_lost(&mut self, myself: &ActorRef<Msg>, why: Option<String>) {
        error!(
            why = why.unwrap_or_default(),
            "the KV port failed; prompts are computed where they are needed until it is back"
        );
        metrics::counter!(crate::metrics::RESTARTS, "actor" => "kv-port").increment(1);
        self.port = None;
        myself.send_after(AGAIN, || Msg::RestartPort);
    }

    pub(super) async fn restart_port(&mut self, myself: &ActorRef<Msg>) {
        let (Some(entry), Some(layout), None) = (self.args.kv.clone(), self.layout, &self.port) else {
            return;
        };
        let exchanged = Exchanged::One { layout, pages: buffers(layout) };
        let args = KvPortArgs { entry, worker: self.id.clone(), exchanged };
        match kv::start(args, myself.get_cell()).await {
            Ok(port) => {
                self.port = Some(port.clone());
                self.forward(SchedulerMsg::Port(port));
            }
            Err(e) => {
                error!(error = %e, "the KV port cannot be started again");
                myself.send_after(AGAIN, || Msg::RestartPort);
            }
        }
    }
}

fn buffers(layout: PageLayout) -> usize {
    (BUFFER_BYTES / layout.page_bytes().max(1)).clamp(FEWEST, 4096)
}
