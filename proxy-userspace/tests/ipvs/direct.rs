//! Direct Server Return: node 1 is the director, its backends are on node 2, and both serve by IPVS.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::capture::{Capture, Packet, Trail};
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::frame::Frame;
use millrace_lab::manifests::Service;
use millrace_lab::process;
use millrace_lab::topology::{Family, Leg, vip};
use millrace_lab::traffic::{
    Connection, Fate, Fragments, LongConnections, Protocol, ask, path_mtu, send_datagram, send_encapsulated,
};
use millrace_lab::walk::Walk;
use serde_json::{Value, json};

use crate::fixture::{Altered, FLAGS, LIMIT, ask_all, start_agent};
use crate::modules;

const ETHERNET_HEADER: usize = 14;

/// Returns the shared cluster while IPVS serves node 2, too.
pub fn shared() -> Altered {
    Altered::with_both_nodes().unwrap()
}

/// Runs a program in a node's namespace, and returns its output.
pub fn output(cluster: &Cluster, node: u8, words: &[&str]) -> Result<String> {
    process::output(cluster.proxy(node)?.namespace(), words)
}

/// Returns a map or set of a node's table in the output of nft.
fn members(cluster: &Cluster, node: u8, kind: &str, name: &str) -> Result<String> {
    output(cluster, node, &["nft", "--numeric", "list", kind, "inet", "millrace", name])
}

/// Returns a Service with Direct Server Return and these pods as backends.
pub fn direct(cluster: &Cluster, name: &str, number: u8, pods: &[&str]) -> Result<Service> {
    let service = cluster.service(name, number, pods)?.load_balancer(vip(number));
    Ok(service.annotation("millrace.dev/forwarding", "dsr"))
}

/// Returns the address and port of a pod's server.
fn pod_address(cluster: &Cluster, pod: &str, family: Family) -> Result<SocketAddr> {
    Ok(SocketAddr::new(cluster.bed().pod(pod)?.addresses().of(family), TARGET_PORT))
}

/// Writes a Service, and waits until the director encapsulates and the backends' node decapsulates.
fn apply(cluster: &Cluster, number: u8, service: &Service) -> Result<()> {
    cluster.manifests().put_service(service)?;
    for (node, map) in [(1, "marks"), (2, "targets")] {
        wait_for_places(cluster, node, map, number, 80)?;
    }
    Ok(())
}

/// Waits until a map of a node's table has a load balancer's address and port for all protocols and families.
pub fn wait_for_places(cluster: &Cluster, node: u8, map: &str, number: u8, port: u16) -> Result<()> {
    let what = format!("{map} of node {node} have service {number}");
    cluster.proxy(node)?.wait_until_within(LIMIT, &what, || {
        Family::ALL.into_iter().try_fold(true, |so_far, family| {
            let digit = if family == Family::V4 { "4" } else { "6" };
            let found = members(cluster, node, "map", &format!("{map}{digit}"))?;
            let has =
                |protocol| found.contains(&format!("{} . {protocol} . {port} :", vip(number).of(family)));
            Ok(so_far && has(6) && has(17))
        })
    })
}

#[test]
fn a_backend_on_another_node_answers_a_client_directly() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 50, &direct(&cluster, "direct", 50, &["pod-2a", "pod-2b"])?.node_ports(31500))?;
    let straight = || Trail::direct_return("node1", "node2");
    cluster.expect(&Walk::to("direct", vip(50), 80, &["pod-2a", "pod-2b"], straight()))?;
    let node = cluster.bed().node(1)?.addresses();
    cluster.expect(&Walk::to("direct", node, 31500, &["pod-2a", "pod-2b"], straight()))?;
    let listed = output(&cluster, 1, &["ipvsadm", "-Ln"])?;
    let pod = format!("-> {} ", pod_address(&cluster, "pod-2a", Family::V4)?);
    let is_tunnel = |line: &str| line.contains(&pod) && line.contains("Tunnel");
    assert!(listed.contains("FWM ") && listed.lines().any(is_tunnel), "{listed}");
    let backends = cluster.proxy(1)?.items("backends")?;
    let place = json!(pod_address(&cluster, "pod-2a", Family::V4)?);
    let is_tunnel =
        |row: &Value| row["address"] == place && row["method"] == "tunnel" && row["local"] == false;
    assert!(backends.iter().any(is_tunnel), "{backends:#?}");
    let services = cluster.proxy(1)?.items("services")?;
    let direct = json!({"address": SocketAddr::new(vip(50).v4.into(), 80), "protocol": "TCP", "scope": "external",
                        "forwarding": "dsr", "affinity_seconds": 0, "source_ranges": null});
    let has_direct = |row: &Value| row["frontends"].as_array().is_some_and(|all| all.contains(&direct));
    assert!(services.iter().any(has_direct), "{services:#?}");
    Ok(())
}

#[test]
fn a_director_chooses_its_own_backends_and_those_on_other_nodes() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 51, &direct(&cluster, "mixed", 51, &["pod-1a", "pod-2a"])?)?;
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let target = SocketAddr::new(vip(51).of(family), 80);
        for answer in ask_all(cluster.bed().client(), protocol, target, &["pod-1a", "pod-2a"])? {
            assert!(answer.kept_client(), "{target}: {answer:?}");
        }
        // Clients inside are served by translation.
        for answer in
            ask_all(cluster.bed().pod("pod-1b")?.namespace(), protocol, target, &["pod-1a", "pod-2a"])?
        {
            assert!(answer.kept_client(), "{target}: {answer:?}");
        }
    }
    Ok(())
}

#[test]
fn a_host_process_of_another_node_is_reached_by_translation() -> Result<()> {
    let mut cluster = shared();
    cluster.start_host_server(2, 9292)?;
    let service = Service::new("hosts", 52).port(80, 9292).host(cluster.bed().node(2)?);
    let service = service.load_balancer(vip(52)).annotation("millrace.dev/forwarding", "dsr");
    cluster.manifests().put_service(&service)?;
    let director = cluster.bed().node(1)?.addresses();
    for family in Family::ALL {
        let target = SocketAddr::new(vip(52).of(family), 80);
        let client = cluster.bed().client();
        cluster
            .proxy(1)?
            .wait_until_within(LIMIT, "an answer", || Ok(ask(client, Protocol::Tcp, target).is_ok()))?;
        let seen = ask(client, Protocol::Tcp, target)?.sighting;
        assert_eq!((seen.backend.as_str(), seen.peer.ip()), ("host-node2", director.of(family)));
    }
    Ok(())
}

#[test]
fn connections_survive_both_agents_and_the_next_agents_write_nothing() -> Result<()> {
    let mut cluster = shared();
    apply(&cluster, 53, &direct(&cluster, "lasting", 53, &["pod-2a", "pod-2b"])?)?;
    let targets = Family::ALL.map(|family| SocketAddr::new(vip(53).of(family), 80));
    let connections = targets.map(|target| LongConnections::open(cluster.bed().client(), target, 2, 2));
    for node in [1, 2] {
        cluster.take_agent(node)?.kill()?;
    }
    for target in targets {
        ask(cluster.bed().client(), Protocol::Tcp, target)?;
    }
    let before = [state(&cluster, 1)?, state(&cluster, 2)?];
    for (node, before) in [1, 2].into_iter().zip(before) {
        start_agent(&mut cluster, node, &FLAGS)?;
        assert_eq!(state(&cluster, node)?, before, "handles and indices must stay");
    }
    for connections in connections {
        assert_eq!(connections?.stop()?, 4);
    }
    Ok(())
}

/// Returns the whole state of a node's data plane without connections.
fn state(cluster: &Cluster, node: u8) -> Result<[String; 3]> {
    Ok([
        output(cluster, node, &["nft", "--handle", "list", "table", "inet", "millrace"])?,
        output(cluster, node, &["ipvsadm", "-Sn"])?,
        output(cluster, node, &["ip", "-oneline", "address"])?,
    ])
}

#[test]
fn segments_and_datagrams_with_the_outer_header_fit_the_mtu_between_the_nodes() -> Result<()> {
    const WAY: usize = 1400;
    let cluster = shared();
    apply(&cluster, 54, &direct(&cluster, "sized", 54, &["pod-2a"])?)?;
    for (from, to) in [(1, 2), (2, 1)] {
        cluster.bed().narrow_routes(Leg::Nodes { from, to }, WAY as u32)?;
    }
    for (family, set, outer) in [(Family::V4, "segments4", 20), (Family::V6, "segments6", 40)] {
        let largest = WAY - outer;
        let segment = largest - outer - 20;
        let has_size = || Ok(members(&cluster, 2, "map", set)?.contains(&format!("\"eth0\" : {segment}")));
        cluster.proxy(2)?.wait_until_within(LIMIT, "the backend's node has the segment size", has_size)?;
        let target = SocketAddr::new(vip(54).of(family), 80);
        let mut capture = Capture::start(cluster.bed().router(), &["node2"])?;
        let answer = cluster
            .bed()
            .client()
            .run(async move || Connection::open(target).await?.upload(100_000).await)?;
        assert!(answer.sighting.received == 100_000 && answer.kept_client(), "{answer:?}");
        let accepts = capture.wait_for(LIMIT, |captured| {
            captured.packet.is_between(target, answer.client)
                && captured.packet.transport.is_some_and(|transport| transport.flags == SYN_ACK)
        })?;
        assert_eq!(announced(&accepts.frame, family), Some(segment), "{family}");
        assert_eq!(path_mtu(cluster.bed().client(), target, 1500)?, largest, "{family}");
    }
    Ok(())
}

#[test]
fn a_datagram_without_dont_fragment_and_its_answer_arrive_whole() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 59, &direct(&cluster, "large", 59, &["pod-2a"])?)?;
    let target = SocketAddr::new(vip(59).v4.into(), 80);
    for bytes in [1472, 4000] {
        let fate = send_datagram(cluster.bed().client(), target, Fragments::Allowed, bytes)?;
        assert_eq!(fate, Fate::Echoed, "{bytes}");
    }
    Ok(())
}

const SYN_ACK: u8 = 0x12;

/// Returns the largest segment size in a frame. The option must be the first of the TCP header.
fn announced(frame: &[u8], family: Family) -> Option<usize> {
    let option = 14 + if family == Family::V4 { 20 } else { 40 } + 20;
    let [2, 4, high, low] = *frame.get(option..option + 4)? else { return None };
    Some(usize::from(u16::from_be_bytes([high, low])))
}

#[test]
fn packets_that_a_stranger_or_a_pod_encapsulates_reach_no_backend() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 55, &direct(&cluster, "guarded", 55, &["pod-2a"])?)?;
    for family in Family::ALL {
        let (client, pod) = (cluster.bed().client(), cluster.bed().pod("pod-2a")?.addresses().of(family));
        let frontend = vip(55).of(family);
        let datagram = |port| {
            let frame = Frame::ip(cluster.bed().client_addresses().of(family), frontend).udp(port, 80);
            frame.payload("who is there?").build().split_off(ETHERNET_HEADER)
        };
        // Without this route, only nodes reach pods.
        let gateway = cluster.bed().node(2)?.addresses().of(family).to_string();
        process::output(
            cluster.bed().router(),
            &["ip", "route", "replace", &pod.to_string(), "via", &gateway],
        )?;
        let mut capture = Capture::start(client, &["eth0"])?;
        send_encapsulated(client, pod, &datagram(4000))?;
        send_encapsulated(cluster.bed().pod("pod-1a")?.namespace(), pod, &datagram(4002))?;
        send_encapsulated(cluster.bed().node(1)?.namespace(), pod, &datagram(4001))?;
        let from = SocketAddr::new(frontend, 80);
        let to = |port| SocketAddr::new(cluster.bed().client_addresses().of(family), port);
        capture.wait_for(LIMIT, |captured| captured.packet.is_between(from, to(4001)))?;
        let is_strangers =
            |packet: &Packet| [4000, 4002].iter().any(|port| packet.is_between(from, to(*port)));
        assert!(!capture.packets()?.iter().any(|captured| is_strangers(&captured.packet)));
    }
    Ok(())
}

#[test]
fn a_device_that_vanishes_with_its_module_is_reported_and_restored_with_it() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 56, &direct(&cluster, "modules", 56, &["pod-2a"])?)?;
    let target = SocketAddr::new(vip(56).v4.into(), 80);
    ask(cluster.bed().client(), Protocol::Tcp, target)?;
    modules::remove(c"ipip")?;
    let line = "the kernel makes no device millrace-tun4: module ipip is missing (modprobe ipip)";
    let named =
        cluster.proxy(2)?.wait_until_within(LIMIT, line, || Ok(cluster.proxy(2)?.log().contains(line)));
    modules::insert_all()?;
    named?;
    cluster.proxy(2)?.wait_until_within(LIMIT, "an answer", || {
        Ok(ask(cluster.bed().client(), Protocol::Tcp, target).is_ok())
    })
}

#[test]
fn a_service_that_loses_direct_server_return_is_served_by_translation() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("switched", 57, &["pod-2a"])?.load_balancer(vip(57));
    apply(&cluster, 57, &direct(&cluster, "switched", 57, &["pod-2a"])?)?;
    cluster.manifests().put_service(&service)?;
    let director = cluster.bed().node(1)?.addresses();
    for family in Family::ALL {
        let target = SocketAddr::new(vip(57).of(family), 80);
        cluster.proxy(1)?.wait_until_within(LIMIT, "the director's address is seen", || {
            let answer = ask(cluster.bed().client(), Protocol::Tcp, target);
            Ok(answer.is_ok_and(|answer| answer.sighting.peer.ip() == director.of(family)))
        })?;
    }
    cluster.proxy(2)?.wait_until_within(LIMIT, "nothing is left on the backend's node", || {
        Ok(!members(&cluster, 2, "map", "targets4")?.contains(&vip(57).v4.to_string()))
    })
}

#[test]
fn cleanup_removes_everything_from_a_backends_node() -> Result<()> {
    let mut cluster = shared();
    apply(&cluster, 58, &direct(&cluster, "clean", 58, &["pod-2a"])?)?;
    let devices = ["millrace-tun4", "millrace-tun6"];
    for device in devices {
        output(&cluster, 2, &["ip", "link", "show", device])?;
    }
    cluster.take_agent(2)?.stop()?;
    let cleaned = cluster.proxy(2)?.command(&["cleanup"])?;
    assert!(cleaned.status.success(), "{}", String::from_utf8_lossy(&cleaned.stderr));
    let printed = String::from_utf8(cleaned.stdout)?;
    let links = output(&cluster, 2, &["ip", "-oneline", "link"])?;
    for device in devices {
        assert!(printed.contains(device) && !links.contains(device), "{printed}\n{links}");
    }
    assert_eq!(output(&cluster, 2, &["nft", "list", "tables"])?, "");
    start_agent(&mut cluster, 2, &FLAGS)
}
