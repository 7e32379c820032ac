//! The cases of kube-proxy's own test (`TestCategorizeEndpoints` in pkg/proxy/topology_test.go),
//! and some that it leaves out.
//!
//! An endpoint is written `10.1.2.3 L Ha`: the address, then L local, Hx hint for zone x, Nx hint
//! for node x, !R not ready, !S not serving, T terminating.

use super::*;
use std::net::SocketAddr;

const CLUSTER: Needed = Needed { cluster: true, local: false };
const LOCAL: Needed = Needed { cluster: false, local: true };
const BOTH: Needed = Needed { cluster: true, local: true };
const EMPTY: &str = "";

fn endpoints(text: &str) -> BTreeMap<EndpointAddress, Candidate<'static>> {
    text.split(',').filter(|one| !one.trim().is_empty()).map(endpoint).collect()
}

fn endpoint(text: &str) -> (EndpointAddress, Candidate<'static>) {
    let mut words = text.split_whitespace();
    let address = SocketAddr::new(words.next().unwrap().parse().unwrap(), 80);
    let endpoint = Endpoint { node: None, local: false, ready: true, serving: true, terminating: false };
    let mut one = Candidate { endpoint, zone_hints: &[], node_hints: &[] };
    let (mut zone_hints, mut node_hints) = (Vec::new(), Vec::new());
    for word in words {
        match word {
            "L" => one.endpoint.local = true,
            "!R" => one.endpoint.ready = false,
            "!S" => one.endpoint.serving = false,
            "T" => one.endpoint.terminating = true,
            hint if hint.starts_with('H') => {
                zone_hints.push(format!("zone-{}", &hint[1..]).into());
            }
            hint if hint.starts_with('N') => {
                node_hints.push(format!("node-{}", &hint[1..]).into());
            }
            other => panic!("{other}"),
        }
    }
    (one.zone_hints, one.node_hints) = (zone_hints.leak(), node_hints.leak());
    (address, one)
}

fn list(text: &str) -> BTreeSet<EndpointAddress> {
    endpoints(text).into_keys().collect()
}

/// Checks both lists (`None` = not needed) on node-1.
#[track_caller]
fn check(needed: Needed, zone: &str, given: &str, cluster: Option<&str>, local: Option<&str>, has_any: bool) {
    let place = Place { node: "node-1", zone: Some(zone).filter(|zone| !zone.is_empty()) };
    let result = categorise(&endpoints(given), needed, place);
    assert_eq!(result.cluster, cluster.map(list), "Cluster list");
    assert_eq!(result.local, local.map(list), "Local list");
    assert_eq!(result.has_any, has_any, "has any");
}

#[test]
fn only_the_lists_that_policies_and_frontends_ask_for_are_needed() {
    for (external_local, internal_local, accessible, expected) in [
        (false, false, false, CLUSTER),
        (false, false, true, CLUSTER),
        (false, true, false, LOCAL),
        (false, true, true, BOTH),
        (true, false, false, CLUSTER),
        (true, false, true, BOTH),
        (true, true, false, LOCAL),
        (true, true, true, BOTH),
    ] {
        let needed = Needed::by(external_local, internal_local, accessible);
        assert_eq!(needed, expected, "eTP {external_local} iTP {internal_local} accessible {accessible}");
    }
}

#[test]
fn case_1_zone_hints_keep_traffic_in_the_zone() {
    let given = "10.1.2.3 Ha, 10.1.2.4 Hb, 10.1.2.5 Hc, 10.1.2.6 Ha";
    check(CLUSTER, "zone-a", given, Some("10.1.2.3, 10.1.2.6"), None, true);
}

#[test]
fn cases_2_and_3_hints_play_no_role_in_the_local_list() {
    let given = "10.1.2.3 L Ha, 10.1.2.4 L Hb, 10.1.2.5 Hc, 10.1.2.6 Ha";
    check(BOTH, "zone-a", given, Some("10.1.2.3, 10.1.2.6"), Some("10.1.2.3, 10.1.2.4"), true);
}

#[test]
fn case_4_a_node_without_a_zone_ignores_hints() {
    check(CLUSTER, EMPTY, "10.1.2.3 Ha", Some("10.1.2.3"), None, true);
}

#[test]
fn case_6_a_zone_nobody_is_hinted_to_ignores_hints() {
    check(CLUSTER, "zone-b", "10.1.2.3 Ha", Some("10.1.2.3"), None, true);
}

#[test]
fn case_8_hints_of_unready_endpoints_do_not_count() {
    let given = "10.1.2.3 Ha !R, 10.1.2.4 Hb, 10.1.2.5 Hc, 10.1.2.6 Ha !R";
    check(CLUSTER, "zone-a", given, Some("10.1.2.4, 10.1.2.5"), None, true);
}

#[test]
fn case_9_one_ready_endpoint_without_a_hint_turns_hints_off() {
    let given = "10.1.2.3 Ha, 10.1.2.4 Hb, 10.1.2.5, 10.1.2.6 Ha";
    check(CLUSTER, "zone-a", given, Some("10.1.2.3, 10.1.2.4, 10.1.2.5, 10.1.2.6"), None, true);
}

#[test]
fn an_unready_endpoint_without_a_hint_turns_nothing_off() {
    check(CLUSTER, "zone-a", "10.1.2.3 Ha, 10.1.2.4 Hb, 10.1.2.5 !R", Some("10.1.2.3"), None, true);
}

#[test]
fn case_11_zone_filter_and_local_list_side_by_side() {
    let given = "10.0.0.0 L Ha, 10.0.0.1 L Hb, 10.0.0.2 Ha, 10.0.0.3 Hb";
    check(BOTH, "zone-a", given, Some("10.0.0.0, 10.0.0.2"), Some("10.0.0.0, 10.0.0.1"), true);
}

#[test]
fn cases_12_and_13_no_endpoint_at_all_differs_from_none_here() {
    check(LOCAL, EMPTY, "", None, Some(EMPTY), false);
    check(LOCAL, EMPTY, "10.0.0.0, 10.0.0.1", None, Some(EMPTY), true);
}

#[test]
fn case_15_internal_local_has_the_local_endpoint() {
    check(LOCAL, EMPTY, "10.0.0.0 L, 10.0.0.1", None, Some("10.0.0.0"), true);
}

#[test]
fn case_17_unready_endpoints_are_left_out() {
    check(CLUSTER, EMPTY, "10.0.0.0 !R !S, 10.0.0.1", Some("10.0.0.1"), None, true);
}

#[test]
fn case_20_external_local_has_both_lists() {
    check(BOTH, EMPTY, "10.0.0.0 L, 10.0.0.1", Some("10.0.0.0, 10.0.0.1"), Some("10.0.0.0"), true);
}

#[test]
fn case_22_external_local_without_a_local_endpoint_is_empty_but_has_some() {
    check(BOTH, EMPTY, "10.0.0.0, 10.0.0.1", Some("10.0.0.0, 10.0.0.1"), Some(EMPTY), true);
}

#[test]
fn case_25_external_local_without_an_external_frontend_has_the_cluster_list_only() {
    let needed = Needed::by(true, false, false);
    check(needed, EMPTY, "10.0.0.0, 10.0.0.1 L", Some("10.0.0.0, 10.0.0.1"), None, true);
}

#[test]
fn terminating_endpoints_that_serve_step_in_where_nobody_is_ready() {
    let given = "10.0.0.0 !R T, 10.0.0.1 L !R T, 10.0.0.2 !R !S T, 10.0.0.3 !R";
    check(BOTH, EMPTY, given, Some("10.0.0.0, 10.0.0.1"), Some("10.0.0.1"), true);
    check(CLUSTER, EMPTY, "10.0.0.0 !R T, 10.0.0.1", Some("10.0.0.1"), None, true);
}

#[test]
fn a_terminating_endpoint_that_does_not_serve_is_never_used() {
    check(BOTH, EMPTY, "10.0.0.0 L !R !S T", Some(EMPTY), Some(EMPTY), false);
}

#[test]
fn the_local_fallback_is_judged_apart_from_the_cluster_list() {
    let given = "10.0.0.0 L !R T Hb, 10.0.0.1 Ha, 10.0.0.2 Hb";
    check(BOTH, "zone-a", given, Some("10.0.0.1"), Some("10.0.0.0"), true);
}

#[test]
fn the_terminating_fallback_of_the_cluster_list_ignores_hints() {
    check(CLUSTER, "zone-a", "10.0.0.0 !R T Ha, 10.0.0.1 !R T Hb", Some("10.0.0.0, 10.0.0.1"), None, true);
}

#[test]
fn ready_and_terminating_at_once_counts_as_ready() {
    check(BOTH, EMPTY, "10.0.0.0 L T, 10.0.0.1", Some("10.0.0.0, 10.0.0.1"), Some("10.0.0.0"), true);
}

#[test]
fn node_hints_come_before_zone_hints() {
    let given = "10.0.0.0 N1 Ha, 10.0.0.1 N2 Ha, 10.0.0.2 N1 N2 Hb";
    check(CLUSTER, "zone-a", given, Some("10.0.0.0, 10.0.0.2"), None, true);
    check(CLUSTER, "zone-a", "10.0.0.0 N2 Ha, 10.0.0.1 N3 Hb", Some("10.0.0.0"), None, true);
    check(CLUSTER, "zone-a", "10.0.0.0 N1 Ha, 10.0.0.1 Hb", Some("10.0.0.0"), None, true);
}
