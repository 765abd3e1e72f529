//! Workers with the fake engine and pools, each with a KV port of its own, in one process: all that serves but who places.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::cookie::Cookie;
use cluster::wire::{ToGateway, ToWorker, WorkerAd};
use config::ids::{RequestId, TenantId};
use config::{Config, Dur, EngineKind};
use policies::batch::{BatchEffect, BatchLoad};
use policies::kv::page_hashes;
use policies::placement::{KvPeer, Prefix};
use policies::request::{RequestSpec, Token};
use ractor::ActorCell;
use tokio::sync::watch;

use super::*;
use crate::doors::WorkerMsg;
use crate::membership::MembershipMsg;
use crate::testing::{listener, request};
use crate::worker::{Msg, Worker, WorkerArgs, WorkerHealth};

pub(super) const PAGE: usize = 16;
/// Bytes of a page of the fake engine.
const PAGE_BYTES: u64 = 128;

/// How long a test waits for what has to come about.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Nodes {
    doors: Doors,
    told: mpsc::Receiver<ToGateway>,
    config: Arc<Config>,
    last: u64,
    /// Whose requests are made.
    pub(super) tenant: Option<TenantId>,
}

pub(super) struct Member {
    pub(super) id: WorkerId,
    pub(super) door: ActorRef<Msg>,
    pub(super) at: KvPeer,
}

/// A pool with a KV port.
pub(super) struct PoolNode {
    pub(super) id: WorkerId,
    pub(super) pool: ActorRef<PoolMsg>,
    pub(super) ended: JoinHandle<()>,
}

/// A pool with RAM for `ram` pages of the fake engine and, in a folder, disk for `disk`.
pub(super) fn sized(ram: u64, disk: Option<(&Path, u64)>) -> PoolArgs {
    let limits = disk.map(|(_, pages)| DiskLimits {
        capacity: pages * (PAGE_BYTES + disk::OVERHEAD),
        overhead: disk::OVERHEAD,
        write_window: 4 * PAGE_BYTES,
        write_above: ram * PAGE_BYTES,
        min_uses: 1,
        back_off: Span::from_secs(3600),
    });
    let mut args = args(1, disk);
    args.limits.ram = ram * PAGE_BYTES;
    args.limits.disk = limits;
    args
}

/// What a prompt is asked with: no two salts have a page in common.
pub(super) fn prompt(salt: u32, tokens: usize) -> Vec<Token> {
    (0..tokens as u32).map(|i| 33 + (i * 7 + salt * 13 + (i + salt) * i % 31) % 90).collect()
}

/// An answer, and how many tokens of its prompt were not computed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) tokens: Vec<Token>,
    pub(super) cached: usize,
}

impl Nodes {
    pub(super) async fn start() -> Self {
        panic_on_broken();
        let mut config = Config::default();
        config.engine.kind = EngineKind::Fake;
        config.engine.fake.step_overhead = Dur::from_millis(0);
        config.runtime.max_batch_tokens = 64;
        config.cluster.kv_listen = Some("127.0.0.1:0".into());
        let handoff = &mut config.policy.disaggregate;
        // Less than there are to send, so that credit is granted; no limit of time passes.
        handoff.window_pages = 4;
        let never = Dur::from_secs(3600);
        (handoff.accept_within, handoff.progress_within, handoff.lease) = (never, never, never);
        let doors = Doors::default();
        let told = listener(&doors, "g").await;
        let (membership, _) = Actor::spawn(None, Membership, doors.clone()).await.unwrap();
        doors.set_membership(membership);
        Self { doors, told, config: Arc::new(config), last: 0, tenant: None }
    }

    fn id(prefix: &str) -> WorkerId {
        static NEXT: AtomicU64 = AtomicU64::new(5_000_000);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        WorkerId::new(format!("{prefix}{number}").as_str().into(), number)
    }

    async fn entry(&self) -> Arc<KvEntry> {
        let (cookie, _) = Cookie::load(None, Some("a cookie of tests"), None, true).unwrap();
        Arc::new(KvEntry::prepare(&self.config, cookie, None).await.unwrap())
    }

    pub(super) async fn worker(&self) -> Member {
        let id = Self::id("w");
        let (health, mut ready) = watch::channel(WorkerHealth::Loading);
        let args = WorkerArgs {
            node: id.node.clone(),
            incarnation: id.incarnation,
            doors: self.doors.clone(),
            reloader: None,
            health,
            kv: Some(self.entry().await),
            config: self.config.clone(),
            kv_events: None,
            step_log: None,
        };
        let (door, _) = Actor::spawn(None, Worker, args).await.unwrap();
        let loaded = tokio::time::timeout(PATIENCE, ready.wait_for(|health| *health == WorkerHealth::Ready));
        loaded.await.expect("it loads").unwrap();
        until("it is known", || async { self.doors.offers().contains_key(&id) }).await;
        let at = self.doors.offers()[&id].info.kv.clone().unwrap();
        Member { id, door, at }
    }

    /// A pool that all workers know.
    pub(super) async fn pool(&self, args: PoolArgs) -> PoolNode {
        let (id, entry) = (Self::id("p"), self.entry().await);
        let limits = HandoffConfig::from(&self.config.policy.disaggregate);
        let side = Some(PoolSide { entry, limits, hardware: HardwareProfile::default() });
        let args = PoolArgs { id: id.clone(), doors: self.doors.clone(), side, ..args };
        let (pool, ended) = Actor::spawn(None, Pool, args).await.unwrap();
        let prefix = Prefix { from: id.clone(), pool: true, tokens: 0 };
        until("it is known", || async { self.doors.held_at(&prefix).is_some() }).await;
        PoolNode { id, pool, ended }
    }

    /// The names of a prompt's pages.
    fn names(&self, at: &KvPeer, prompt: &[Token]) -> Vec<PageHash> {
        page_hashes(&at.fingerprint.of_tenant(self.tenant.as_ref()), PAGE as u32, prompt)
    }

    /// A request of its own for this prompt.
    pub(super) fn spec(&mut self, at: &KvPeer, prompt: &[Token], max_tokens: u32) -> RequestSpec {
        self.last += 1;
        RequestSpec {
            prompt: prompt.into(),
            hashes: self.names(at, prompt).into(),
            tenant: self.tenant.clone(),
            ..request(self.last, max_tokens)
        }
    }

    /// Has a worker answer; it may fetch the prompt's start from `fetch`, or have it computed by `prefill`.
    pub(super) fn submit(
        &mut self,
        worker: &Member,
        prompt: &[Token],
        fetch: Option<&WorkerId>,
        prefill: Option<&WorkerId>,
    ) -> RequestId {
        let spec = Box::new(self.spec(&worker.at, prompt, 12));
        let tokens = prompt.len() as u32;
        let fetch = fetch.map(|from| {
            Box::new(Prefix { from: from.clone(), pool: from.node.as_str().starts_with('p'), tokens })
        });
        let (to, prefill, id) = (worker.id.clone(), prefill.cloned(), spec.id);
        let submit = ToWorker::Submit { to, gateway: "g".into(), spec, prefill, fetch };
        worker.door.cast(Msg::Door(WorkerMsg::Wire(submit))).unwrap();
        id
    }

    /// As [`Nodes::submit`], and waits for the answer.
    pub(super) async fn ask(
        &mut self,
        worker: &Member,
        prompt: &[Token],
        fetch: Option<&WorkerId>,
        prefill: Option<&WorkerId>,
    ) -> Answer {
        let id = self.submit(worker, prompt, fetch, prefill);
        let mut answer = Answer { tokens: Vec::new(), cached: 0 };
        loop {
            let told = tokio::time::timeout(PATIENCE, self.told.recv()).await.expect("it goes on").unwrap();
            let events = match told {
                ToGateway::Step { events, .. } => events,
                ToGateway::Admission { result, .. } => {
                    assert_eq!(result, Ok(()));
                    continue;
                }
                // Of another one, which a test has ended.
                ToGateway::WorkerLost(_) => continue,
                other => panic!("{other:?}"),
            };
            for event in events {
                match event {
                    // Of one that nobody waits for.
                    BatchEffect::Token(event) if event.seq.request != id => {}
                    BatchEffect::Token(event) => {
                        answer.tokens.push(event.token);
                        answer.cached = event.cached_tokens as usize;
                    }
                    BatchEffect::Done { request, .. } if request == id => return answer,
                    BatchEffect::Done { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Has a pool store a prompt's pages from a worker.
    pub(super) fn store(&mut self, pool: &PoolNode, from: &Member, prompt: &[Token]) {
        let KvPeer { address, fingerprint, layout } = from.at.clone();
        let spec = Box::new(self.spec(&from.at, prompt, 1));
        let from = from.id.clone();
        let wish = Wish { from, address, fingerprint, layout, spec };
        pool.pool.cast(PoolMsg::Store(Box::new(wish))).unwrap();
    }
}

impl Member {
    pub(super) async fn load(&self) -> BatchLoad {
        call_t!(self.door, |reply| Msg::Door(WorkerMsg::Observe(reply)), 60_000).unwrap().load
    }

    /// Nothing is left of requests and transfers.
    pub(super) async fn until_idle(&self) {
        until(&format!("{} holds nothing", self.id), || async {
            let load = self.load().await;
            load.requests == 0 && load.pages_used == 0
        })
        .await;
        until(&format!("{} has no page sets", self.id), || async { sets(&self.door) <= 1 }).await;
    }
}

impl PoolNode {
    pub(super) async fn stats(&self) -> PoolStats {
        call_t!(self.pool, PoolMsg::Observe, 60_000).unwrap()
    }

    /// Nothing is under way; what was asked for before has ended.
    pub(super) async fn until_idle(&self) -> PoolStats {
        until(&format!("{} is idle", self.id), || async {
            let under_way = call_t!(self.pool, PoolMsg::Transfers, 60_000).unwrap();
            let stats = self.stats().await;
            under_way == [0; 3] && (stats.puts, stats.readers, stats.waiting_bytes) == (0, 0, 0)
        })
        .await;
        until(&format!("{} has no page sets", self.id), || async { sets(&self.pool) == 0 }).await;
        self.stats().await
    }

    /// The pages of a prompt that are here.
    pub(super) async fn pages(&self, like: &KvPeer, prompt: &[Token]) -> Vec<Vec<u8>> {
        let (fingerprint, pages) = (like.fingerprint, page_hashes(&like.fingerprint, PAGE as u32, prompt));
        let get = |reply| PoolMsg::Get { owner: owner(), fingerprint, pages, reply };
        let pages = call_t!(self.pool, get, 60_000).unwrap();
        pages.iter().map(|page| page.to_vec()).collect()
    }
}

fn sets(of: &ActorCell) -> usize {
    let is = |cell: &ActorCell| cell.is_message_type_of::<crate::worker::pages::PageSetMsg>() == Some(true);
    of.get_children().iter().filter(|cell| is(cell)).count()
}

pub(super) async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "not in a minute: {what}");
}

/// Knows what workers and pools offer.
struct Membership;

impl Actor for Membership {
    type Msg = MembershipMsg;
    type State = (Doors, BTreeMap<WorkerId, WorkerAd>, BTreeMap<WorkerId, String>);
    type Arguments = Doors;

    async fn pre_start(
        &self,
        _: ActorRef<MembershipMsg>,
        doors: Doors,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok((doors, BTreeMap::new(), BTreeMap::new()))
    }

    async fn handle(
        &self,
        _: ActorRef<MembershipMsg>,
        message: MembershipMsg,
        (doors, ads, pools): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            MembershipMsg::Worker(Some(ad)) => {
                ads.insert(ad.info.id.clone(), ad);
                doors.set_offers(ads.clone());
            }
            MembershipMsg::Pool(Some(ad)) => {
                pools.insert(ad.info.id, ad.info.address);
                doors.set_pools(pools.clone());
            }
            _ => {}
        }
        Ok(())
    }
}
