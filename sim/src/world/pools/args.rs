//! What pools are started with, as live ones' configuration says it.

use config::ids::WorkerId;
use policies::cost::{Hardware, HardwareProfile};
use policies::kv::handoff::HandoffConfig;
use policies::placement::PoolInfo;
use policies::pool::{DiskLimits, PoolLimits};
use policies::time::Span;

use crate::SimError;
use crate::node::pool::{DiskSpeed, PoolArgs};
use crate::scenario::{PoolClass, Scenario};

/// As a live pool's: bytes that are written at a time, and that may wait for room meanwhile.
const WINDOW: u64 = 64 << 20;
/// As a live pool's: the disk is left alone for so long when it is full.
const BACK_OFF: Span = Span::from_secs(10);
/// As a live pool's: a writer or a reader that does nothing for so long is given up.
const LEASE: Span = Span::from_secs(30);
/// As a live pool's: bytes that a file has beside its page.
const OVERHEAD: u64 = 128 + 4095;

fn profile(scenario: &Scenario, class: &PoolClass) -> Result<HardwareProfile, SimError> {
    class.hardware.as_ref().unwrap_or(&scenario.hardware).profile("pool.hardware")
}

/// The machine of each pool.
pub(in crate::world) fn machines(scenario: &Scenario) -> Result<Vec<Hardware>, SimError> {
    scenario.each_pool().map(|class| profile(scenario, class).map(|profile| profile.figures)).collect()
}

/// What each pool is started with, but for its name.
pub(in crate::world) fn args(scenario: &Scenario) -> Result<Vec<PoolArgs>, SimError> {
    let layout = scenario.layout()?;
    let args = |class| {
        let hardware = profile(scenario, class)?;
        let PoolClass { disk_read, disk_write, disk_latency, .. } = class;
        Ok(PoolArgs {
            info: PoolInfo { id: WorkerId::new("".into(), 0), address: String::new(), hardware },
            limits: limits(class),
            layout,
            handoff: HandoffConfig::from(&scenario.policy.disaggregate),
            speed: DiskSpeed {
                read: disk_read.bytes(),
                write: disk_write.bytes(),
                latency: Span(disk_latency.as_nanos()),
            },
        })
    };
    scenario.each_pool().map(args).collect()
}

fn limits(class: &PoolClass) -> PoolLimits {
    let ram = class.ram.bytes();
    let disk = class.disk.map(|size| DiskLimits {
        capacity: size.bytes(),
        overhead: OVERHEAD,
        write_window: WINDOW,
        write_above: ram / 2,
        min_uses: 1,
        back_off: BACK_OFF,
    });
    PoolLimits { ram, incoming: WINDOW, lease: LEASE, disk }
}
