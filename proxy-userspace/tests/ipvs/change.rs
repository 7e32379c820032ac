//! Mode changes of a node in both directions. No connection is cut, and the new mode serves new connections.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, cluster_ip, vip};
use millrace_lab::traffic::{LongConnections, Protocol, ask};

use crate::direct::wait_for_places;
use crate::fixture::{Altered, FLAGS, LIMIT, apply, ask_all, end_agent, listed, place, start_agent};

const PODS: [&str; 2] = ["pod-1a", "pod-2a"];
const IPVS: [&str; 2] = FLAGS;
const EBPF: [&str; 2] = ["--proxy-mode", "ebpf"];

/// Returns the shared cluster while node 1 changes its mode.
///
/// Afterwards only IPVS serves node 1, and node 2 has no data plane.
fn changing() -> Altered {
    Altered::new(|cluster| {
        if cluster.has_agent(2) {
            end_agent(cluster, 2)?;
        }
        end_agent(cluster, 1)?;
        start_agent(cluster, 1, &IPVS)
    })
}

impl Altered {
    /// Restarts node 1's agent, and waits until the log has these words once more.
    fn change(&mut self, flags: &[&str], words: &str) -> Result<()> {
        let said = self.proxy(1)?.log().matches(words).count();
        start_agent(self, 1, flags)?;
        self.wait_for_words(words, said + 1)
    }

    fn wait_for_words(&self, words: &str, times: usize) -> Result<()> {
        let proxy = self.proxy(1)?;
        proxy.wait_until_within(LIMIT, words, || Ok(proxy.log().matches(words).count() >= times))
    }

    /// Opens connections to a Service's addresses of both families, from the client outside and from a pod.
    fn open(&self, number: u8) -> Result<Vec<LongConnections>> {
        let mut all = Vec::new();
        for family in Family::ALL {
            let outside = SocketAddr::new(vip(number).of(family), 80);
            all.push(LongConnections::open(self.bed().client(), outside, 3, 3).context("outside")?);
            let inside = SocketAddr::new(cluster_ip(number).of(family), 80);
            let pod = self.bed().pod("pod-1b")?.namespace();
            all.push(LongConnections::open(pod, inside, 1, 2).context("inside")?);
        }
        Ok(all)
    }

    /// Checks that each endpoint serves new connections and datagrams.
    fn expect_service(&self, number: u8) -> Result<()> {
        for family in Family::ALL {
            let outside = SocketAddr::new(vip(number).of(family), 80);
            let inside = SocketAddr::new(cluster_ip(number).of(family), 80);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let context = || format!("{} {family:?}", protocol.name());
                ask_all(self.bed().client(), protocol, outside, &PODS).with_context(context)?;
                ask(self.bed().pod("pod-1b")?.namespace(), protocol, inside).with_context(context)?;
            }
        }
        Ok(())
    }

    /// Returns the weight and the number of connections of each IPVS server of a protocol.
    fn servers(&self, protocol: &str) -> Result<Vec<(u32, u32)>> {
        let of_protocol = listed(self)?.into_iter().filter(|one| one.service.starts_with(protocol));
        let servers = of_protocol.flat_map(|one| one.servers);
        Ok(servers.map(|(_, weight, active, inactive)| (weight, active + inactive)).collect())
    }

    /// Returns the connections that eBPF serves, in the words of the status.
    fn serves(&self) -> Result<String> {
        let status = self.proxy(1)?.json("status")?;
        Ok(status["serves"].as_str().context("the status has no field `serves`")?.to_owned())
    }

    fn is_pinned(&self) -> Result<bool> {
        let status = self.proxy(1)?.json("status")?;
        Ok(status.get("attached").is_some())
    }
}

fn close(connections: Vec<LongConnections>) -> Result<()> {
    for connections in connections {
        assert!(connections.stop()? >= 3);
    }
    Ok(())
}

#[test]
fn connections_stay_with_the_former_mode_and_new_ones_get_the_new_mode() -> Result<()> {
    let mut node = changing();
    apply(&node, 60, &node.service("changing", 60, &PODS)?.load_balancer(vip(60)))?;
    let of_ipvs = node.open(60)?;

    node.change(&EBPF, "eBPF serves new connections and datagrams")?;
    node.expect_service(60)?;
    let servers = node.servers("TCP")?;
    assert!(
        !servers.is_empty() && servers.iter().all(|(weight, had)| *weight == 0 && *had > 0),
        "{servers:?}"
    );
    assert_eq!(node.serves()?, "new connections");
    let of_ebpf = node.open(60)?;
    let flows = node.proxy(1)?.items("flows")?;
    let by = |mode: &str| flows.iter().filter(|flow| flow["mode"] == mode).count();
    assert!(by("ebpf") > 3 && by("ipvs") > 3, "{flows:#?}");

    // The next agent continues the change.
    node.change(&EBPF, "eBPF serves new connections and datagrams")?;
    node.expect_service(60)?;

    node.change(&IPVS, "IPVS serves new connections and datagrams")?;
    node.expect_service(60)?;
    let target = place(SocketAddr::new(vip(60).v4.into(), 80));
    let all = listed(&node)?;
    let found = all.iter().find(|one| one.service.starts_with(&format!("TCP {target} "))).context("gone")?;
    assert!(found.servers.iter().all(|(_, weight, ..)| *weight == 1), "{found:?}");
    assert_eq!(node.serves()?, "existing connections");
    let of_ipvs_again = node.open(60)?;

    close(of_ebpf)?;
    close(of_ipvs)?;
    close(of_ipvs_again)?;
    Ok(())
}

#[test]
fn the_former_mode_ends_after_the_drain() -> Result<()> {
    let mut node = changing();
    apply(&node, 61, &node.service("hurried", 61, &PODS)?.load_balancer(vip(61)))?;
    // The end of the drain cuts these connections.
    let lost = node.open(61)?;
    node.change(&[EBPF.as_slice(), &["--drain", "1"]].concat(), "IPVS is gone, eBPF serves alone")?;
    assert_eq!(listed(&node)?, []);
    assert_eq!(node.serves()?, "all connections");
    node.expect_service(61)?;
    drop(lost);
    let kept = node.open(61)?;
    // No trace of the change is left, so the next agent starts none.
    let changes = node.proxy(1)?.log().matches("eBPF serves new connections").count();
    start_agent(&mut node, 1, &EBPF)?;
    node.expect_service(61)?;
    assert_eq!(node.proxy(1)?.log().matches("eBPF serves new connections").count(), changes);
    close(kept)?;
    assert!(node.is_pinned()?);
    node.change(&[IPVS.as_slice(), &["--drain", "1"]].concat(), "eBPF is gone, IPVS serves alone")?;
    assert!(!node.is_pinned()?);
    node.expect_service(61)?;
    Ok(())
}

#[test]
fn ipvs_is_removed_after_its_last_connection() -> Result<()> {
    let mut node = changing();
    apply(&node, 62, &node.service("last", 62, &PODS)?.load_balancer(vip(62)))?;
    end_agent(&mut node, 1)?;
    start_agent(&mut node, 1, &IPVS)?;
    node.change(&EBPF, "IPVS is gone, eBPF serves alone")?;
    node.expect_service(62)
}

#[test]
fn direct_server_return_continues_through_a_reversed_change() -> Result<()> {
    let mut node = changing();
    start_agent(&mut node, 2, &IPVS)?;
    let service = node.service("direct-changing", 63, &PODS)?.load_balancer(vip(63));
    node.manifests().put_service(&service.annotation("millrace.dev/forwarding", "dsr"))?;
    for (number, map) in [(1, "marks"), (2, "targets")] {
        wait_for_places(&node, number, map, 63, 80)?;
    }
    let targets = Family::ALL.map(|family| SocketAddr::new(vip(63).of(family), 80));
    let open = |node: &Cluster| {
        let all = targets.into_iter().map(|target| LongConnections::open(node.bed().client(), target, 3, 3));
        all.collect::<Result<Vec<_>>>()
    };
    let before = open(&node)?;
    // A director in eBPF mode would send packets of unknown connections to either endpoint, by the slot.
    node.change(&EBPF, "eBPF serves new connections and datagrams")?;
    node.change(&IPVS, "IPVS serves new connections and datagrams")?;
    assert_eq!(node.serves()?, "existing connections");
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for target in targets {
            ask_all(node.bed().client(), protocol, target, &PODS)?;
        }
    }
    close(open(&node)?)?;
    close(before)?;
    // Otherwise node 1 would wait for other nodes that may encapsulate for its endpoint.
    node.manifests().remove("direct-changing.yaml")
}
