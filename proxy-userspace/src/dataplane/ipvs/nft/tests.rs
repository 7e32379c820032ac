use proxy_common::config::DEFAULT_SNAT_PORTS;
use std::net::SocketAddr;

use super::text::change;
use super::*;
use crate::dataplane::Mark;
use crate::dataplane::ipvs::state::{Element, Set};
use crate::model::{Family, Protocol};

fn port(text: &str) -> Element {
    Element::Port(Protocol::Tcp, text.parse().unwrap())
}

fn target(frontend: &str, backend: &str) -> (Element, Option<u32>) {
    let backend: SocketAddr = backend.parse().unwrap();
    let (number, frontend) = (0x4e00_0001, frontend.parse().unwrap());
    let element = Element::Target { number, protocol: Protocol::Tcp, frontend, backend: backend.ip() };
    (element, Some(backend.port().into()))
}

fn of(set: Set, (element, value): (Element, Option<u32>)) -> (Member, Option<u32>) {
    ((set, element), value)
}

#[test]
fn members_of_a_set_are_added_by_one_statement() {
    let members = BTreeMap::from([
        ((Set::Services, port("10.96.0.1:80")), None),
        ((Set::Services, port("10.96.0.2:443")), None),
        ((Set::Marks, port("[fd00::1]:80")), Some(0x4d00_0007)),
        ((Set::Loop, port("10.244.0.5:8080")), None),
        ((Set::InnerDestinations, Element::Address("203.0.113.1".parse().unwrap())), None),
        ((Set::InnerDestinations, Element::Address("fd00::5".parse().unwrap())), None),
        ((Set::Encapsulated, Element::Address("10.244.0.5".parse().unwrap())), Some(0x4e00_0001)),
        of(Set::Targets, target("203.0.113.1:80", "10.244.0.5:8080")),
        of(Set::NodeTargets, target("[::]:30080", "[fd00::5]:8080")),
        ((Set::Segments, Element::FamilyDevice(Family::V6, "eth0".to_owned())), Some(1400)),
    ]);
    assert_eq!(
        change("add", members.iter().map(|(member, mark)| (member, *mark))),
        "add element inet millrace encapsulated4 { 10.244.0.5 : 0x4e000001 }\n\
         add element inet millrace inner_destinations4 { 0xcb007101 }\n\
         add element inet millrace inner_destinations6 { 0xfd000000000000000000000000000005 }\n\
         add element inet millrace loop4 { 10.244.0.5 . 10.244.0.5 . 6 . 8080 }\n\
         add element inet millrace marks6 { fd00::1 . 6 . 80 : 0x4d000007 }\n\
         add element inet millrace node_targets6 { 0x4e000001 . 6 . 30080 : fd00::5 . 8080 }\n\
         add element inet millrace segments6 { \"eth0\" : 0x578 }\n\
         add element inet millrace services4 { 10.96.0.1 . 6 . 80, 10.96.0.2 . 6 . 443 }\n\
         add element inet millrace targets4 { 0x4e000001 . 203.0.113.1 . 6 . 80 : 10.244.0.5 . 8080 }\n"
    );
}

/// The table with default settings.
fn usual(extent: Extent) -> Layout {
    Layout::new(Mark::default(), &DEFAULT_SNAT_PORTS, extent)
}

#[test]
fn snat_uses_ports_outside_the_range_of_the_other_mode() {
    let cases = [
        (61000..=65535, "1024-60999"),
        (1024..=32767, "32768-65535"),
        (1025..=20000, "20001-65535"),
        (30000..=65535, "1024-29999"),
        (1100..=65535, "1024-65535"),
        (1024..=65535, "1024-65535"),
        (1..=100, "1024-65535"),
    ];
    for (kept, given) in cases {
        let text = Layout::new(Mark::default(), &kept, Extent::Whole).replace(&BTreeMap::new());
        assert!(text.contains(&format!("masquerade to :{given} fully-random")), "{kept:?}: {text}");
    }
}

#[test]
fn the_name_of_a_layout_depends_on_the_rules_and_the_mark() {
    let layout = usual(Extent::Whole);
    assert_eq!(layout, usual(Extent::Whole));
    let other = Layout::new(Mark { value: 0x2_0000, mask: 0x2_0000 }, &DEFAULT_SNAT_PORTS, Extent::Whole);
    assert_ne!(layout.name, other.name);
    assert_eq!(layout.rules, other.rules);
    let text = layout.replace(&BTreeMap::new());
    assert!(text.starts_with("table inet millrace\ndelete table inet millrace\n"), "{text}");
    for leftover in ["PORT", "ADDR", "IP ", "VALUE", "MASK", "BESIDE", "INNER", "CHAIN", "N ", "N\n"] {
        assert!(!text.contains(leftover), "{leftover} in {text}");
    }
}

#[test]
fn a_kernel_that_refuses_the_rules_of_direct_server_return_gets_all_others() {
    let [whole, bare] = [Extent::Whole, Extent::Bare].map(usual);
    let text = |layout: &Layout| layout.replace(&BTreeMap::new());
    assert!(whole.name != bare.name && whole.rules > bare.rules);
    let refuse = |word: &'static str| {
        move |layout: &Layout| match text(layout) {
            text if text.contains(word) => Err(NftError::Refused(format!("no {word}"))),
            _ => Ok(()),
        }
    };
    for word in [" dnat ", " zone "] {
        let outcome = write_largest(&whole, &bare, refuse(word)).unwrap();
        assert_eq!(outcome, Some(format!("no {word}")));
    }
    assert_eq!(write_largest(&whole, &bare, refuse("not in any table")).unwrap(), None);
    let nothing = write_largest(&whole, &bare, refuse("masquerade"));
    assert!(matches!(nothing, Err(NftError::Refused(why)) if why == "no masquerade"));
    let missing = write_largest(&whole, &bare, |_| Err(NftError::Missing));
    assert!(matches!(missing, Err(NftError::Missing)));
}

#[test]
fn only_packets_from_nodes_are_decapsulated_and_inner_node_ports_have_a_nodes_address() {
    let text = usual(Extent::Whole).replace(&BTreeMap::new());
    for rule in [
        "ip protocol 4 iifname @uplinks ip saddr @nodes4 meta mark set ip daddr map @encapsulated4 ",
        "ip6 nexthdr 41 iifname @uplinks ip6 saddr @nodes6 meta mark set ip6 daddr map @encapsulated6 ",
        "ip daddr @nodes4 dnat ip to meta mark . meta l4proto . th dport map @node_targets4",
        "ip6 daddr @nodes6 dnat ip6 to meta mark . meta l4proto . th dport map @node_targets6",
    ] {
        assert!(text.contains(rule), "{rule} is not in {text}");
    }
    for map in ["@encapsulated", "@node_targets"] {
        assert_eq!(text.matches(map).count(), 2, "{map} is used by another rule, too");
    }
}

#[test]
fn forged_tunnels_are_matched_after_the_whole_outer_header() {
    for extent in [Extent::Whole, Extent::Bare] {
        let text = usual(extent).replace(&BTreeMap::new());
        for rule in [
            "set inner_destinations4 { typeof @th,128,32; }\n",
            "set inner_destinations6 { typeof @th,192,128; }\n",
            "hook forward priority -200; policy accept;\n  meta l4proto { 4, 41 } goto tunnels\n",
            "  meta l4proto 17 th dport 5555 goto tunnels\n",
            "  iifname @uplinks ip saddr @nodes4 accept\n  iifname @uplinks ip6 saddr @nodes6 accept\n",
            "  @th,128,32 @inner_destinations4 goto forged_tunnel\n",
            "  @th,64,4 6 @th,256,128 @inner_destinations6 goto forged_tunnel\n",
            "chain forged_tunnel {\n  counter drop\n}\n",
        ] {
            assert!(text.contains(rule), "{rule} is not in {text}");
        }
    }
}

#[test]
fn the_counter_of_the_chain_is_the_number_of_forged_tunnels() {
    let json = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"chain": {"name": "forged_tunnel"}},
        {"rule": {"chain": "forged_tunnel", "expr": [{"counter": {"packets": 17, "bytes": 952}}, {"drop": null}]}}]}"#;
    assert_eq!(forged::count(json), 17);
    assert_eq!(forged::count("no JSON"), 0);
}

#[test]
fn other_nodes_get_the_list_of_clients_outside_without_direct_server_return() {
    let text = usual(Extent::Whole).replace(&BTreeMap::new());
    for (digit, header) in [("4", "ip"), ("6", "ip6")] {
        let input = format!("iifname @uplinks {header} saddr != @near{digit} jump outside{digit}\n");
        assert!(text.contains(&input), "{input} is not in {text}");
        let port = format!("{header} daddr . meta l4proto . th dport");
        let outside = format!(
            "chain outside{digit} {{\n  {port} @dropped_outside{digit} ct state new drop\n  {header} saddr @cluster{digit} \
             {port} @direct{digit} return\n  meta mark set {port} map @marks{digit} accept\n"
        );
        assert!(text.contains(&outside), "{outside} is not in {text}");
    }
}

#[test]
fn the_output_of_nft_is_read_as_members() {
    let json = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"table": {"family": "inet", "name": "millrace", "handle": 1}},
        {"chain": {"family": "inet", "table": "millrace", "name": "layout_00", "handle": 2}},
        {"rule": {"chain": "input", "expr": []}}, {"rule": {"chain": "input", "expr": []}},
        {"set": {"name": "services4", "elem": [{"concat": ["10.96.0.1", "tcp", 80]}, {"concat": ["10.96.0.1", 6, 81]}]}},
        {"set": {"name": "foreign", "elem": ["10.96.0.1"]}},
        {"set": {"name": "uplinks", "elem": ["eth0"]}},
        {"set": {"name": "inside6", "elem": [{"prefix": {"addr": "fd00::", "len": 8}}, "fe80::1"]}},
        {"set": {"name": "near6", "elem": ["fe80::1"]}},
        {"set": {"name": "direct4", "elem": [{"concat": ["10.96.0.1", "tcp", 82]}]}},
        {"set": {"name": "cluster4", "elem": [{"range": ["10.0.0.0", "10.255.255.255"]}]}},
        {"set": {"name": "allowed_udp4", "elem": [{"concat": ["10.96.0.1", 53, {"prefix": {"addr": "10.0.0.0", "len": 8}}]}]}},
        {"map": {"name": "marks4", "map": "mark", "elem": [[{"concat": ["10.96.0.1", "tcp", 80]}, 1291845633]]}},
        {"set": {"name": "nodes4", "elem": ["172.16.0.2"]}},
        {"set": {"name": "fou_nodes6", "elem": ["fd00::2"]}},
        {"set": {"name": "inner_destinations4", "type": "integer", "elem": [3405803777]}},
        {"set": {"name": "inner_destinations6", "type": "integer", "elem": [7, "0xfd000000000000000000000000000005"]}},
        {"map": {"name": "encapsulated6", "map": "mark", "elem": [["fd00::5", 1308622849]]}},
        {"map": {"name": "targets4", "elem": [[{"concat": [1308622849, "203.0.113.1", 6, 80]}, {"concat": ["10.244.0.5", 8080]}]]}},
        {"map": {"name": "node_targets6", "elem": [[{"concat": [1308622849, "tcp", 30080]}, {"concat": ["fd00::5", 8080]}]]}},
        {"map": {"name": "segments4", "map": "integer", "elem": [["eth0", 1440]]}}]}"#;
    let found = super::listing::parse(json).unwrap();
    assert_eq!((found.layout.as_str(), found.rules), ("layout_00", 2));
    let net = |text: &str| Element::Net(text.parse().unwrap());
    let range = Element::Range("10.96.0.1:53".parse().unwrap(), "10.0.0.0/8".parse().unwrap());
    let members = BTreeMap::from([
        ((Set::Services, port("10.96.0.1:80")), None),
        ((Set::Services, port("10.96.0.1:81")), None),
        ((Set::Uplinks, Element::Device("eth0".to_owned())), None),
        ((Set::Inside, net("fd00::/8")), None),
        ((Set::Inside, net("fe80::1/128")), None),
        ((Set::Near, net("fe80::1/128")), None),
        ((Set::Direct, port("10.96.0.1:82")), None),
        ((Set::Cluster, net("10.0.0.0/8")), None),
        ((Set::Allowed(Protocol::Udp), range), None),
        ((Set::Marks, port("10.96.0.1:80")), Some(0x4d00_0001)),
        ((Set::Nodes, Element::Address("172.16.0.2".parse().unwrap())), None),
        ((Set::FouNodes, Element::Address("fd00::2".parse().unwrap())), None),
        ((Set::InnerDestinations, Element::Address("203.0.113.1".parse().unwrap())), None),
        ((Set::InnerDestinations, Element::Address("::7".parse().unwrap())), None),
        ((Set::InnerDestinations, Element::Address("fd00::5".parse().unwrap())), None),
        ((Set::Encapsulated, Element::Address("fd00::5".parse().unwrap())), Some(0x4e00_0001)),
        of(Set::Targets, target("203.0.113.1:80", "10.244.0.5:8080")),
        of(Set::NodeTargets, target("[::]:30080", "[fd00::5]:8080")),
        ((Set::Segments, Element::FamilyDevice(Family::V4, "eth0".to_owned())), Some(1440)),
    ]);
    assert_eq!(found.members, members);
}

#[test]
fn an_error_of_nft_is_one_line_with_the_cause() {
    let stderr =
        "/dev/stdin:1:1-55: Error: Could not process rule: Operation not permitted\nadd element inet\n^^^\n";
    assert_eq!(last_words(stderr), "Could not process rule: Operation not permitted");
    assert_eq!(last_words(""), "it printed no error");
}

#[test]
fn a_foreign_rule_that_puts_connections_into_our_zone_is_found() {
    let rule = |table: &str, key: &str, value: u16| {
        let zone =
            serde_json::json!({"mangle": {"key": {"ct": {"key": key, "dir": "original"}}, "value": value}});
        serde_json::json!({"rule": {"family": "inet", "table": table, "chain": "early", "handle": 1,
            "expr": [{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "eth1"}}, zone]}})
    };
    let find = |rules: &[serde_json::Value]| {
        listing::user_of_zone(&serde_json::json!({"nftables": rules}).to_string(), direct::ZONE)
    };
    let others = [rule("vpn", "zone", 77), rule("vpn", "mark", 78), rule("millrace", "zone", 78)];
    assert_eq!(find(&others), None);
    let taken = [&others[..], &[rule("vpn", "zone", 78)]].concat();
    assert_eq!(find(&taken).as_deref(), Some("inet vpn"));
    assert_eq!(listing::user_of_zone("no JSON", direct::ZONE), None);
}
