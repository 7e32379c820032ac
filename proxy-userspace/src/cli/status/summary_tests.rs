use super::*;
use crate::cli::version::Agent;
use crate::dataplane::ebpf::read::{MapView, StatusView, WayView};
use crate::health::{AgentView, FailingView};

pub fn status(heartbeat_age_seconds: Option<u64>, report: Report) -> Status {
    let attached = |device: &str, device_index, hook: &'static str, mode: &'static str| AttachedView {
        device: device.to_owned(),
        device_index,
        hook: hook.into(),
        mode: mode.into(),
        program_id: 1,
    };
    let map = |name: &str, used, entries| MapView {
        name: name.to_owned(),
        entries,
        used,
        memory_bytes: Some(1 << 20),
    };
    let view = StatusView {
        layout_version: 5,
        heartbeat_age_seconds,
        failures: FailuresView::default(),
        serves: "all connections".into(),
        shared_seconds: None,
        attached: vec![
            attached("cgroup", 0, "cg_bind4", "cgroup"),
            attached("eth0", 2, "tc_egress", "tcx"),
            attached("eth0", 2, "tc_ingress", "tcx"),
            attached("eth0", 2, "xdp", "native"),
            attached("veth1", 3, "tc_pod_in", "tcx"),
        ],
        cluster_sources: Vec::new(),
        maps: vec![
            map("BACKENDS4", Some(3), 1000),
            map("BACKENDS6", Some(2), 1000),
            map("FLOWS4", None, 9),
            map("WAYS", Some(1), 4),
        ],
    };
    let counter = |reason: &'static str, drop, packets| {
        let (program, reason) = ("xdp_ingress".into(), reason.into());
        CounterView { program, reason, drop, packets, bytes: 60 * packets }
    };
    let way = |resolved| WayView {
        id: 1,
        target: "192.0.2.12".parse().unwrap(),
        source: None,
        device: 2,
        mtu: 1500,
        resolved,
        xdp: true,
        destination_mac: String::new(),
        source_mac: String::new(),
    };
    Status {
        view,
        agent_alive: heartbeat_age_seconds == Some(3),
        services: 7,
        ways: vec![way(true), way(false)],
        counters: vec![
            counter("not_ours", false, 9),
            counter("no_way", true, 2),
            counter("too_big", true, 0),
        ],
        others: Vec::new(),
        report,
    }
}

pub fn ipvs_view(agent_alive: bool) -> ipvs::StatusView {
    ipvs::StatusView {
        mode: "ipvs",
        agent_alive,
        virtual_services: 4,
        servers: 9,
        draining: 1,
        connections: 17,
        addresses: 3,
        forged_tunnel: 5,
    }
}

fn report(readiness: Option<ReadyView>) -> Report {
    let agent = readiness.clone().map(|readiness| {
        let version = Some("0.1.0".to_owned());
        Agent::of(&AgentView { process: 4711, version, uptime_seconds: Some(273_600), node: None, readiness })
    });
    Report { agent, readiness }
}

fn ready() -> ReadyView {
    ReadyView { ready: true, failing: Vec::new(), failures: Vec::new() }
}

#[test]
fn a_node_that_is_well_has_a_summary_of_a_few_lines() {
    let text = of_ebpf("node-a", &status(Some(3), report(Some(ready()))), None);
    let wanted = "\
node-a: Ready; eBPF
  agent    0.1.0, process 4711, since 3d4h; heartbeat 3 s ago
  uplinks  eth0 (xdp native, tc tcx)
  inside   1 socket hooks, 1 pod devices
  serves   all connections; 7 Services, 5 endpoints
  ways     1 of 2 resolved
  drops    no_way 2
  maps     layout 5, 4 MiB; fullest WAYS 25%
  problems none
";
    assert_eq!(text, wanted);
    assert!(text.lines().all(|line| line.len() <= 80));
}

#[test]
fn without_an_agent_the_summary_says_so_and_what_the_last_one_failed_on() {
    let mut alone = status(Some(99), report(None));
    let text = of_ebpf("node-a", &alone, None);
    assert!(text.starts_with("node-a: unknown, no agent answers; eBPF\n"), "{text}");
    assert!(text.contains("none answers; silent for 99 s; the data path goes on"), "{text}");
    assert!(text.ends_with("  problems 1\n    unknown: no agent answers\n"), "{text}");
    alone.view.failures = FailuresView { node: 1, device: 2, map: 7, service_ports: 3 };
    let failed = "the last one failed on all uplinks, devices: 2, entries of full maps: 7, service ports: 3";
    assert!(of_ebpf("node-a", &alone, None).contains(failed));
    assert!(of_ebpf("node-a", &status(None, report(None)), None).contains("no heartbeat yet"));
}

#[test]
fn the_summary_names_what_keeps_the_node_from_being_ready() {
    let failing = |condition: &str, message: &str, cause: Option<&str>| FailingView {
        condition: condition.to_owned(),
        message: message.to_owned(),
        cause: cause.map(str::to_owned),
    };
    let view = ReadyView {
        ready: false,
        failing: vec![
            failing("source-listed", "not listed", Some("401 Unauthorized")),
            failing("data-plane", "no device is an uplink", None),
        ],
        failures: vec!["no device is an uplink".to_owned(), "there is no device eth9".to_owned()],
    };
    let lines = "\
  problems 3
    source-listed: not listed: 401 Unauthorized
    data-plane: no device is an uplink
    there is no device eth9
";
    let waiting = Waiting { agent_alive: true, report: report(Some(view.clone())) };
    let text = of_waiting("node-a", &waiting);
    assert!(text.starts_with("node-a: not ready; no data plane yet\n") && text.ends_with(lines), "{text}");
    let mut beside = status(Some(3), report(Some(view)));
    beside.view.failures.service_ports = 2;
    assert!(of_ebpf("node-a", &beside, None).ends_with("there is no device eth9\n    service ports: 2\n"));
}

#[test]
fn a_full_map_and_another_data_plane_are_problems() {
    let mut beside = status(Some(3), report(Some(ready())));
    beside.view.maps.push(MapView {
        name: "PEERS".to_owned(),
        entries: 10,
        used: Some(8),
        memory_bytes: None,
    });
    let other = |path: Option<&str>, process| OtherView {
        bpffs_path: path.map(Into::into),
        device: "eth0".to_owned(),
        hook: "tc_ingress".to_owned(),
        program_id: 17,
        process,
    };
    beside.others = vec![other(None, None), other(Some("/run/bpf"), None), other(Some("/run/two"), Some(9))];
    let text = of_ebpf("node-a", &beside, None);
    for line in [
        "map PEERS is 80% full (10 entries)",
        "another data plane is attached (tc_ingress on eth0); its pins are not in sight",
        "left over: `millrace cleanup --bpffs-path /run/bpf`",
        "agent 9 with --bpffs-path /run/two runs: end it",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(text.contains("problems 4\n"), "{text}");
}

#[test]
fn a_mode_change_shows_both_modes() {
    let mut changing = status(Some(3), report(Some(ready())));
    changing.view.serves = "existing connections".into();
    changing.view.shared_seconds = Some(90);
    let text = of_ebpf("node-a", &changing, Some(&ipvs_view(true)));
    assert!(text.starts_with("node-a: Ready; eBPF and IPVS\n"), "{text}");
    assert!(text.contains("serves   existing connections, since 90 s; 7 Services"), "{text}");
    assert!(
        text.contains("ipvs     4 virtual services, 9 servers (1 draining), 17 connections, 3 addresses"),
        "{text}"
    );
    let alone =
        |agent_alive| of_ipvs("node-a", &OfIpvs { view: ipvs_view(agent_alive), report: report(None) });
    assert!(alone(true).contains("agent    alive\n") && alone(true).contains("drops    forged_tunnel 5\n"));
    assert!(alone(false).contains("agent    gone; the data path goes on\n"));
}

#[test]
fn drops_are_summed_over_programs_and_the_most_frequent_are_named() {
    let counter = |program: &'static str, reason: &'static str, packets| CounterView {
        program: program.into(),
        reason: reason.into(),
        drop: true,
        packets,
        bytes: 0,
    };
    let mut counters = vec![counter("a", "x", 1), counter("b", "x", 2), counter("a", "y", 9)];
    assert_eq!(drops(&counters), "y 9, x 3");
    counters.extend([counter("a", "z", 5), counter("a", "w", 1)]);
    assert_eq!(drops(&counters), "y 9, z 5, x 3, 1 more reasons");
    assert_eq!(drops(&[]), "none");
}
