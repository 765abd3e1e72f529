//! What pools of KV pages did.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::node::Pools as Nodes;

/// What the pools of a cluster did together, and each.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pools {
    /// Tokens of prompts that workers fetched from pools and did not compute.
    pub fetched_tokens: u64,
    /// Pages given from RAM.
    pub given_ram: u64,
    /// Pages given that were read from disk.
    pub given_disk: u64,
    /// Pages stored.
    pub stored: u64,
    /// Pages written to disk.
    pub written: u64,
    /// Pages dropped altogether for want of room.
    pub dropped: u64,
    /// Writes that failed because a disk was full.
    pub no_space: u64,
    /// Times that a pool gave up writing for a while.
    pub pauses: u64,
    /// Each of them, by name.
    pub each: Vec<PoolFigures>,
}

/// What a pool did, in all its lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PoolFigures {
    /// Its name.
    pub name: String,
    /// Times that it started.
    pub lives: u32,
    /// Pages in RAM at the end.
    pub ram_pages: u64,
    /// Pages on disk at the end; of one that was dead then, not known.
    pub disk_pages: u64,
    /// Pages that workers asked for.
    pub looked_up: u64,
    /// Of those, found.
    pub found: u64,
    /// Tokens of prompts that workers fetched from it and did not compute.
    pub fetched_tokens: u64,
    /// Pages given from RAM.
    pub given_ram: u64,
    /// Pages given that were read from disk.
    pub given_disk: u64,
    /// Pages stored.
    pub stored: u64,
    /// Pages written to disk.
    pub written: u64,
    /// Copies dropped from RAM for want of room.
    pub evicted_ram: u64,
    /// Files deleted for want of room.
    pub evicted_disk: u64,
    /// Pages dropped altogether for want of room.
    pub dropped: u64,
    /// Pages that are gone because a file was.
    pub lost: u64,
    /// Writes that failed because the disk was full.
    pub no_space: u64,
    /// Times that writing was given up for a while.
    pub pauses: u64,
    /// Prompts to be kept, by how that ended.
    pub puts: BTreeMap<&'static str, u64>,
    /// Prompts that were offered and not taken, by why.
    pub refused: BTreeMap<String, u64>,
    /// Transfers from workers to it, by how they ended.
    pub taken: BTreeMap<&'static str, u64>,
    /// Transfers from it to workers, by how they ended.
    pub given: BTreeMap<&'static str, u64>,
}

impl Pools {
    /// None where there is no pool.
    pub(crate) fn of(pools: &Nodes, page_tokens: u32) -> Option<Self> {
        let mut all = Self::default();
        for (node, tally, pool) in pools.each() {
            let c = tally.counts;
            let stats = pool.map(crate::node::Pool::stats).unwrap_or_default();
            let one = PoolFigures {
                name: node.to_string(),
                lives: tally.lives,
                ram_pages: stats.ram.pages,
                disk_pages: stats.disk.pages,
                looked_up: c.looked_up,
                found: c.found,
                fetched_tokens: tally.fetched_pages * u64::from(page_tokens),
                given_ram: c.given_ram,
                given_disk: c.given_disk,
                stored: c.stored,
                written: c.written,
                evicted_ram: c.evicted_ram,
                evicted_disk: c.evicted_disk,
                dropped: c.dropped,
                lost: c.lost,
                no_space: c.no_space,
                pauses: c.pauses,
                puts: tally.puts,
                refused: tally.refused,
                taken: tally.takes,
                given: tally.gives,
            };
            all.fetched_tokens += one.fetched_tokens;
            all.given_ram += one.given_ram;
            all.given_disk += one.given_disk;
            all.stored += one.stored;
            all.written += one.written;
            all.dropped += one.dropped;
            all.no_space += one.no_space;
            all.pauses += one.pauses;
            all.each.push(one);
        }
        (!all.each.is_empty()).then_some(all)
    }

    /// In one line.
    pub(super) fn text(&self) -> String {
        let Self {
            fetched_tokens, given_ram, given_disk, stored, written, dropped, no_space, pauses, ..
        } = self;
        let full = match no_space {
            0 => String::new(),
            _ => format!("; {no_space} writes found a disk full, {pauses} pauses"),
        };
        format!(
            "{fetched_tokens} tokens fetched; pages: {given_ram} given from RAM, {given_disk} from disk, {stored} stored, \
             {written} written, {dropped} dropped{full}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_in_a_line() {
        let some =
            Pools { fetched_tokens: 640, given_ram: 30, given_disk: 10, stored: 50, ..Pools::default() };
        assert_eq!(
            some.text(),
            "640 tokens fetched; pages: 30 given from RAM, 10 from disk, 50 stored, 0 written, 0 dropped"
        );
        let full = Pools { no_space: 3, pauses: 1, ..some };
        assert!(full.text().ends_with("0 dropped; 3 writes found a disk full, 1 pauses"), "{}", full.text());
        assert_eq!(Pools::of(&Nodes::new(Vec::new(), crate::watch::Checks::Every), 16), None);
    }
}
