//! Reloading the configuration: on SIGHUP and `POST /v1/reload`. Everything is read, checked and built before anything
//! changes; then it is swapped, or refused and the old one stays. A start goes the same way: [`config::load()`], then
//! [`makers`].

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use config::{Config, Environment, Overrides};
use ractor::concurrency::oneshot;
use ractor::rpc::CallResult;
use serde::Serialize;
use tokio::sync::Mutex;
use tracing::{info, warn};

use crate::controller::consulted::makers;
use crate::doors::{ControllerMsg, Doors, GatewayMsg, WorkerMsg};
use crate::gateway::auth::Keys;
use crate::worker::orderer::orders;

/// Longest wait for a controller to take new policies.
const SWAP: Duration = Duration::from_secs(5);
/// What can change in a node that runs: keys, and beginnings of keys.
const RELOADABLE: [&str; 7] = [
    "policy.",
    "cluster.cluster-policies",
    "worker-policy.",
    "runtime.worker-policy",
    "gateway.",
    "auth.",
    "node.drain-timeout",
];

/// Reloads the configuration of one node.
#[derive(Debug)]
pub struct Reloader {
    overrides: Overrides,
    environment: Environment,
    current: RwLock<Arc<Config>>,
    doors: Doors,
    /// One at a time.
    turn: Mutex<()>,
}

/// What became of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The new configuration counts now; else nothing has changed.
    pub reloaded: bool,
    /// Keys that changed and count from now on.
    pub applied: Vec<String>,
    /// Keys that changed and count after a restart.
    pub needs_restart: Vec<String>,
    /// Why it was refused.
    pub error: Option<String>,
}

impl Reloader {
    /// A reloader for a node that was started with `config`, made from `overrides` and `environment`.
    #[must_use]
    pub fn new(overrides: Overrides, environment: Environment, config: Arc<Config>, doors: Doors) -> Self {
        Self { overrides, environment, current: RwLock::new(config), doors, turn: Mutex::default() }
    }

    /// The configuration that counts now.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file again (the flags and the environment are those of the start) and puts what can change into effect.
    pub async fn reload(&self, asked_by: &'static str) -> Report {
        let _turn = self.turn.lock().await;
        let report = match self.swap().await {
            Ok(report) => report,
            Err(error) => Report { error: Some(error), ..Report::default() },
        };
        let result = if report.reloaded { "reloaded" } else { "refused" };
        metrics::counter!(crate::metrics::RELOADS, "result" => result).increment(1);
        match &report.error {
            Some(error) => warn!(asked_by, error, "reload refused; the old configuration stays"),
            None => info!(asked_by, applied = ?report.applied, "reloaded"),
        }
        if !report.needs_restart.is_empty() {
            warn!(keys = ?report.needs_restart, "changed, and count after a restart only");
        }
        report
    }

    fn set_config(&self, config: Arc<Config>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    async fn swap(&self) -> Result<Report, String> {
        let former = self.config();
        let wanted = config::load(&self.overrides, &self.environment).map_err(|e| e.to_string())?;
        let changed = changed(&former, &wanted).map_err(|e| e.to_string())?;
        let can = |key: &String| {
            RELOADABLE.iter().any(|known| key == known || (known.ends_with('.') && key.starts_with(known)))
        };
        let (applied, needs_restart): (Vec<String>, Vec<String>) = changed.into_iter().partition(can);
        // What needs a restart stays as it is, so that the effective configuration is what a reader of it sees.
        let mut next = former.as_ref().clone();
        next.policy = wanted.policy;
        next.cluster.cluster_policies = wanted.cluster.cluster_policies;
        next.worker_policy = wanted.worker_policy;
        next.runtime.worker_policy = wanted.runtime.worker_policy;
        next.auth = wanted.auth;
        next.gateway = wanted.gateway;
        next.node.drain_timeout = wanted.node.drain_timeout;
        // What may be together with what was wanted need not be with what stays.
        next.validate().map_err(|e| e.to_string())?;
        // The file is read again though its name is the same.
        let keys = Arc::new(Keys::new(next.auth.api_keys().map_err(|e| e.to_string())?));
        let orders = |key: &String| key.starts_with("worker-policy.") || key == "runtime.worker-policy";
        let ordered = applied.iter().any(orders);
        let policies = |key: &String| key.starts_with("policy.") || key == "cluster.cluster-policies";
        let consulted = applied.iter().any(policies);
        if consulted {
            self.set_policies(&next).await?;
        }
        let next = Arc::new(next);
        self.set_config(next.clone());
        // After that: a worker that comes up meanwhile reads it from there.
        if ordered && let Err(error) = self.set_orders(&next).await {
            self.set_config(former.clone());
            if consulted && let Err(stays) = self.set_policies(&former).await {
                warn!(error = stays, "the controller keeps the new policies until the next reload");
            }
            return Err(error);
        }
        self.set_gateways(&next, &keys).await?;
        Ok(Report { reloaded: true, applied, needs_restart, error: None })
    }

    /// What this node's gateways go by. A key that has left the file is good for nothing when this is done: whoever
    /// reloads may rely on that.
    async fn set_gateways(&self, next: &Config, keys: &Arc<Keys>) -> Result<(), String> {
        let mut told = Vec::new();
        self.doors.to_own_gateways(|| GatewayMsg::SetLimits(next.gateway.clone()));
        self.doors.to_own_gateways(|| {
            let (reply, answer) = oneshot();
            told.push(answer);
            GatewayMsg::SetKeys(Arc::clone(keys), reply.into())
        });
        for answer in told {
            // One that ends instead comes up again with what counts now.
            if tokio::time::timeout(SWAP, answer).await.is_err() {
                return Err(
                    "the gateway has not taken the new keys and limits yet, and will; try again".to_owned()
                );
            }
        }
        Ok(())
    }

    /// The policies inside this node's worker. One that is being loaded gets them when it is started.
    async fn set_orders(&self, next: &Config) -> Result<(), String> {
        for (_, worker) in self.doors.workers() {
            let (reply, answer) = oneshot();
            let sent = worker.send_message(WorkerMsg::SetOrders(orders(next), reply.into())).is_ok();
            match tokio::time::timeout(SWAP, answer).await {
                Ok(Ok(result)) if sent => result?,
                _ => return Err("the worker did not answer; try again".to_owned()),
            }
        }
        Ok(())
    }

    /// The controller's policies, all of them or none. A stand-in has none, and no other node's are ours to change.
    async fn set_policies(&self, next: &Config) -> Result<(), String> {
        if !next.node.roles.contains(config::Role::Controller) {
            return Ok(());
        }
        let controller = self.doors.controller().ok_or("the controller is being restarted; try again")?;
        let makers = makers(next);
        match controller.call(|reply| ControllerMsg::SetPolicies(makers, reply), Some(SWAP)).await {
            Ok(CallResult::Success(result)) => result,
            _ => Err("the controller did not answer; try again".to_owned()),
        }
    }
}

/// The keys whose values differ.
fn changed(former: &Config, wanted: &Config) -> Result<Vec<String>, serde_json::Error> {
    let (former, wanted) = (serde_json::to_value(former)?, serde_json::to_value(wanted)?);
    let mut keys = Vec::new();
    differ("", &former, &wanted, &mut keys);
    Ok(keys)
}

fn differ(at: &str, a: &serde_json::Value, b: &serde_json::Value, keys: &mut Vec<String>) {
    match (a, b) {
        (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
            for (name, a) in a {
                let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                differ(&key, a, b.get(name).unwrap_or(&serde_json::Value::Null), keys);
            }
        }
        _ if a != b => keys.push(at.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use ractor::{Actor, ActorProcessingErr, ActorRef};

    use super::*;

    /// A gateway that is busy when it is told of new keys: it takes them when the test says so.
    struct Busy;

    impl Actor for Busy {
        type Msg = GatewayMsg;
        type State = (Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>);
        type Arguments = Self::State;

        async fn pre_start(
            &self,
            _: ActorRef<GatewayMsg>,
            notes: Self::State,
        ) -> Result<Self::State, ActorProcessingErr> {
            Ok(notes)
        }

        async fn handle(
            &self,
            _: ActorRef<GatewayMsg>,
            message: GatewayMsg,
            (asked, go_on): &mut Self::State,
        ) -> Result<(), ActorProcessingErr> {
            if let GatewayMsg::SetKeys(_, reply) = message {
                asked.notify_one();
                go_on.notified().await;
                reply.send(()).unwrap();
            }
            Ok(())
        }
    }

    /// A key that was taken out of the file was still good for requests that came right after the answer.
    #[tokio::test]
    async fn a_reload_is_over_when_the_gateway_has_the_new_keys() {
        let doors = Doors::default();
        let notes: (Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>) = Default::default();
        let (gateway, ended) = Actor::spawn(None, Busy, notes.clone()).await.unwrap();
        doors.add_gateway("g".into(), gateway.get_derived());
        let (overrides, environment) = (Overrides::default(), [("HOME", "/nowhere")].into_iter().collect());
        let config = Arc::new(config::load(&overrides, &environment).unwrap());
        let reloader = Reloader::new(overrides, environment, config, doors);
        let mut reload = Box::pin(reloader.reload("a test"));
        tokio::select! {
            report = &mut reload => panic!("over before the gateway has the keys: {report:?}"),
            () = notes.0.notified() => {}
        }
        notes.1.notify_one();
        let report = reload.await;
        assert!(report.reloaded, "{report:?}");
        gateway.stop(None);
        ended.await.unwrap();
    }

    #[test]
    fn keys_that_differ_are_named_whole() {
        let former = Config::default();
        let mut wanted = former.clone();
        wanted.policy.cache_aware.cache_threshold = 0.5;
        wanted.http.listen = Some("127.0.0.1:1".into());
        wanted.cluster.cluster_policies.pop();
        let keys = changed(&former, &wanted).unwrap();
        let expected = ["cluster.cluster-policies", "http.listen", "policy.cache-aware.cache-threshold"];
        assert_eq!(keys.len(), expected.len(), "{keys:?}");
        assert!(expected.iter().all(|key| keys.contains(&(*key).to_owned())), "{keys:?}");
    }
}
