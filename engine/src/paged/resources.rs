//! What this machine has to offer: cores and memory, within what its container allows.

use std::collections::BTreeSet;
use std::fs;

/// Taken for the free memory where the system does not tell.
const UNKNOWN_MEMORY: u64 = 1 << 30;

/// Physical cores that this process may use; two hardware threads of one core share the units that compute.
pub(crate) fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(parse_list);
    let core = |cpu: usize| {
        let read =
            |what: &str| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}")).ok();
        Some((read("physical_package_id")?, read("core_id")?))
    };
    let cores: Option<BTreeSet<_>> = allowed.and_then(|cpus| cpus.into_iter().map(core).collect());
    match cores {
        Some(cores) if !cores.is_empty() => cores.len().min(logical),
        _ => logical,
    }
}

/// `0-3,8` as numbers.
fn parse_list(text: &str) -> Vec<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    text.split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((from, to)) => Some(number(from)?..=number(to)?),
            None => number(part).map(|n| n..=n),
        })
        .flatten()
        .collect()
}

/// Bytes of memory that are free now: the machine's, or what the container's limit leaves if that is less.
pub(crate) fn free_memory() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let machine = kib.map_or(UNKNOWN_MEMORY, |kib| kib * 1024);
    // Version 2 of control groups, and version 1.
    let limits = [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ];
    let read = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let container = limits.iter().filter_map(|(limit, used)| Some(read(limit)?.saturating_sub(read(used)?)));
    container.fold(machine, u64::min)
}

/// Bytes of this process that are in memory now, where the system tells.
#[doc(hidden)]
pub fn resident_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_list("\t0-3,8, 10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("5"), [5]);
        assert_eq!(parse_list("x,-"), Vec::<usize>::new());
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let logical = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=logical).contains(&physical_cores()));
        assert!(free_memory() > 1 << 20);
    }
}
