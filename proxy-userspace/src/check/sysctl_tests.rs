use super::super::finding::Outcome;
use super::*;
use crate::node::{self, DefaultRoute};

fn judged(change: impl FnOnce(&mut Facts), judge: fn(&Facts) -> Vec<Finding>) -> Vec<Finding> {
    let mut facts = Facts::example();
    change(&mut facts);
    judge(&facts)
}

/// A second uplink, by which no default route leads.
fn two_uplinks(facts: &mut Facts) {
    facts.settings.uplinks = vec!["eth0".to_owned(), "eth1".to_owned()];
    let settings = facts.settings.node();
    let network = facts.network.as_mut().unwrap();
    let second = node::Device { name: "eth1".to_owned(), ..network.look.state.devices[&2].clone() };
    network.look.state.devices.insert(4, second);
    network.topology = node::topology(&network.look.state, &settings, &std::collections::BTreeSet::new());
}

#[test]
fn forwarding_that_was_turned_off_under_a_data_plane_is_a_fault() {
    assert_eq!(judged(|_| {}, forwarding), [Finding::pass("on")]);
    let off = judged(|facts| facts.sysctls.set("ipv4/ip_forward", "0"), forwarding);
    assert_eq!(off[0].remedy, "sysctl -w net.ipv4.ip_forward=1");
    let before = judged(
        |facts| {
            facts.sysctls.set("ipv6/conf/all/forwarding", "0");
            facts.pins = Err("none".to_owned());
        },
        forwarding,
    );
    assert_eq!(before, [Finding::pass("the agent turns net.ipv6.conf.all.forwarding on")]);
}

#[test]
fn a_strict_filter_is_a_fault_where_the_default_route_leads_elsewhere() {
    let strict = |facts: &mut Facts| {
        two_uplinks(facts);
        facts.sysctls.set("ipv4/conf/eth1/rp_filter", "1");
    };
    let found = judged(strict, reverse_path);
    assert_eq!(
        found[0].found,
        "rp_filter of eth1 is 1 (strict), and the default route leads by eth0: the kernel drops clients' packets \
         that come in by eth1"
    );
    assert_eq!(found[0].remedy, "sysctl -w net.ipv4.conf.eth1.rp_filter=2");
    // A second default route of the same metric, as by multipath.
    let both = judged(
        |facts| {
            strict(facts);
            let state = &mut facts.network.as_mut().unwrap().look.state;
            state.default_routes.insert(DefaultRoute {
                device: 4,
                family: Family::V4,
                table: 254,
                metric: 0,
            });
        },
        reverse_path,
    );
    assert_eq!(both[0].outcome, Outcome::Pass);
    let loose = judged(
        |facts| {
            strict(facts);
            facts.sysctls.set("ipv4/conf/all/rp_filter", "2");
        },
        reverse_path,
    );
    assert_eq!(loose[0].outcome, Outcome::Pass, "the higher value counts");
    // The only uplink: replies leave where requests come in.
    assert_eq!(
        judged(|facts| facts.sysctls.set("ipv4/conf/eth0/rp_filter", "1"), reverse_path)[0].outcome,
        Outcome::Pass
    );
}

#[test]
fn a_pod_that_answers_with_a_services_address_must_not_meet_a_strict_filter() {
    let found = judged(
        |facts| {
            facts.settings.dsr.dispatch = Dispatch::Pod;
            facts.sysctls.set("ipv4/conf/veth1/rp_filter", "1");
        },
        reverse_path,
    );
    assert!(
        found[0].found.starts_with("rp_filter of veth1 is 1 (strict): with --dsr-dispatch pod"),
        "{found:?}"
    );
}

#[test]
fn ports_that_a_process_may_be_given_are_named() {
    assert_eq!(judged(|_| {}, ports)[0].outcome, Outcome::Pass);
    let overlap = judged(|facts| facts.sysctls.set(LOCAL_PORTS, "1024\t65535"), ports);
    assert_eq!(overlap[0].remedy, "sysctl -w net.ipv4.ip_local_port_range=\"32768 65535\"");
    let free = judged(|facts| facts.sysctls.set(RESERVED, "8080"), ports);
    assert_eq!(free[0].remedy, "sysctl -w net.ipv4.ip_local_reserved_ports=8080,61000-65535");
}

#[test]
fn a_file_that_undoes_a_setting_at_boot_is_named() {
    assert_eq!(judged(|_| {}, boot)[0].outcome, Outcome::Skip);
    let found = judged(
        |facts| {
            two_uplinks(facts);
            facts
                .sysctls
                .boot
                .add("/etc/sysctl.d/9.conf", "net.ipv4.ip_forward=0\nnet.ipv4.conf.*.rp_filter=1\n");
        },
        boot,
    );
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[0].found.starts_with("/etc/sysctl.d/9.conf sets net.ipv4.ip_forward to \"0\" at boot"));
    assert!(found[1].found.contains("net.ipv4.conf.eth0.rp_filter"));
    let other = judged(|facts| facts.sysctls.boot.add("x", "net.ipv4.ip_forward=1\n"), boot);
    assert_eq!(other[0].outcome, Outcome::Pass);
}
