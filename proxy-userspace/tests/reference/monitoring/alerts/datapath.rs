//! Alerts about the maps, the packets and the ways to other nodes.

use super::Alert;

pub const ALERTS: &[Alert] = &[
    Alert {
        name: "MillraceMapNearlyFull",
        severity: "warning",
        expression: "millrace_map_entries{map!~\"AFFINITY.|FLOWS.\"} / millrace_map_entries_max > 0.8",
        minutes: 15,
        summary: "A map is nearly full",
        description: "The map {{ $labels.map }} of {{ $labels.node }} {{ $labels.instance }} is \
                      {{ $value | humanizePercentage }} full.",
        fires: &[
            ("millrace_map_entries{node=\"a\",map=\"PEERS\"}", "90x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"PEERS\"}", "100x200"),
            ("millrace_map_entries{node=\"b\",map=\"PEERS\"}", "10x200"),
            ("millrace_map_entries_max{node=\"b\",map=\"PEERS\"}", "100x200"),
            ("millrace_map_entries{node=\"b\",map=\"FLOWS4\"}", "90x200"),
            ("millrace_map_entries_max{node=\"b\",map=\"FLOWS4\"}", "100x200"),
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
        expression: "millrace_map_entries{map=~\"FLOWS.\"} / millrace_map_entries_max > 0.8",
        minutes: 5,
        summary: "A table of flows is nearly full",
        description: "The map {{ $labels.map }} of {{ $labels.node }} {{ $labels.instance }} is {{ $value | humanizePercentage }} \
                      full. A full one forgets the connection that was silent longest.",
        fires: &[
            ("millrace_map_entries{node=\"a\",map=\"FLOWS6\"}", "90x200"),
            ("millrace_map_entries{node=\"a\",map=\"FLOWS4\"}", "10x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"FLOWS6\"}", "100x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"FLOWS4\"}", "100x200"),
        ],
        firing: 1,
        quiet: &[
            ("millrace_map_entries{node=\"a\",map=\"FLOWS4\"}", "80x200"),
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
        name: "MillraceServiceRefused",
        severity: "warning",
        expression: "sum by (cluster, namespace, service, port) \
                     (rate(millrace_service_connections_total{event=\"refused\"}[5m])) \
                     > 0.1 * sum by (cluster, namespace, service, port) \
                     (rate(millrace_service_connections_total{event=\"opened\"}[5m])) \
                     and sum by (cluster, namespace, service, port) \
                     (rate(millrace_service_connections_total{event=\"refused\"}[5m])) > 0.1",
        minutes: 10,
        summary: "Endpoints of a Service refuse connections",
        description: "Endpoints of {{ $labels.namespace }}/{{ $labels.service }}:{{ $labels.port }} refuse \
                      {{ $value | humanize }} connections a second, more than one in ten.",
        fires: &[
            (
                "millrace_service_connections_total{node=\"a\",namespace=\"shop\",service=\"web\",event=\"opened\"}",
                "0+60x200",
            ),
            (
                "millrace_service_connections_total{node=\"a\",namespace=\"shop\",service=\"web\",event=\"refused\"}",
                "0+12x200",
            ),
        ],
        firing: 1,
        quiet: &[
            (
                "millrace_service_connections_total{node=\"a\",namespace=\"shop\",service=\"web\",event=\"opened\"}",
                "0+600x200",
            ),
            (
                "millrace_service_connections_total{node=\"a\",namespace=\"shop\",service=\"web\",event=\"refused\"}",
                "0+12x200",
            ),
            (
                "millrace_service_connections_total{node=\"a\",namespace=\"shop\",service=\"db\",event=\"opened\"}",
                "0+2x200",
            ),
            (
                "millrace_service_connections_total{node=\"a\",namespace=\"shop\",service=\"db\",event=\"refused\"}",
                "0+2x200",
            ),
        ],
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
