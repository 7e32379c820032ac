//! Alerts about the agent, and all that are critical.

use super::Alert;

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
        expression: "millrace_map_entries{map!~\"AFFINITY.|FLOWS.\"} >= millrace_map_entries_max",
        minutes: 5,
        summary: "A map has no room",
        description: "The map {{ $labels.map }} of {{ $labels.node }} {{ $labels.instance }} is full. New Services or \
                      endpoints are not served there.",
        fires: &[
            ("millrace_map_entries{node=\"a\",map=\"SERVICES\"}", "64x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"SERVICES\"}", "64x200"),
            ("millrace_map_entries{node=\"a\",map=\"AFFINITY4\"}", "64x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"AFFINITY4\"}", "64x200"),
            ("millrace_map_entries{node=\"a\",map=\"FLOWS4\"}", "64x200"),
            ("millrace_map_entries_max{node=\"a\",map=\"FLOWS4\"}", "64x200"),
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
];
