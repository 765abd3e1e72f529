//! What has to hold at pools at the end.

use policies::ensure_invariant;
use policies::invariant::Broken;

use crate::network::Addr;
use crate::node::pool::Shelves;
use crate::world::World;

impl World {
    /// Nobody puts or reads pages any more, and no disk has anything to do.
    pub(in crate::world) fn nothing_left_at_pools(&self) -> Result<(), Broken> {
        for (index, (node, _, pool)) in (0..).zip(self.pools.each()) {
            let at = Addr::Pool(index);
            let Some(pool) = pool.filter(|_| !self.network.is_frozen(at) && !self.network.is_dead(at)) else {
                continue;
            };
            pool.store().check()?;
            let (left, stats) = (pool.shelves(), pool.stats());
            let held = stats.puts + stats.readers + stats.waiting_bytes + stats.writing_bytes;
            ensure_invariant!(
                left == Shelves::default() && held == 0,
                "sim_pool_uses_end",
                "{node}: {left:?}, {stats:?}"
            );
        }
        Ok(())
    }
}
