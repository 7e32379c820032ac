//! Every metric of the agent, once: name, type, labels and help. The reference page is made from this list.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows while the agent or its maps live.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Observations, counted by size.
    Histogram,
}

impl Kind {
    /// The name in Prometheus' text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The description of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The registered name: a counter's has no `_total`.
    base: &'static str,
    /// The type.
    pub kind: Kind,
    /// The names of its labels, in the order in which they are written.
    pub labels: &'static [&'static str],
    /// The help text, without a full stop.
    pub help: &'static str,
}

impl Definition {
    /// The registered name: a counter's without `_total`.
    #[must_use]
    pub const fn base(&self) -> &'static str {
        self.base
    }

    /// The name that people query.
    #[must_use]
    pub fn name(&self) -> String {
        let suffix = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{suffix}", self.base)
    }

    /// The unit of a value: the one at the end of the name, by Prometheus' convention, or none.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.base.ends_with(&format!("_{unit}")))
    }

    pub(super) fn register(&self, registry: &mut Registry, metric: impl Metric) {
        registry.register(self.base, self.help, metric);
    }

    /// Begins the metric in a collector's text.
    pub(super) fn encode<'e>(
        &self,
        encoder: &'e mut DescriptorEncoder<'_>,
    ) -> Result<MetricEncoder<'e>, fmt::Error> {
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        encoder.encode_descriptor(self.base, self.help, None, kind)
    }
}

/// Declares the metrics and the list of them, so that none is left out of the list.
macro_rules! catalogue {
    ($($constant:ident = $kind:ident $base:literal [$($label:literal),*], $help:literal;)+) => {
        $(pub(super) const $constant: Definition =
            Definition { base: $base, kind: Kind::$kind, labels: &[$($label),*], help: $help };)+

        /// All metrics, in the order of the reference page.
        pub const CATALOGUE: &[Definition] = &[$($constant),+];
    };
}

catalogue! {
    PACKETS = Counter "millrace_packets" ["program", "reason"],
        "Packets that were not dropped, by program and reason";
    BYTES = Counter "millrace_bytes" ["program", "reason"],
        "Bytes of the packets that were not dropped, link-layer headers included";
    DROPPED_PACKETS = Counter "millrace_dropped_packets" ["program", "reason"],
        "Packets that were dropped, by program and reason";
    DROPPED_BYTES = Counter "millrace_dropped_bytes" ["program", "reason"],
        "Bytes of the packets that were dropped, link-layer headers included";
    SERVICE_PACKETS = Counter "millrace_service_packets" ["namespace", "service", "port", "ip_family"],
        "Packets from clients to a Service port";
    SERVICE_BYTES = Counter "millrace_service_bytes" ["namespace", "service", "port", "ip_family"],
        "Bytes of the packets from clients to a Service port";
    SERVICE_CONNECTIONS = Counter "millrace_service_connections" ["namespace", "service", "port", "ip_family", "event"],
        "Connections to a Service port that this node translated, by event: opened, established, refused by the endpoint, reset by it later; absent for a port without any";
    SERVICE_DROPPED_PACKETS = Counter "millrace_service_dropped_packets" ["namespace", "service", "port", "ip_family", "reason"],
        "Packets from clients to a Service port that were dropped, by reason; absent for a port without any";
    READY = Gauge "millrace_ready" ["condition"],
        "State of each condition of /readyz: 1 if it holds, else 0; the node is ready if all hold";
    SELF_TEST_FAILED = Gauge "millrace_self_test_failed" [],
        "1 if a program is detached or gives a wrong verdict, else 0";
    CHECK_FINDINGS = Gauge "millrace_check_findings" ["check", "result"],
        "Warnings (WARN) and failures (FAIL) of the checks that the agent runs each minute; 'millrace check' has the words";
    DEGRADED_SERVICE_PORTS = Gauge "millrace_degraded_service_ports" [],
        "Service ports of one address family with a failed operation, which the next sync tries again";
    SYNC_FAILURES = Gauge "millrace_sync_failures" ["concern"],
        "Failures of the last sync that belong to no Service port, by what they concern: the node (it serves no traffic), a device, or a map that is full";
    PROBLEMS = Counter "millrace_problems" ["kind", "topic", "severity"],
        "Problems found in objects, by kind of object, topic (such as conflict) and severity";
    NODE_INFO = Gauge "millrace_node_info" ["mode", "mode_reason"],
        "Data plane of the node, and why: requested (--proxy-mode), auto, or fallback (this kernel can't do eBPF); always 1";
    UPLINK_INFO = Gauge "millrace_uplink_info" ["device", "xdp"],
        "Uplinks with a program of Millrace, and their XDP: native, generic or none; always 1";
    PROGRAMS_ATTACHED = Gauge "millrace_programs_attached" ["hook", "mode"],
        "Devices with a program of Millrace, by hook and mode of attachment";
    MAP_ENTRIES_MAX = Gauge "millrace_map_entries_max" ["map"],
        "Entries that a map has room for";
    MAP_MEMORY = Gauge "millrace_map_memory_bytes" ["map"],
        "Memory of a map; Linux below 6.4 gives that of a full one";
    MAP_ENTRIES = Gauge "millrace_map_entries" ["map"],
        "Entries of a map in use; absent for maps whose entries are not counted";
    FLOWS = Gauge "millrace_flows" ["table", "ip_family", "state"],
        "Flow entries at the last walk of the agent, by table (new, established) and state; a connection has one for each direction that passes this node";
    FLOWS_EXPIRED = Counter "millrace_flows_expired" [],
        "Flow entries removed after their time-out";
    WAY_UP = Gauge "millrace_way_up" ["peer"],
        "1 if the route to another node has a resolved next hop, else 0, by the address of that node";
    WAY_MTU = Gauge "millrace_way_mtu_bytes" ["peer"],
        "Largest IP packet that the route to another node takes, by the address of that node";
    SNAT_PORTS_LIMIT = Gauge "millrace_snat_ports_limit" [],
        "Ports of this node for connections to each backend on another node (--snat-ports)";
    SNAT_PORTS_USED = Gauge "millrace_snat_ports_used" [],
        "Ports in use towards the backend with the most of them in use";
    SNAT_CROWDED_BACKENDS = Gauge "millrace_snat_crowded_backends" [],
        "Backends towards which four of five ports are in use";
    L2_HELD = Gauge "millrace_l2_held" ["address", "device"],
        "1 for each address of a Service that this node answers for on a link, by address and device";
    L2_CHANGES = Counter "millrace_l2_changes" ["change"],
        "Addresses that this node began to answer for (claimed), left to another node (yielded), or no longer may have (released)";
    POLICY_ALLOWED = Counter "millrace_policy_allowed" ["direction"],
        "New connections of this node's pods, and packets that belong to none, that NetworkPolicies allow, by direction; pods that no policy selects are not counted";
    POLICY_DROPPED_PACKETS = Counter "millrace_policy_dropped_packets" ["direction", "reason"],
        "Packets of this node's pods that the firewall dropped, by direction and reason: denied by policies, the pod is not known yet, a foreign source address, or unreadable";
    POLICY_PODS = Gauge "millrace_policy_pods" [],
        "Pods of this node whose device is known";
    POLICY_UNKNOWN_DEVICES = Gauge "millrace_policy_unknown_devices" [],
        "Devices of pods of this node whose pod is not known; they are closed while the cluster has any NetworkPolicy";
    POLICY_ENTRIES = Gauge "millrace_policy_entries" ["table"],
        "Entries of the firewall's tables on this node: peers (addresses and ranges) and rules";
    POLICY_PROBLEMS = Gauge "millrace_policy_problems" [],
        "Problems in the fields of NetworkPolicies, pods and Namespaces";
    POLICY_FAILURES = Gauge "millrace_policy_failures" [],
        "Failures of the firewall's last change, which is tried again";
    SOURCE_SYNCED = Gauge "millrace_source_synced" [],
        "1 if the source has listed all objects and follows their changes, else 0";
    SOURCE_LAST_EVENT = Gauge "millrace_source_last_event_timestamp_seconds" [],
        "Time of the last sign of life of the source, in seconds since 1970; of an API server it advances although nothing changes";
    SOURCE_WATCH_ERRORS = Counter "millrace_source_watch_errors" ["resource"],
        "Listings and watches of the API server that ended in an error, by resource";
    BUILD_INFO = Gauge "millrace_build_info" ["version", "layout"],
        "Version of the agent and of its map layout; always 1";
    SYNC_DURATION = Histogram "kubeproxy_sync_proxy_rules_duration_seconds" ["ip_family"],
        "Duration of a sync";
    LAST_SYNCED = Gauge "kubeproxy_sync_proxy_rules_last_timestamp_seconds" ["ip_family"],
        "Time of the last sync that applied everything, in seconds since 1970";
    LAST_QUEUED = Gauge "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" ["ip_family"],
        "Time of the last change received, in seconds since 1970";
    ENDPOINT_CHANGES_PENDING = Gauge "kubeproxy_sync_proxy_rules_endpoint_changes_pending" [],
        "Changes of EndpointSlices that wait for the next sync";
    ENDPOINT_CHANGES = Counter "kubeproxy_sync_proxy_rules_endpoint_changes" [],
        "Changes of EndpointSlices received";
    SERVICE_CHANGES_PENDING = Gauge "kubeproxy_sync_proxy_rules_service_changes_pending" [],
        "Changes of Services that wait for the next sync";
    SERVICE_CHANGES = Counter "kubeproxy_sync_proxy_rules_service_changes" [],
        "Changes of Services received";
    NO_LOCAL_ENDPOINTS = Gauge "kubeproxy_sync_proxy_rules_no_local_endpoints_total" ["traffic_policy", "ip_family"],
        "Service ports with traffic policy Local whose endpoints are all on other nodes";
    PROGRAMMING_DURATION = Histogram "kubeproxy_network_programming_duration_seconds" ["ip_family"],
        "Time from the change of a pod or Service until it is applied on this node";
    PROXY_HEALTHZ = Counter "kubeproxy_proxy_healthz" ["code"],
        "Answers of /healthz, by status code";
    PROXY_LIVEZ = Counter "kubeproxy_proxy_livez" ["code"],
        "Answers of /livez, by status code";
    REST_CLIENT_REQUESTS = Counter "rest_client_requests" ["code", "method", "host"],
        "Requests to the API server, by status code, method and host";
    PROCESS_CPU = Counter "process_cpu_seconds" [],
        "User and system CPU time of the agent";
    PROCESS_START = Gauge "process_start_time_seconds" [],
        "Time of the agent's start, in seconds since 1970";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" [],
        "Resident memory of the agent";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" [],
        "Virtual memory of the agent";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" [],
        "Open file descriptors of the agent";
    PROCESS_MAX_FDS = Gauge "process_max_fds" [],
        "Limit of the agent's open file descriptors";
}
