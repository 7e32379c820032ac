//! The table of alerts. The rules, their tests and the list in docs/operations.md are made from it.

/// An alert.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// The name, also of its runbook.
    pub name: &'static str,
    /// `critical`: traffic is lost, or will be; `warning`: by day; `info`: for whoever looks.
    pub severity: &'static str,
    /// The expression.
    pub expression: &'static str,
    /// The minutes for which the expression must hold.
    pub minutes: u32,
    /// One line without values.
    pub summary: &'static str,
    /// One sentence with values, as a template of Prometheus.
    pub description: &'static str,
    /// Series of promtool under which it fires, once for each of `firing`.
    pub fires: &'static [(&'static str, &'static str)],
    /// The number of alerts that fire.
    pub firing: u32,
    /// Series under which it stays quiet.
    pub quiet: &'static [(&'static str, &'static str)],
}

/// All alerts, the gravest first.
pub const ALERTS: &[Alert] = &[
    Alert {
        name: "MillraceDown",
        severity: "critical",
        expression: "up{job=\"millrace\"} == 0 or absent(millrace_build_info)",
        minutes: 5,
        summary: "No agent answers on a node",
        description: "The agent of {{ or $labels.node $labels.instance \"every node\" }} can't be scraped. The data path \
                      goes on, but follows no change.",
        fires: &[
            ("up{job=\"millrace\",node=\"a\"}", "0x200"),
            ("up{job=\"millrace\",node=\"b\"}", "1x200"),
            ("millrace_build_info{node=\"b\",version=\"1\"}", "1x200"),
        ],
        firing: 1,
        quiet: &[
            ("up{job=\"millrace\",node=\"a\"}", "1x200"),
            ("up{job=\"other\"}", "0x200"),
            ("millrace_build_info{node=\"a\",version=\"1\"}", "1x200"),
        ],
    },
    Alert {
        name: "MillraceNotReady",
        severity: "critical",
        expression: "millrace_ready == 0",
        minutes: 10,
        summary: "A condition of readiness fails on a node",
        description: "The condition {{ $labels.condition }} fails on {{ $labels.node }} {{ $labels.instance }}.",
        fires: &[
            ("millrace_ready{node=\"a\",condition=\"node-found\"}", "0x200"),
            ("millrace_ready{node=\"a\",condition=\"self-test\"}", "1x200"),
        ],
        firing: 1,
        quiet: &[("millrace_ready{node=\"a\",condition=\"node-found\"}", "1x200")],
    },
    Alert {
        name: "MillraceSelfTestFailed",
        severity: "critical",
        expression: "millrace_self_test_failed == 1",
        minutes: 2,
        summary: "A program is detached or gives a wrong verdict",
        description: "A program on {{ $labels.node }} {{ $labels.instance }} is detached or gives a wrong verdict.",
        fires: &[("millrace_self_test_failed{node=\"a\"}", "1x200")],
        firing: 1,
        quiet: &[("millrace_self_test_failed{node=\"a\"}", "0x200")],
    },
    Alert {
        name: "MillraceMapFull",
        severity: "critical",
        expression: "millrace_map_entries{map!~\"AFFINITY.\"} >= millrace_map_entries_max",
        minutes: 5,
        summary: "A map has no room",
        description: "The map {{ $labels.map }} of {{ $labels.node }} {{ $labels.instance }} is full. New Services or \
                      endpoints are not served there.",
        fires: &[
            ("millrace_map_entries{node=\"a\",map=\"SERVICES\"}", "64x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"SERVICES\"}", "64x200"),
            ("millrace_map_entries{node=\"a\",map=\"AFFINITY4\"}", "64x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"AFFINITY4\"}", "64x200"),
        ],
        firing: 1,
        quiet: &[
            ("millrace_map_entries{node=\"a\",map=\"SERVICES\"}", "63x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"SERVICES\"}", "64x200"),
        ],
    },
    Alert {
        name: "MillraceSourceStale",
        severity: "warning",
        // A directory of manifests gives no sign of life, and makes no request.
        expression: "millrace_source_synced == 0 or time() - millrace_source_last_event_timestamp_seconds > 300 \
                     and on (cluster, node, instance) rest_client_requests_total",
        minutes: 5,
        summary: "An agent does not follow the API server",
        description: "The agent of {{ $labels.node }} {{ $labels.instance }} serves an old state of Services and endpoints.",
        fires: &[
            ("millrace_source_synced{node=\"a\"}", "1x200"),
            ("millrace_source_last_event_timestamp_seconds{node=\"a\"}", "0x200"),
            ("rest_client_requests_total{node=\"a\",code=\"200\",method=\"GET\"}", "9x200"),
            ("rest_client_requests_total{node=\"a\",code=\"429\",method=\"GET\"}", "9x200"),
            ("millrace_source_synced{node=\"b\"}", "0x200"),
            ("millrace_source_last_event_timestamp_seconds{node=\"b\"}", "0+60x200"),
        ],
        firing: 2,
        quiet: &[
            ("millrace_source_synced{node=\"a\"}", "1x200"),
            ("millrace_source_last_event_timestamp_seconds{node=\"a\"}", "0+60x200"),
            ("rest_client_requests_total{node=\"a\",code=\"200\",method=\"GET\"}", "9x200"),
            ("millrace_source_synced{node=\"directory\"}", "1x200"),
            ("millrace_source_last_event_timestamp_seconds{node=\"directory\"}", "0x200"),
        ],
    },
    Alert {
        name: "MillraceSyncFailed",
        severity: "warning",
        expression: "millrace_degraded_service_ports > 0 or sum without (concern) (millrace_sync_failures) > 0",
        minutes: 10,
        summary: "Part of the state is not written",
        description: "{{ $value }} Service ports, devices or maps of {{ $labels.node }} {{ $labels.instance }} are not as \
                      they should be.",
        fires: &[
            ("millrace_degraded_service_ports{node=\"a\"}", "2x200"),
            ("millrace_sync_failures{node=\"b\",concern=\"device\"}", "1x200"),
            ("millrace_sync_failures{node=\"b\",concern=\"map\"}", "1x200"),
        ],
        firing: 2,
        quiet: &[
            ("millrace_degraded_service_ports{node=\"a\"}", "0x200"),
            ("millrace_sync_failures{node=\"a\",concern=\"device\"}", "0x200"),
        ],
    },
    Alert {
        name: "MillraceChangesPending",
        severity: "warning",
        expression: "kubeproxy_sync_proxy_rules_endpoint_changes_pending{job=\"millrace\"} > 0",
        minutes: 10,
        summary: "Changes of endpoints are not applied",
        description: "{{ $value }} changes of endpoints wait on {{ $labels.node }} {{ $labels.instance }}.",
        fires: &[(
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending{job=\"millrace\",node=\"a\"}",
            "3x200",
        )],
        firing: 1,
        quiet: &[
            ("kubeproxy_sync_proxy_rules_endpoint_changes_pending{job=\"millrace\",node=\"a\"}", "0x200"),
            ("kubeproxy_sync_proxy_rules_endpoint_changes_pending{job=\"kube-proxy\",node=\"a\"}", "3x200"),
        ],
    },
    Alert {
        name: "MillraceSyncSlow",
        severity: "warning",
        expression: "histogram_quantile(0.99, sum by (cluster, node, instance, le) \
                     (rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{job=\"millrace\"}[10m]))) > 5",
        minutes: 10,
        summary: "Syncs take more than five seconds",
        description: "One sync of a hundred takes {{ $value | humanizeDuration }} or longer on {{ $labels.node }} \
                      {{ $labels.instance }}.",
        fires: &[
            (
                "kubeproxy_sync_proxy_rules_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"4.096\"}",
                "0x200",
            ),
            (
                "kubeproxy_sync_proxy_rules_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"8.192\"}",
                "0+6x200",
            ),
            (
                "kubeproxy_sync_proxy_rules_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"+Inf\"}",
                "0+6x200",
            ),
        ],
        firing: 1,
        quiet: &[
            (
                "kubeproxy_sync_proxy_rules_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"0.001\"}",
                "0+6x200",
            ),
            (
                "kubeproxy_sync_proxy_rules_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"+Inf\"}",
                "0+6x200",
            ),
        ],
    },
    Alert {
        name: "MillraceProgrammingSlow",
        severity: "warning",
        expression: "histogram_quantile(0.99, sum by (cluster, node, instance, le) \
                     (rate(kubeproxy_network_programming_duration_seconds_bucket{job=\"millrace\"}[10m]))) > 30",
        minutes: 10,
        summary: "New endpoints get traffic late",
        description: "One endpoint of a hundred waits {{ $value | humanizeDuration }} or longer for {{ $labels.node }} \
                      {{ $labels.instance }}.",
        fires: &[
            (
                "kubeproxy_network_programming_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"59\"}",
                "0x200",
            ),
            (
                "kubeproxy_network_programming_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"60\"}",
                "0+6x200",
            ),
            (
                "kubeproxy_network_programming_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"+Inf\"}",
                "0+6x200",
            ),
        ],
        firing: 1,
        quiet: &[
            (
                "kubeproxy_network_programming_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"0.25\"}",
                "0+6x200",
            ),
            (
                "kubeproxy_network_programming_duration_seconds_bucket{job=\"millrace\",node=\"a\",le=\"+Inf\"}",
                "0+6x200",
            ),
        ],
    },
    Alert {
        name: "MillraceMapNearlyFull",
        severity: "warning",
        expression: "millrace_map_entries{map!~\"AFFINITY.\"} / millrace_map_entries_max > 0.8",
        minutes: 15,
        summary: "A map is nearly full",
        description: "The map {{ $labels.map }} of {{ $labels.node }} {{ $labels.instance }} is \
                      {{ $value | humanizePercentage }} full.",
        fires: &[
            ("millrace_map_entries{node=\"a\",map=\"PEERS\"}", "90x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"PEERS\"}", "100x200"),
            ("millrace_map_entries{node=\"b\",map=\"PEERS\"}", "10x200"),
            ("millrace_map_entries_max{node=\"b\",map=\"PEERS\"}", "100x200"),
        ],
        firing: 1,
        quiet: &[
            ("millrace_map_entries{node=\"a\",map=\"PEERS\"}", "80x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"PEERS\"}", "100x200"),
        ],
    },
    Alert {
        name: "MillraceFlowTableNearlyFull",
        severity: "warning",
        expression: "sum by (cluster, node, instance) (millrace_flows{table=\"established\",ip_family=\"IPv4\"}) \
                     / on (cluster, node, instance) millrace_map_entries_max{map=\"FLOWS4\"} > 0.8 or \
                     sum by (cluster, node, instance) (millrace_flows{table=\"established\",ip_family=\"IPv6\"}) \
                     / on (cluster, node, instance) millrace_map_entries_max{map=\"FLOWS6\"} > 0.8",
        minutes: 5,
        summary: "The table of flows is nearly full",
        description: "The table of flows of {{ $labels.node }} {{ $labels.instance }} is {{ $value | humanizePercentage }} \
                      full. A full one forgets the connection that was silent longest.",
        fires: &[
            (
                "millrace_flows{node=\"a\",table=\"established\",ip_family=\"IPv6\",state=\"established\"}",
                "50x200",
            ),
            (
                "millrace_flows{node=\"a\",table=\"established\",ip_family=\"IPv6\",state=\"datagram\"}",
                "40x200",
            ),
            ("millrace_map_entries_max{node=\"a\",map=\"FLOWS6\"}", "100x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"FLOWS4\"}", "100x200"),
        ],
        firing: 1,
        quiet: &[
            (
                "millrace_flows{node=\"a\",table=\"established\",ip_family=\"IPv4\",state=\"established\"}",
                "50x200",
            ),
            ("millrace_flows{node=\"a\",table=\"new\",ip_family=\"IPv4\",state=\"syn\"}", "90x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"FLOWS4\"}", "100x200"),
        ],
    },
    Alert {
        name: "MillraceSnatPortsCrowded",
        severity: "warning",
        expression: "millrace_snat_ports_used / millrace_snat_ports_limit > 0.8",
        minutes: 5,
        summary: "SNAT ports toward a backend run out",
        description: "{{ $value | humanizePercentage }} of the ports of {{ $labels.node }} {{ $labels.instance }} toward \
                      one backend are in use.",
        fires: &[
            ("millrace_snat_ports_used{node=\"a\"}", "4000x200"),
            ("millrace_snat_ports_limit{node=\"a\"}", "4536x200"),
        ],
        firing: 1,
        quiet: &[
            ("millrace_snat_ports_used{node=\"a\"}", "3000x200"),
            ("millrace_snat_ports_limit{node=\"a\"}", "4536x200"),
        ],
    },
    Alert {
        name: "MillraceDropsNoEndpoint",
        severity: "warning",
        expression: "sum by (cluster, node, instance, reason) \
                     (rate(millrace_dropped_packets_total{reason=~\"no_endpoint|no_local_endpoint\"}[5m])) > 1",
        minutes: 10,
        summary: "Clients ask for Services without endpoints",
        description: "{{ $labels.node }} {{ $labels.instance }} refuses {{ $value | humanize }} packets a second: \
                      {{ $labels.reason }}.",
        fires: &[
            (
                "millrace_dropped_packets_total{node=\"a\",program=\"xdp_ingress\",reason=\"no_endpoint\"}",
                "0+60x200",
            ),
            (
                "millrace_dropped_packets_total{node=\"a\",program=\"tc_ingress\",reason=\"no_endpoint\"}",
                "0+60x200",
            ),
            (
                "millrace_dropped_packets_total{node=\"a\",program=\"tc_ingress\",reason=\"unknown_port\"}",
                "0+600x200",
            ),
        ],
        firing: 1,
        quiet: &[(
            "millrace_dropped_packets_total{node=\"a\",program=\"tc_ingress\",reason=\"no_endpoint\"}",
            "0+6x200",
        )],
    },
    Alert {
        name: "MillraceDropsNoWay",
        severity: "warning",
        expression: "sum by (cluster, node, instance) (rate(millrace_dropped_packets_total{reason=\"no_way\"}[5m])) > 0.1",
        minutes: 5,
        summary: "Backends can't be reached",
        description: "{{ $labels.node }} {{ $labels.instance }} has no route to the backends of {{ $value | humanize }} \
                      packets a second.",
        fires: &[(
            "millrace_dropped_packets_total{node=\"a\",program=\"tc_ingress\",reason=\"no_way\"}",
            "0+60x200",
        )],
        firing: 1,
        quiet: &[(
            "millrace_dropped_packets_total{node=\"a\",program=\"tc_ingress\",reason=\"no_way\"}",
            "60x200",
        )],
    },
    Alert {
        name: "MillraceDropsNoRoom",
        severity: "warning",
        expression: "sum by (cluster, node, instance, reason) \
                     (rate(millrace_dropped_packets_total{reason=~\"no_room|snat_ports|reply_key_in_use\"}[5m])) > 0",
        minutes: 5,
        summary: "New connections find no room",
        description: "{{ $labels.node }} {{ $labels.instance }} drops {{ $value | humanize }} packets a second: \
                      {{ $labels.reason }}.",
        fires: &[(
            "millrace_dropped_packets_total{node=\"a\",program=\"tc_ingress\",reason=\"snat_ports\"}",
            "0+6x200",
        )],
        firing: 1,
        quiet: &[(
            "millrace_dropped_packets_total{node=\"a\",program=\"tc_ingress\",reason=\"snat_ports\"}",
            "6x200",
        )],
    },
    Alert {
        name: "MillraceTunnelsRefused",
        severity: "warning",
        expression: "sum by (cluster, node, instance, reason) \
                     (rate(millrace_dropped_packets_total{reason=~\"not_peer|forged_tunnel\"}[5m])) > 0.1",
        minutes: 10,
        summary: "Encapsulated packets come from strangers",
        description: "{{ $labels.node }} {{ $labels.instance }} drops {{ $value | humanize }} encapsulated packets a second: \
                      {{ $labels.reason }}.",
        fires: &[(
            "millrace_dropped_packets_total{node=\"a\",program=\"xdp_ingress\",reason=\"not_peer\"}",
            "0+60x200",
        )],
        firing: 1,
        quiet: &[(
            "millrace_dropped_packets_total{node=\"a\",program=\"xdp_ingress\",reason=\"not_peer\"}",
            "60x200",
        )],
    },
    Alert {
        name: "MillraceWayDown",
        severity: "warning",
        expression: "millrace_way_up == 0",
        minutes: 15,
        summary: "A node has no resolved route to another node",
        description: "{{ $labels.node }} {{ $labels.instance }} has no resolved next hop toward the node {{ $labels.peer }}.",
        fires: &[
            ("millrace_way_up{node=\"a\",peer=\"10.1.0.2\"}", "0x200"),
            ("millrace_way_up{node=\"a\",peer=\"10.1.0.3\"}", "1x200"),
        ],
        firing: 1,
        quiet: &[("millrace_way_up{node=\"a\",peer=\"10.1.0.2\"}", "1x200")],
    },
    Alert {
        name: "MillraceMtuLowered",
        severity: "warning",
        expression: "millrace_way_mtu_bytes < max_over_time(millrace_way_mtu_bytes[1d])",
        minutes: 10,
        summary: "The MTU toward another node has become lower",
        description: "Packets of {{ $labels.node }} {{ $labels.instance }} to the node {{ $labels.peer }} may have no more \
                      than {{ $value }} bytes now.",
        fires: &[("millrace_way_mtu_bytes{node=\"a\",peer=\"10.1.0.2\"}", "1500x30 1400x170")],
        firing: 1,
        quiet: &[("millrace_way_mtu_bytes{node=\"a\",peer=\"10.1.0.2\"}", "1400x30 1500x170")],
    },
    Alert {
        name: "MillraceModeFallback",
        severity: "warning",
        expression: "millrace_node_info{mode_reason=\"fallback\"} == 1",
        minutes: 10,
        summary: "A node serves by IPVS because its kernel can't do eBPF",
        description: "{{ $labels.node }} {{ $labels.instance }} serves by {{ $labels.mode }}, without DSR to pods and without \
                      the figures of the programs.",
        fires: &[
            ("millrace_node_info{node=\"a\",mode=\"ipvs\",mode_reason=\"fallback\"}", "1x200"),
            ("millrace_node_info{node=\"b\",mode=\"ebpf\",mode_reason=\"auto\"}", "1x200"),
        ],
        firing: 1,
        quiet: &[("millrace_node_info{node=\"a\",mode=\"ipvs\",mode_reason=\"requested\"}", "1x200")],
    },
    Alert {
        name: "MillraceVersionSkew",
        severity: "warning",
        expression: "count by (cluster) (count by (cluster, version) (millrace_build_info)) > 1",
        minutes: 60,
        summary: "Nodes run different versions",
        description: "{{ $value }} versions of the agent run at once.",
        fires: &[
            ("millrace_build_info{node=\"a\",version=\"0.1.0\",layout=\"6\"}", "1x200"),
            ("millrace_build_info{node=\"b\",version=\"0.2.0\",layout=\"6\"}", "1x200"),
        ],
        firing: 1,
        quiet: &[
            ("millrace_build_info{node=\"a\",version=\"0.1.0\",layout=\"6\"}", "1x200"),
            ("millrace_build_info{node=\"b\",version=\"0.1.0\",layout=\"6\"}", "1x200"),
        ],
    },
];
