//! The metrics of a running data plane.

use std::collections::BTreeSet;

use millrace::dataplane::Dataplane;
use millrace::metrics::KernelMetrics;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::support::{Scratch, all, desired, key, port};

fn scrape(scratch: &Scratch) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(KernelMetrics::new(scratch.path.clone())));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_scrape_reads_the_pinned_maps() {
    let scratch = Scratch::new();
    assert_eq!(scrape(&scratch), "# EOF\n", "no data plane is no failure");
    let mut dataplane = scratch.open();
    let state = desired([(key("web"), port(1, 2)), (key("shop"), port(2, 1))]);
    dataplane.sync(&state, &all(&state));
    // Each program of the self-test counts its frame. XDP is not asked for here.
    assert_eq!(dataplane.check().fault, None);
    let text = scrape(&scratch);
    let lines: BTreeSet<&str> = text.lines().collect();
    for line in [
        r#"packets_total{program="tc_ingress",reason="not_ours"} 1"#,
        r#"packets_total{program="tc_egress",reason="not_ours"} 1"#,
        r#"bytes_total{program="tc_ingress",reason="not_ours"} 46"#,
        r#"dropped_packets_total{program="tc_ingress",reason="no_way"} 0"#,
        r#"service_packets_total{namespace="default",service="web",port="http",ip_family="IPv4"} 0"#,
        r#"service_bytes_total{namespace="default",service="shop",port="http",ip_family="IPv4"} 0"#,
        r#"map_entries_max{map="FRONTENDS4"} 64"#,
        r#"map_entries{map="FRONTENDS4"} 4"#,
        r#"map_entries{map="BACKENDS4"} 3"#,
    ] {
        assert!(lines.contains(&*format!("millrace_{line}")), "{line} in {text}");
    }
}
