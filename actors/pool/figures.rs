//! A pool's figures for Prometheus.

use metrics::{counter, gauge};
use policies::pool::{Counts, PoolStats};

use crate::metrics::{
    POOL_BYTES, POOL_CAPACITY, POOL_DISK_ERRORS, POOL_DISK_PAUSED, POOL_DISK_PAUSES, POOL_EVICTED,
    POOL_FOUND, POOL_GIVEN, POOL_LOOKED_UP, POOL_LOST, POOL_PAGES, POOL_PUTS, POOL_READERS, POOL_STORED,
    POOL_STUCK, POOL_WRITTEN,
};

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Figures(Option<PoolStats>);

impl Figures {
    /// Tells what has changed.
    pub(super) fn tell(&mut self, stats: PoolStats) {
        if self.0 == Some(stats) {
            return;
        }
        let before = self.0.replace(stats).map_or_else(Counts::default, |stats| stats.counts);
        for (tier, held) in [("ram", stats.ram), ("disk", stats.disk)] {
            gauge!(POOL_PAGES, "tier" => tier).set(held.pages as f64);
            gauge!(POOL_BYTES, "tier" => tier).set(held.bytes as f64);
            gauge!(POOL_CAPACITY, "tier" => tier).set(held.capacity as f64);
        }
        gauge!(POOL_PUTS).set(stats.puts as f64);
        gauge!(POOL_READERS).set(stats.readers as f64);
        gauge!(POOL_STUCK).set(stats.stuck_bytes as f64);
        gauge!(POOL_DISK_PAUSED).set(if stats.paused { 1.0 } else { 0.0 });
        let now = stats.counts;
        counter!(POOL_LOOKED_UP).increment(now.looked_up - before.looked_up);
        counter!(POOL_FOUND).increment(now.found - before.found);
        counter!(POOL_GIVEN, "tier" => "ram").increment(now.given_ram - before.given_ram);
        counter!(POOL_GIVEN, "tier" => "disk").increment(now.given_disk - before.given_disk);
        counter!(POOL_STORED).increment(now.stored - before.stored);
        counter!(POOL_WRITTEN).increment(now.written - before.written);
        counter!(POOL_EVICTED, "tier" => "ram").increment(now.evicted_ram - before.evicted_ram);
        counter!(POOL_EVICTED, "tier" => "disk").increment(now.evicted_disk - before.evicted_disk);
        counter!(POOL_LOST).increment(now.lost - before.lost);
        counter!(POOL_DISK_PAUSES).increment(now.pauses - before.pauses);
        let errors = [
            ("no_space", now.no_space - before.no_space),
            ("permission", now.permission - before.permission),
            ("missing", now.missing - before.missing),
            ("other", now.other - before.other),
        ];
        for (error, more) in errors {
            counter!(POOL_DISK_ERRORS, "error" => error).increment(more);
        }
    }
}
