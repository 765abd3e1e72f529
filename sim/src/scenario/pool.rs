//! Pools of KV pages.

use config::{Dur, Size};
use policies::kv::PageLayout;
use serde::{Deserialize, Serialize};

use super::{Machine, Scenario, invalid, within};
use crate::SimError;

/// `[[pool]]`: pools that are all alike. What a pool keeps counts with the policy `pool-replicate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoolClass {
    /// For people.
    pub name: String,
    /// How many.
    pub count: u32,
    /// Their machine, for its link; that of the scenario where this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Machine>,
    /// As `pool.ram`: RAM for pages.
    pub ram: Size,
    /// As `pool.disk-size`: bytes that files may take; RAM only where this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
    /// What the disk reads a second.
    pub disk_read: Size,
    /// What the disk writes a second.
    pub disk_write: Size,
    /// What each read, write and deletion of a file takes besides.
    pub disk_latency: Dur,
}

impl Default for PoolClass {
    fn default() -> Self {
        Self {
            name: String::new(),
            count: 1,
            hardware: None,
            ram: Size::mib(1024),
            disk: None,
            // An NVMe disk of a server.
            disk_read: Size(3_000_000_000),
            disk_write: Size(2_000_000_000),
            disk_latency: Dur::from_nanos(100_000),
        }
    }
}

impl PoolClass {
    fn validate(&self, page: u64) -> Result<(), SimError> {
        within("pool.count", self.count.into(), 1, 1000)?;
        if let Some(machine) = &self.hardware {
            machine.profile("pool.hardware")?;
        }
        for (key, size) in [("pool.ram", Some(self.ram)), ("pool.disk", self.disk)] {
            if let Some(size) = size.filter(|size| size.bytes() < page) {
                let reason =
                    format!("a page of this model takes {page} bytes; use so much at least, or leave it out");
                return Err(invalid(key, &size, reason));
            }
        }
        within("pool.disk-read (bytes)", self.disk_read.bytes(), 1, u64::MAX)?;
        within("pool.disk-write (bytes)", self.disk_write.bytes(), 1, u64::MAX)?;
        within("pool.disk-latency (ns)", self.disk_latency.as_nanos(), 0, Dur::from_secs(60).as_nanos())
    }
}

impl Scenario {
    /// Pools of all kinds. They are numbered from 0 on, in the order of their kinds.
    #[must_use]
    pub fn pool_count(&self) -> u32 {
        self.pools.iter().map(|class| class.count).fold(0, u32::saturating_add)
    }

    /// The kind of each pool, by its number.
    pub(crate) fn each_pool(&self) -> impl Iterator<Item = &PoolClass> {
        self.pools.iter().flat_map(|class| (0..class.count).map(move |_| class))
    }

    /// Shape of all pages.
    ///
    /// # Errors
    /// An unknown model.
    pub fn layout(&self) -> Result<PageLayout, SimError> {
        let shape = self.model.shape()?;
        Ok(PageLayout {
            page_tokens: self.cluster.page_tokens,
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            element_bytes: shape.element_bytes,
        })
    }

    pub(super) fn validate_pools(&self) -> Result<(), SimError> {
        if self.pools.is_empty() {
            return Ok(());
        }
        let page = self.layout()?.page_bytes() as u64;
        self.pools.iter().try_for_each(|class| class.validate(page))?;
        within("pool.count, of all kinds", self.pool_count().into(), 1, 1000)
    }
}
