//! An etcd of one member for an API server, on a machine of its own.

use std::path::Path;

/// The URL for clients on the same machine.
pub(crate) const ETCD: &str = "http://127.0.0.1:2379";
const PEER: &str = "http://127.0.0.1:2380";

/// Returns the arguments.
pub(crate) fn arguments(data: &Path) -> Vec<String> {
    flags(&[
        ("name", "etcd"),
        ("data-dir", &data.display().to_string()),
        ("listen-client-urls", ETCD),
        ("advertise-client-urls", ETCD),
        ("listen-peer-urls", PEER),
        ("initial-advertise-peer-urls", PEER),
        ("initial-cluster", &format!("etcd={PEER}")),
        // The data need not survive a power failure.
        ("unsafe-no-fsync", "true"),
        ("log-level", "warn"),
    ])
}

/// Returns flags of Kubernetes' programs, and of etcd, as arguments.
pub(crate) fn flags(flags: &[(&str, &str)]) -> Vec<String> {
    flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}
