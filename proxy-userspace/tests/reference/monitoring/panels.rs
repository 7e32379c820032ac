//! The table of the dashboard's rows and panels.

/// A row of the dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The heading.
    pub title: &'static str,
    /// From left to right, then downward.
    pub panels: &'static [Panel],
}

/// A panel.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    /// The heading, which is unique.
    pub title: &'static str,
    /// What a person concludes from it.
    pub about: &'static str,
    /// Grafana's name of the unit.
    pub unit: &'static str,
    /// How it is drawn.
    pub shape: Shape,
    /// The queries.
    pub queries: &'static [Query],
}

/// How a panel is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One number; green at this value or below it, else red.
    AtMost(u32),
    /// One number without judgement.
    Number,
    /// Lines over time.
    Lines,
    /// Areas over time that add up.
    Stacked,
    /// The labels of each series, and no time.
    Table,
}

/// A query: the expression, and the legend of its series.
///
/// `@` in an expression stands for the selection of the dashboard's variables, and `$every` for an interval.
pub type Query = (&'static str, &'static str);

/// The dashboard, from the top.
pub const ROWS: &[Row] = &[
    Row { title: "Overview", panels: OVERVIEW },
    Row { title: "Services", panels: SERVICES },
    Row { title: "Nodes", panels: NODES },
    Row { title: "Control plane", panels: CONTROL_PLANE },
];

const OVERVIEW: &[Panel] = &[
    Panel {
        title: "Agents",
        about: "Agents that are scraped.",
        unit: "short",
        shape: Shape::Number,
        queries: &[("count(millrace_build_info{@})", "agents")],
    },
    Panel {
        title: "Nodes not ready",
        about: "Nodes on which a condition of /readyz fails.",
        unit: "short",
        shape: Shape::AtMost(0),
        queries: &[("count(min by (node) (millrace_ready{@}) == 0) or vector(0)", "nodes")],
    },
    Panel {
        title: "Versions",
        about: "Versions of the agent that run at once.",
        unit: "short",
        shape: Shape::AtMost(1),
        queries: &[("count(count by (version) (millrace_build_info{@}))", "versions")],
    },
    Panel {
        title: "Fallback to IPVS",
        about: "Nodes whose kernel can't do eBPF.",
        unit: "short",
        shape: Shape::AtMost(0),
        queries: &[("count(millrace_node_info{@,mode_reason=\"fallback\"}) or vector(0)", "nodes")],
    },
    Panel {
        title: "Self-tests that fail",
        about: "Nodes with a detached program, or one that gives a wrong verdict.",
        unit: "short",
        shape: Shape::AtMost(0),
        queries: &[("sum(millrace_self_test_failed{@})", "nodes")],
    },
    Panel {
        title: "Degraded Service ports",
        about: "Service ports that are not fully written.",
        unit: "short",
        shape: Shape::AtMost(0),
        queries: &[("sum(millrace_degraded_service_ports{@})", "ports")],
    },
    Panel {
        title: "Drops by reason",
        about: "Packets that the programs refused or dropped.",
        unit: "pps",
        shape: Shape::Stacked,
        queries: &[("sum by (reason) (rate(millrace_dropped_packets_total{@}[$every])) > 0", "{{reason}}")],
    },
    Panel {
        title: "New connections by socket hooks",
        about: "Connections and datagrams of pods and processes that a hook directed to a backend.",
        unit: "cps",
        shape: Shape::Stacked,
        queries: &[(
            "sum by (node) (rate(millrace_packets_total{@,reason=\"connected\"}[$every]))",
            "{{node}}",
        )],
    },
    Panel {
        title: "Delay of changes, 99 of 100",
        about: "From the change of a pod or Service until it is applied, and the sync in it.",
        unit: "s",
        shape: Shape::Lines,
        queries: &[
            (
                "histogram_quantile(0.99, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket{@}[$every])))",
                "programming",
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{@}[$every])))",
                "sync",
            ),
        ],
    },
];

const SERVICES: &[Panel] = &[
    Panel {
        title: "Packets of clients",
        about: "The ten Service ports with most packets.",
        unit: "pps",
        shape: Shape::Lines,
        queries: &[(
            "topk(10, sum by (namespace, service, port) (rate(millrace_service_packets_total{@,namespace=~\"$namespace\",service=~\"$service\"}[$every])))",
            "{{namespace}}/{{service}}:{{port}}",
        )],
    },
    Panel {
        title: "Bits of clients",
        about: "The ten Service ports with most bytes.",
        unit: "bps",
        shape: Shape::Lines,
        queries: &[(
            "topk(10, 8 * sum by (namespace, service, port) (rate(millrace_service_bytes_total{@,namespace=~\"$namespace\",service=~\"$service\"}[$every])))",
            "{{namespace}}/{{service}}:{{port}}",
        )],
    },
    Panel {
        title: "Connections",
        about: "The ten Service ports with most new connections.",
        unit: "cps",
        shape: Shape::Lines,
        queries: &[(
            "topk(10, sum by (namespace, service, port) (rate(millrace_service_connections_total{@,event=\"opened\",namespace=~\"$namespace\",service=~\"$service\"}[$every])))",
            "{{namespace}}/{{service}}:{{port}}",
        )],
    },
    Panel {
        title: "Connections that an endpoint ended",
        about: "Refused: the answer to the first packet was a RST. Reset: a RST came later.",
        unit: "cps",
        shape: Shape::Lines,
        queries: &[(
            "sum by (namespace, service, event) (rate(millrace_service_connections_total{@,event=~\"refused|reset\",namespace=~\"$namespace\",service=~\"$service\"}[$every])) > 0",
            "{{namespace}}/{{service}} {{event}}",
        )],
    },
    Panel {
        title: "Drops by Service",
        about: "The ten Service ports and reasons with most drops.",
        unit: "pps",
        shape: Shape::Lines,
        queries: &[(
            "topk(10, sum by (namespace, service, reason) (rate(millrace_service_dropped_packets_total{@,namespace=~\"$namespace\",service=~\"$service\"}[$every])) > 0)",
            "{{namespace}}/{{service}} {{reason}}",
        )],
    },
    Panel {
        title: "Policy Local without local endpoint",
        about: "Service ports that a node does not serve because all endpoints are on other nodes.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[(
            "sum by (traffic_policy) (kubeproxy_sync_proxy_rules_no_local_endpoints_total{@})",
            "{{traffic_policy}}",
        )],
    },
];

const NODES: &[Panel] = &[
    Panel {
        title: "Served packets by way",
        about: "Packets from the network, by what the programs did with them.",
        unit: "pps",
        shape: Shape::Stacked,
        queries: &[(
            "sum by (reason) (rate(millrace_packets_total{@,program!~\"cg_.*\",reason!~\"not_ours|handed_to_tc\"}[$every])) > 0",
            "{{reason}}",
        )],
    },
    Panel {
        title: "Served packets by program",
        about: "XDP is cheaper than TC. Packets that XDP hands to TC are counted at TC.",
        unit: "pps",
        shape: Shape::Stacked,
        queries: &[(
            "sum by (program) (rate(millrace_packets_total{@,program!~\"cg_.*\",reason!~\"not_ours|handed_to_tc\"}[$every])) > 0",
            "{{program}}",
        )],
    },
    Panel {
        title: "Drops by node",
        about: "One node alone, or all.",
        unit: "pps",
        shape: Shape::Lines,
        queries: &[("sum by (node) (rate(millrace_dropped_packets_total{@}[$every]))", "{{node}}")],
    },
    Panel {
        title: "Flow entries",
        about: "Entries of the table of flows. A connection has one for each direction.",
        unit: "short",
        shape: Shape::Stacked,
        queries: &[("sum by (state) (millrace_flows{@,table=\"established\"})", "{{state}}")],
    },
    Panel {
        title: "Fill of maps",
        about: "The ten fullest maps. The agent makes those of Services larger.",
        unit: "percentunit",
        shape: Shape::Lines,
        queries: &[(
            "topk(10, max by (map) (millrace_map_entries{@} / millrace_map_entries_max{@}))",
            "{{map}}",
        )],
    },
    Panel {
        title: "SNAT ports in use",
        about: "Toward the backend with most of them in use.",
        unit: "percentunit",
        shape: Shape::Lines,
        queries: &[(
            "max by (node) (millrace_snat_ports_used{@} / millrace_snat_ports_limit{@})",
            "{{node}}",
        )],
    },
    Panel {
        title: "Routes to other nodes without next hop",
        about: "Each packet to such a node takes a look-up of the kernel's routes, or is dropped as no_way.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[("sum by (node) (millrace_way_up{@} == bool 0)", "{{node}}")],
    },
    Panel {
        title: "MTU toward other nodes",
        about: "The lowest of a node. A drop is a path MTU that the node has learned.",
        unit: "bytes",
        shape: Shape::Lines,
        queries: &[("min by (node) (millrace_way_mtu_bytes{@})", "{{node}}")],
    },
    Panel {
        title: "Uplinks",
        about: "Devices toward the network, and how XDP is attached.",
        unit: "short",
        shape: Shape::Table,
        queries: &[("max by (node, device, xdp) (millrace_uplink_info{@})", "")],
    },
    Panel {
        title: "CPU of the agent",
        about: "Cores. The programs' time is not in it.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[("sum by (node) (rate(process_cpu_seconds_total{@}[$every]))", "{{node}}")],
    },
    Panel {
        title: "Memory of the agent",
        about: "Resident memory without the maps.",
        unit: "bytes",
        shape: Shape::Lines,
        queries: &[("sum by (node) (process_resident_memory_bytes{@})", "{{node}}")],
    },
];

const CONTROL_PLANE: &[Panel] = &[
    Panel {
        title: "Changes received",
        about: "Changes of Services and EndpointSlices that the agents hear of.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[
            (
                "sum(rate(kubeproxy_sync_proxy_rules_endpoint_changes_total{@}[$every]))",
                "endpoints, per second",
            ),
            (
                "sum(rate(kubeproxy_sync_proxy_rules_service_changes_total{@}[$every]))",
                "Services, per second",
            ),
        ],
    },
    Panel {
        title: "Changes that wait",
        about: "Zero after each sync.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[
            ("sum by (node) (kubeproxy_sync_proxy_rules_endpoint_changes_pending{@})", "{{node}} endpoints"),
            ("sum by (node) (kubeproxy_sync_proxy_rules_service_changes_pending{@})", "{{node}} Services"),
        ],
    },
    Panel {
        title: "Syncs",
        about: "Syncs a second.",
        unit: "ops",
        shape: Shape::Lines,
        queries: &[(
            "sum by (node) (rate(kubeproxy_sync_proxy_rules_duration_seconds_count{@,ip_family=\"IPv4\"}[$every]))",
            "{{node}}",
        )],
    },
    Panel {
        title: "Time since the source was heard",
        about: "Grows while an agent is cut off from the API server. A directory of manifests is heard when it changes.",
        unit: "s",
        shape: Shape::Lines,
        queries: &[("time() - max by (node) (millrace_source_last_event_timestamp_seconds{@})", "{{node}}")],
    },
    Panel {
        title: "Requests to the API server",
        about: "By status code. Code 429 is throttling.",
        unit: "reqps",
        shape: Shape::Stacked,
        queries: &[("sum by (code) (rate(rest_client_requests_total{@}[$every]))", "{{code}}")],
    },
    Panel {
        title: "Errors of watches",
        about: "Listings and watches that ended in an error.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[(
            "sum by (resource) (increase(millrace_source_watch_errors_total{@}[$every]))",
            "{{resource}}",
        )],
    },
    Panel {
        title: "Failures of the last sync",
        about: "What is not written, by concern.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[
            ("sum by (concern) (millrace_sync_failures{@})", "{{concern}}"),
            ("sum(millrace_degraded_service_ports{@})", "Service ports"),
        ],
    },
    Panel {
        title: "Problems of objects",
        about: "Wrong values and conflicts in the last hour. The Events of the Services name them.",
        unit: "short",
        shape: Shape::Lines,
        queries: &[(
            "sum by (topic) (increase(millrace_problems_total{@,severity=\"warning\"}[1h]))",
            "{{topic}}",
        )],
    },
    Panel {
        title: "Answers of /healthz",
        about: "By status code. Load balancers ask it, and take a node with 503 out.",
        unit: "reqps",
        shape: Shape::Stacked,
        queries: &[("sum by (code) (rate(kubeproxy_proxy_healthz_total{@}[$every]))", "{{code}}")],
    },
];
