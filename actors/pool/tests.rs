use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::kv::PagePool;
use cluster::wire::ToController;
use policies::invariant::panic_on_broken;
use policies::kv::events::KvEvent;
use ractor::call_t;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::doors::ControllerMsg;

mod failures;
mod nodes;
mod transfers;

const FP: Fingerprint = Fingerprint([0; 32]);
const BYTES: usize = 1000;

/// A pool with RAM for `ram` pages and, in a folder, disk for `disk`.
struct Rig {
    pool: ActorRef<PoolMsg>,
    ended: JoinHandle<()>,
}

fn args(ram: u64, disk: Option<(&Path, u64)>) -> PoolArgs {
    let limits = disk.map(|(_, pages)| DiskLimits {
        capacity: pages * (BYTES as u64 + disk::OVERHEAD),
        overhead: disk::OVERHEAD,
        write_window: 4 * BYTES as u64,
        write_above: ram * BYTES as u64,
        min_uses: 1,
        back_off: Span::from_secs(3600),
    });
    PoolArgs {
        id: id(),
        doors: Doors::default(),
        side: None,
        limits: PoolLimits {
            ram: ram * BYTES as u64,
            incoming: 1 << 20,
            lease: Span::from_secs(3600),
            disk: limits,
        },
        folder: disk.map(|(folder, _)| folder.to_owned()),
        holder: "node a".into(),
        create: Create::default(),
    }
}

impl Rig {
    async fn start(args: PoolArgs) -> Self {
        panic_on_broken();
        let (pool, ended) = Actor::spawn(None, Pool, args).await.unwrap();
        Self { pool, ended }
    }

    async fn put(&self, names: &[u8]) -> Result<(usize, PutEnd), PutRefusal> {
        let pages = names.iter().map(|n| page(*n)).collect();
        call_t!(self.pool, |reply| PoolMsg::Put { owner: owner(), run: run(names), pages, reply }, 10_000)
            .unwrap()
    }

    /// How many pages of these come back; each with what was put.
    async fn get(&self, names: &[u8]) -> usize {
        let ask = |reply| PoolMsg::Get { owner: owner(), fingerprint: FP, pages: hashes(names), reply };
        let pages = call_t!(self.pool, ask, 10_000).unwrap();
        for (page, name) in pages.iter().zip(names) {
            assert_eq!(page[..], [*name; BYTES]);
        }
        pages.len()
    }

    async fn stats(&self) -> PoolStats {
        call_t!(self.pool, PoolMsg::Observe, 10_000).unwrap()
    }

    /// Waits until the figures are so.
    async fn until(&self, what: impl Fn(&PoolStats) -> bool) -> PoolStats {
        let wait = async {
            loop {
                let stats = self.stats().await;
                if what(&stats) {
                    return stats;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("figures in time")
    }

    async fn flush(&self) {
        self.pool.cast(PoolMsg::Close).unwrap();
        let wait = async { while !call_t!(self.pool, PoolMsg::IsFlushed, 10_000).unwrap() {} };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("flushed in time");
    }

    async fn stop(self) {
        self.pool.stop(None);
        self.ended.await.unwrap();
    }
}

/// A controller that hands on what it is told.
struct Controller {
    door: ActorRef<ControllerMsg>,
    told: mpsc::Receiver<ToController>,
}

impl Controller {
    async fn next(&mut self) -> ToController {
        tokio::time::timeout(Duration::from_secs(20), self.told.recv()).await.expect("in time").unwrap()
    }
}

async fn controller() -> Controller {
    let (tell, told) = mpsc::channel(64);
    let (door, _) = Actor::spawn(None, Listener, tell).await.unwrap();
    Controller { door, told }
}

struct Listener;

impl Actor for Listener {
    type Msg = ControllerMsg;
    type State = mpsc::Sender<ToController>;
    type Arguments = mpsc::Sender<ToController>;

    async fn pre_start(
        &self,
        _: ActorRef<ControllerMsg>,
        tell: mpsc::Sender<ToController>,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(tell)
    }

    async fn handle(
        &self,
        _: ActorRef<ControllerMsg>,
        message: ControllerMsg,
        tell: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let ControllerMsg::Wire(message) = message {
            tell.send(message).await?;
        }
        Ok(())
    }
}

/// The pool's.
fn id() -> WorkerId {
    WorkerId::new("p".into(), 7)
}

fn owner() -> WorkerId {
    WorkerId::new("w".into(), 1)
}

/// A prompt is named by its pages: those of two prompts that begin alike are the same up to there.
fn hashes(names: &[u8]) -> Vec<PageHash> {
    (1..=names.len())
        .map(|end| {
            let mut hash = [0; 16];
            hash[..end].copy_from_slice(&names[..end]);
            hash[15] = end as u8;
            PageHash(hash)
        })
        .collect()
}

fn run(names: &[u8]) -> Run {
    Run { fingerprint: FP, parent: None, pages: hashes(names), page_bytes: BYTES as u64 }
}

fn page(name: u8) -> PageBuf {
    let mut page = PagePool::new(BYTES, 1, 0).try_take().unwrap();
    page.fill(name);
    page.freeze()
}

/// Files in a pool's folder, all told.
fn files(folder: &Path) -> usize {
    let groups = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir());
    groups.map(|group| std::fs::read_dir(group).unwrap().count()).sum()
}

#[tokio::test]
async fn a_pool_gives_back_the_run_it_holds_and_forgets_what_it_dropped() {
    let rig = Rig::start(args(3, None)).await;
    assert_eq!(rig.put(&[1, 2, 3]).await, Ok((3, PutEnd::Complete)));
    assert_eq!(rig.put(&[1, 2, 3]).await, Err(PutRefusal::Known));
    assert_eq!((rig.get(&[1, 2, 3, 4]).await, rig.get(&[9]).await), (3, 0));
    assert_eq!(rig.put(&[7]).await, Ok((1, PutEnd::Complete)));
    assert_eq!((rig.get(&[1, 2, 3]).await, rig.get(&[7]).await), (2, 1), "the end of the run was dropped");
    let stats = rig.stats().await;
    assert_eq!((stats.ram.pages, stats.ram.bytes, stats.readers), (3, 3000, 0));
    rig.stop().await;
}

#[tokio::test]
async fn what_leaves_ram_is_read_from_disk_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(args(2, Some((folder.path(), 50)))).await;
    for names in [&[1, 2, 3, 4, 5][..], &[1, 2, 8], &[6, 7]] {
        assert_eq!(rig.put(names).await, Ok((names.len(), PutEnd::Complete)));
    }
    assert_eq!((rig.get(&[1, 2, 3, 4, 5]).await, rig.get(&[1, 2, 8]).await), (5, 3));
    let stats = rig.stats().await;
    assert!(stats.ram.pages <= 2 && stats.counts.given_disk > 0, "{stats:?}");
    rig.flush().await;
    assert_eq!(rig.put(&[9]).await, Err(PutRefusal::Closing));
    rig.stop().await;
    assert_eq!(files(folder.path()), 8);
    // The thread has let go of the folder. One file is damaged, one is gone.
    let at = |n: usize| {
        let name: String = hashes(&[1, 2, 3, 4, 5])[n].0.iter().map(|b| format!("{b:02x}")).collect();
        folder.path().join("00".repeat(32)).join(name + ".page")
    };
    let mut raw = std::fs::read(at(3)).unwrap();
    raw[500] ^= 1;
    std::fs::write(at(3), raw).unwrap();
    let rig = Rig::start(args(2, Some((folder.path(), 50)))).await;
    assert_eq!(rig.stats().await.pages, 8);
    assert_eq!(
        (rig.get(&[6, 7]).await, rig.get(&[1, 2, 8]).await, rig.get(&[1, 2, 3, 4, 5]).await),
        (2, 3, 3)
    );
    rig.until(|stats| stats.disk.pages == 6).await;
    assert_eq!(rig.put(&[1, 2, 3, 4, 5]).await, Ok((5, PutEnd::Complete)));
    assert_eq!(rig.get(&[1, 2, 3, 4, 5]).await, 5);
    rig.stop().await;
}

#[tokio::test]
async fn two_pools_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(args(2, Some((folder.path(), 50)))).await;
    let error = Actor::spawn(None, Pool, args(2, Some((folder.path(), 50)))).await.unwrap_err().to_string();
    assert!(error.contains("in use by node a") && error.contains("pool.disk"), "{error}");
    rig.stop().await;
    Rig::start(args(2, Some((folder.path(), 50)))).await.stop().await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_full_disk_stops_writes_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let create = Create(Arc::new({
        let full = Arc::clone(&full);
        move |path| {
            let file = (Create::default().0)(path)?;
            if full.load(Ordering::Relaxed) {
                OpenOptions::new().write(true).open("/dev/full")
            } else {
                Ok(file)
            }
        }
    }));
    let started = PoolArgs { create, ..args(2, Some((folder.path(), 50))) };
    let rig = Rig::start(started.clone()).await;
    rig.put(&[1, 2, 3, 4]).await.unwrap();
    full.store(true, Ordering::Relaxed);
    for n in 10..20 {
        assert_eq!(rig.put(&[n]).await, Ok((1, PutEnd::Complete)));
    }
    let stats = rig.until(|stats| stats.paused).await;
    assert!(stats.counts.no_space >= 2 && stats.counts.pauses == 1, "{stats:?}");
    let kept = rig.get(&[1, 2, 3, 4]).await;
    assert!(kept >= 2, "{kept} of what was written is read");
    assert_eq!(rig.get(&[19]).await, 1);
    rig.stop().await;
    // The disk has room again, and so has the next pool; it would have tried by itself after its back-off.
    full.store(false, Ordering::Relaxed);
    let rig = Rig::start(started).await;
    assert_eq!(rig.get(&[1, 2, 3, 4]).await, kept);
    assert_eq!(rig.put(&[1, 2, 3, 4, 5, 6]).await, Ok((6, PutEnd::Complete)));
    rig.stop().await;
}

#[tokio::test]
async fn a_controller_is_told_everything_and_then_what_changes() {
    let (args, mut told) = (args(2, None), controller().await);
    args.doors.set_controller("c".into(), told.door.clone(), false);
    let rig = Rig::start(args).await;
    rig.put(&[1, 2]).await.unwrap();
    rig.pool.cast(PoolMsg::Wire(ToPool::KvResync { controller: "c".into() })).unwrap();
    let ToController::PoolSnapshot { pool, seq, part: 0, parts: 1, pages } = told.next().await else {
        panic!("no snapshot")
    };
    assert_eq!((pool, seq, pages), (id(), 0, hashes(&[1, 2])));
    // One page for another: the end of the longer prompt goes.
    rig.put(&[3]).await.unwrap();
    let ToController::PoolEvents { pool, seq: 1, events } = told.next().await else { panic!("no events") };
    let stored = KvEvent::Stored { parent: None, pages: hashes(&[3]), tokens: Vec::new() };
    assert_eq!((pool, events), (id(), vec![KvEvent::Removed { pages: vec![hashes(&[1, 2])[1]] }, stored]));
    // Another one that asks does not break the numbers.
    rig.pool.cast(PoolMsg::Wire(ToPool::KvResync { controller: "c".into() })).unwrap();
    let ToController::PoolSnapshot { seq: 1, pages, .. } = told.next().await else { panic!("no snapshot") };
    assert_eq!(pages.len(), 2);
    rig.put(&[4]).await.unwrap();
    let ToController::PoolEvents { seq: 2, .. } = told.next().await else { panic!("no events") };
    rig.stop().await;
}
