use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use crate::dataplane::ebpf::read::{AttachedView, FailuresView, MapView};

#[derive(Debug)]
struct Fixed(Reading);

impl Collector for Fixed {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

/// A reading in which every metric has a sample.
fn reading() -> Reading {
    let counter = |reason: &'static str, drop, packets| CounterView {
        program: "xdp_ingress".into(),
        reason: reason.into(),
        drop,
        packets,
        bytes: 100 * packets,
    };
    let attached = |device: &str, hook: &'static str, mode: &'static str| AttachedView {
        device: device.to_owned(),
        device_index: 1,
        hook: hook.into(),
        mode: mode.into(),
        program_id: 7,
    };
    let way = |target: &str, resolved| WayView {
        id: 1,
        target: target.parse().unwrap(),
        source: None,
        device: 1,
        mtu: 1400,
        resolved,
        xdp: false,
        destination_mac: String::new(),
        source_mac: String::new(),
    };
    let map =
        |name: &str, used| MapView { name: name.to_owned(), entries: 1024, used, memory_bytes: Some(4096) };
    Reading {
        counters: vec![counter("served_local", false, 3), counter("no_way", true, 2)],
        traffic: vec![TrafficView {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            port: String::new(),
            family: "IPv6".to_owned(),
            packets: 4,
            bytes: 240,
            dropped: BTreeMap::from([("no_endpoint".into(), 3)]),
            connections: ConnectionsView {
                opened: 9,
                established: 5,
                refused: 2,
                reset: 1,
                ..ConnectionsView::default()
            },
        }],
        status: StatusView {
            layout_version: 1,
            heartbeat_age_seconds: None,
            failures: FailuresView::default(),
            serves: "all connections".into(),
            shared_seconds: None,
            attached: vec![
                attached("a", "tc_ingress", "tcx"),
                attached("a", "xdp", "native"),
                attached("b", "xdp", "generic"),
                attached("c", "tc_ingress", "tcx"),
            ],
            cluster_sources: Vec::new(),
            maps: vec![map("FLOWS4", None), map("PEERS", Some(9))],
        },
        ways: vec![way("10.1.0.2", true), way("10.1.0.3", false)],
    }
}

/// A collector with such a reading.
pub(in crate::metrics) fn collector() -> Box<dyn Collector> {
    Box::new(Fixed(reading()))
}

#[test]
fn what_the_kernel_counts_is_shown_with_its_labels() {
    let mut registry = Registry::default();
    registry.register_collector(collector());
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        samples,
        [
            r#"millrace_packets_total{program="xdp_ingress",reason="served_local"} 3"#,
            r#"millrace_bytes_total{program="xdp_ingress",reason="served_local"} 300"#,
            r#"millrace_dropped_packets_total{program="xdp_ingress",reason="no_way"} 2"#,
            r#"millrace_dropped_bytes_total{program="xdp_ingress",reason="no_way"} 200"#,
            r#"millrace_service_packets_total{namespace="shop",service="web",port="",ip_family="IPv6"} 4"#,
            r#"millrace_service_bytes_total{namespace="shop",service="web",port="",ip_family="IPv6"} 240"#,
            r#"millrace_service_connections_total{namespace="shop",service="web",port="",ip_family="IPv6",event="opened"} 9"#,
            r#"millrace_service_connections_total{namespace="shop",service="web",port="",ip_family="IPv6",event="established"} 5"#,
            r#"millrace_service_connections_total{namespace="shop",service="web",port="",ip_family="IPv6",event="refused"} 2"#,
            r#"millrace_service_connections_total{namespace="shop",service="web",port="",ip_family="IPv6",event="reset"} 1"#,
            r#"millrace_service_dropped_packets_total{namespace="shop",service="web",port="",ip_family="IPv6",reason="no_endpoint"} 3"#,
            r#"millrace_map_entries_max{map="FLOWS4"} 1024"#,
            r#"millrace_map_entries_max{map="PEERS"} 1024"#,
            r#"millrace_map_memory_bytes{map="FLOWS4"} 4096"#,
            r#"millrace_map_memory_bytes{map="PEERS"} 4096"#,
            r#"millrace_map_entries{map="PEERS"} 9"#,
            r#"millrace_way_up{peer="10.1.0.2"} 1"#,
            r#"millrace_way_up{peer="10.1.0.3"} 0"#,
            r#"millrace_way_mtu_bytes{peer="10.1.0.2"} 1400"#,
            r#"millrace_way_mtu_bytes{peer="10.1.0.3"} 1400"#,
            r#"millrace_uplink_info{device="a",xdp="native"} 1"#,
            r#"millrace_uplink_info{device="b",xdp="generic"} 1"#,
            r#"millrace_uplink_info{device="c",xdp="none"} 1"#,
            r#"millrace_programs_attached{hook="tc_ingress",mode="tcx"} 2"#,
            r#"millrace_programs_attached{hook="xdp",mode="generic"} 1"#,
            r#"millrace_programs_attached{hook="xdp",mode="native"} 1"#,
        ]
    );
}

#[test]
fn a_zero_is_shown_where_the_program_can_raise_it_and_any_other_figure_always() {
    let shown = |program: &'static str, reason: &'static str, packets| {
        is_shown(&CounterView {
            program: program.into(),
            reason: reason.into(),
            drop: true,
            packets,
            bytes: 0,
        })
    };
    assert!(shown("xdp_ingress", "no_way", 0) && shown("cg_connect4", "no_endpoint", 0));
    assert!(!shown("cg_connect4", "hop_limit", 0) && !shown("tc_ingress", "handed_to_tc", 0));
    assert!(shown("cg_connect4", "hop_limit", 1), "the table may be wrong");
    let pairs =
        Program::ALL.iter().flat_map(|program| Reason::ALL.iter().map(move |reason| (program, reason)));
    let possible = pairs.filter(|(program, reason)| program.can(**reason)).count();
    assert!(possible * 2 < Program::ALL.len() * Reason::ALL.len(), "{possible} series of each figure");
    assert!(Program::ALL.iter().all(|program| program.can(Reason::NotOurs)));
}
