//! What a pool says of itself to the node's membership, which tells the cluster: where it is, and how full.

use std::time::Duration;

use cluster::wire::{PoolAd, PoolLoad};
use config::ids::WorkerId;
use policies::placement::PoolInfo;
use policies::pool::PoolStats;
use policies::pool::pace::{self, Pace};
use policies::request::RequestSpec;
use ractor::ActorRef;
use tracing::debug;

use super::transfers::{PoolSide, Wish};
use super::{PoolMsg, PoolState};
use crate::clock;
use crate::doors::Doors;
use crate::membership::MembershipMsg;

/// How full it is, is told this often at most.
const PAUSE: Duration = Duration::from_millis(500);

/// What is said, and what was said last.
#[derive(Debug)]
pub(super) struct Offer {
    doors: Doors,
    /// None for a node alone, and from when the pool takes nothing new.
    info: Option<PoolInfo>,
    told: PoolLoad,
    /// What its link carries.
    link: u64,
    pace: Pace,
    /// It will be said again.
    due: bool,
}

impl Offer {
    pub(super) fn new(doors: Doors, id: WorkerId, side: Option<&PoolSide>) -> Self {
        let info = side.map(|side| PoolInfo {
            id,
            address: side.entry.address().to_owned(),
            hardware: side.hardware.clone(),
        });
        let link = side.map_or(0, |side| side.hardware.figures.link);
        Self { doors, info, told: PoolLoad::default(), link, pace: Pace::default(), due: false }
    }

    /// Says it.
    pub(super) fn announce(&mut self, stats: &PoolStats) {
        self.due = false;
        self.told = load(stats);
        let rate = self.rate();
        if let Some(info) = &mut self.info {
            info.hardware.figures.link = rate;
            let info = info.clone();
            self.doors.to_membership(MembershipMsg::Pool(Some(PoolAd { info, load: self.told })));
        }
    }

    /// Says it in a while, where it is news.
    pub(super) fn changed(&mut self, stats: &PoolStats, pool: &ActorRef<PoolMsg>) {
        let Some(info) = &self.info else { return };
        let news = load(stats) != self.told || pace::is_news(info.hardware.figures.link, self.rate());
        if !self.due && news {
            self.due = true;
            pool.send_after(PAUSE, || PoolMsg::Announce);
        }
    }

    /// How fast it gives, to be told what it gives.
    pub(super) const fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// What it gives at; 0 where its link is not known.
    fn rate(&self) -> u64 {
        if self.link == 0 { 0 } else { self.pace.rate(clock::now(), self.link) }
    }

    /// The pool takes nothing new; the membership knows.
    pub(super) fn close(&mut self) {
        self.info = None;
    }

    /// A gateway wants a prompt to be kept that a worker has computed: where that one's pages are to be had.
    pub(super) fn wish(&self, from: WorkerId, spec: Box<RequestSpec>) -> Option<Wish> {
        match self.doors.kv_peer(&from) {
            Some(peer) => {
                let (address, fingerprint, layout) = (peer.address, peer.fingerprint, peer.layout);
                Some(Wish { from, address, fingerprint, layout, spec })
            }
            None => {
                debug!(worker = %from, "a prompt is not kept: its worker exchanges no pages, or is not there");
                None
            }
        }
    }
}

fn load(stats: &PoolStats) -> PoolLoad {
    PoolLoad {
        pages: stats.pages,
        ram: stats.ram.bytes,
        ram_capacity: stats.ram.capacity,
        disk: stats.disk.bytes,
        disk_capacity: stats.disk.capacity,
    }
}

impl PoolState {
    /// Goes on under a new name: controllers ask for everything again.
    pub(super) fn renew(&mut self) {
        let Some(info) = &mut self.offer.info else { return };
        info.id.incarnation = cluster::identity::next_incarnation();
        self.news.renew(info.id.clone());
        self.offer.announce(&self.store.stats());
    }
}
