//! One function a value: text in, a type or a refusal out. Flags and fields of the file share them.
//!
//! Functions that take a list check its items together. They return `None` for an empty list, which sets
//! nothing.

mod addresses;
mod names;
mod numbers;
mod words;

use super::error::Refused;

pub use addresses::{BindAddress, NodePortRange, OuterSourceItem};
pub use addresses::{
    controller_address, healthz_address, ip_addresses, metrics_address, node_port_range, node_ports,
    outer_source,
};
pub use addresses::{outer_source_item, range};
pub use names::{
    absolute_path, class, device, device_pattern, namespace, node_name, service_proxy_name, source,
};
pub use numbers::{LONGEST_MAX_SYNC, LONGEST_MIN_SYNC, LONGEST_TIMEOUT, conntrack_seconds, drain, entries};
pub use numbers::{flow_table_size, in_seconds, maglev_size, mark, max_sync_interval, min_sync_interval};
pub use numbers::{seconds, snat_ports};
pub use words::{AlgorithmWord, algorithm, choice, cluster_ip_clients, dispatch, encapsulation};
pub use words::{
    encapsulations, forwarding, log_format, on_off, pod_routes, proxy_mode, reject_unknown, socket_lb,
    switch, xdp,
};
