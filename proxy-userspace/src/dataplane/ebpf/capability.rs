//! The check for missing capabilities.

use std::fs;
use std::path::Path;

use super::error::OpenError;

const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Fails with the names of missing capabilities. The check comes first, because the kernel's EPERM
/// does not name a capability.
pub fn check() -> Result<(), OpenError> {
    let path = Path::new("/proc/thread-self/status");
    let status =
        fs::read_to_string(path).map_err(|error| OpenError::File { path: path.to_owned(), error })?;
    let missing = missing(effective(&status).unwrap_or(u64::MAX));
    if missing.is_empty() {
        return Ok(());
    }
    Err(OpenError::Capability { missing: missing.join(", ") })
}

/// Returns the capabilities that the agent needs and this thread lacks; none if that is unknown.
#[must_use]
pub fn missing_capabilities() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    missing(effective(&status).unwrap_or(u64::MAX))
}

/// Returns whether this thread may enter other network namespaces.
pub fn may_enter_namespaces() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    effective(&status).is_none_or(|effective| effective & 1 << CAP_SYS_ADMIN != 0)
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing(effective: u64) -> Vec<&'static str> {
    let has = |capability: u32| effective & 1 << capability != 0;
    // CAP_SYS_ADMIN includes the two capabilities split off it.
    [
        ("CAP_BPF", has(CAP_BPF) || has(CAP_SYS_ADMIN)),
        ("CAP_PERFMON", has(CAP_PERFMON) || has(CAP_SYS_ADMIN)),
        ("CAP_NET_ADMIN", has(CAP_NET_ADMIN)),
    ]
    .into_iter()
    .filter(|(_, has)| !has)
    .map(|(name, _)| name)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capabilities_that_are_missing_are_named() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert!(missing(0x1ff_ffff_ffff).is_empty());
        assert_eq!(missing(0), ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"]);
        assert_eq!(missing(1 << CAP_SYS_ADMIN), ["CAP_NET_ADMIN"]);
        assert_eq!(missing(1 << CAP_NET_ADMIN | 1 << CAP_BPF), ["CAP_PERFMON"]);
    }
}
