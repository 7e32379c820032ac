//! The node monitor against a real kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use millrace::node::{self, Hook, NodeSettings, Topology, XdpUse};
use millrace_lab::net::{Namespace, Netlink, read_sysctl, write_sysctl};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourMessage,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

const LIMIT: Duration = Duration::from_secs(10);

/// Returns two namespaces with a link between them. `eth0` of the node is 192.0.2.1 and
/// 2001:db8::1. Its peer's addresses end in 2.
fn linked_pair(name: &str) -> Result<(Namespace, Namespace)> {
    let node = Namespace::create(&format!("{name}-node"))?;
    let peer = Namespace::create(&format!("{name}-peer"))?;
    let file = peer.file()?;
    node.run(async move || {
        Netlink::open()?.add_veth("eth0", "eth0", &file).await?;
        for family in ["ipv4/conf/all/rp_filter", "ipv4/ip_forward"] {
            write_sysctl(&format!("net/{family}"), "0")?;
        }
        set_up("1").await
    })?;
    peer.run(async || set_up("2").await)?;
    Ok((node, peer))
}

async fn set_up(host: &str) -> Result<()> {
    write_sysctl("net/ipv6/conf/eth0/accept_dad", "0")?;
    let netlink = Netlink::open()?;
    netlink.set_up("eth0").await?;
    netlink.add_address("eth0", format!("192.0.2.{host}/24").parse()?).await?;
    netlink.add_address("eth0", format!("2001:db8::{host}/64").parse()?).await
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A monitor of the current namespace, with its input and output.
struct Monitor {
    targets: watch::Sender<Option<BTreeSet<IpAddr>>>,
    topology: watch::Receiver<Option<Topology>>,
}

impl Monitor {
    fn start(targets: &[&str]) -> Self {
        let (target_sender, target_receiver) = watch::channel(None);
        let (sender, topology) = watch::channel(None);
        let settings = NodeSettings { xdp: XdpUse::Everywhere, ..NodeSettings::default() };
        tokio::spawn(node::follow(settings, target_receiver, sender));
        target_sender.send_replace(Some(targets.iter().map(|text| ip(text)).collect()));
        Self { targets: target_sender, topology }
    }

    /// Waits until the topology is as `is_expected` says.
    async fn until(&mut self, what: &str, is_expected: impl Fn(&Topology) -> bool) -> Result<Topology> {
        let wait = self.topology.wait_for(|topology| topology.as_ref().is_some_and(&is_expected));
        let found = timeout(LIMIT, wait).await.map(|found| found.map(|found| found.clone()));
        match found {
            Ok(Ok(Some(topology))) => Ok(topology),
            other => anyhow::bail!("never seen: {what}; last {other:?} {:?}", self.topology.borrow()),
        }
    }
}

fn is_resolved(topology: &Topology, target: &str) -> bool {
    topology.ways.get(&ip(target)).is_some_and(|way| way.link.is_some())
}

#[test]
fn ways_follow_addresses_routes_and_neighbours() -> Result<()> {
    let (node, _peer) = linked_pair("ways")?;
    node.run(async || {
        let mut monitor =
            Monitor::start(&["192.0.2.1", "192.0.2.2", "2001:db8::2", "198.51.100.7", "2001:db8:7::7"]);
        let on_link = monitor
            .until("both nodes on the link resolved", |topology| {
                is_resolved(topology, "192.0.2.2") && is_resolved(topology, "2001:db8::2")
            })
            .await?;
        assert!(!on_link.ways.contains_key(&ip("198.51.100.7")), "there is no route yet");
        assert!(!on_link.ways.contains_key(&ip("192.0.2.1")), "this node itself has no way");
        let way = &on_link.ways[&ip("192.0.2.2")];
        assert_eq!((way.source, way.mtu), (ip("192.0.2.1"), 1500));

        let netlink = Netlink::open()?;
        netlink.set_route("198.51.100.0/24".parse()?, ip("192.0.2.2")).await?;
        netlink.set_route("2001:db8:7::/64".parse()?, ip("2001:db8::2")).await?;
        let routed = monitor
            .until("both nodes behind the router resolved", |topology| {
                is_resolved(topology, "198.51.100.7") && is_resolved(topology, "2001:db8:7::7")
            })
            .await?;
        assert_eq!(routed.ways[&ip("198.51.100.7")].link, way.link, "by the router's MAC address");

        netlink.delete_link("eth0").await?;
        monitor.until("no way left", |topology| topology.ways.is_empty()).await?;
        Ok(())
    })
}

#[test]
fn hooks_follow_devices_as_they_come_and_go() -> Result<()> {
    let (node, _peer) = linked_pair("hooks")?;
    node.run(async || {
        let mut monitor = Monitor::start(&["192.0.2.1"]);
        let hooks = |topology: &Topology| -> BTreeMap<String, Vec<Hook>> {
            let devices = topology.devices.values();
            devices.map(|device| (device.name.clone(), device.hooks.iter().copied().collect())).collect()
        };
        let uplink = ("eth0".to_owned(), vec![Hook::Xdp, Hook::TcIngress, Hook::TcEgress]);
        let alone = BTreeMap::from([uplink.clone()]);
        monitor.until("the uplink", |topology| hooks(topology) == alone).await?;
        let netlink = Netlink::open()?;
        netlink.add_bridge("docker0").await?;
        let both = BTreeMap::from([uplink, ("docker0".to_owned(), vec![Hook::TcEgress])]);
        monitor.until("the bridge", |topology| hooks(topology) == both).await?;
        netlink.delete_link("docker0").await?;
        monitor.until("the uplink alone again", |topology| hooks(topology) == alone).await?;
        assert_eq!(read_sysctl("net/ipv4/ip_forward")?.trim(), "1", "forwarding was off");
        Ok(())
    })
}

/// Returns the addresses of the neighbours that the kernel keeps resolved.
async fn managed() -> Result<BTreeSet<IpAddr>> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let neighbours: Vec<NeighbourMessage> = handle.neighbours().get().execute().try_collect().await?;
    connection.abort();
    let is_managed = |neighbour: &NeighbourMessage| {
        neighbour.attributes.contains(&NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed))
    };
    let address = |attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(address.into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(address.into()),
        _ => None,
    };
    let managed = neighbours.into_iter().filter(is_managed);
    Ok(managed.flat_map(|neighbour| neighbour.attributes).filter_map(address).collect())
}

async fn until_managed(addresses: &[&str]) -> Result<()> {
    let expected: BTreeSet<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
    let deadline = Instant::now() + LIMIT;
    loop {
        let now = managed().await?;
        if now == expected {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "{now:?} are managed, {expected:?} expected");
        sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn next_hops_are_managed_while_a_way_uses_them_and_those_of_the_pinned_ways_released_at_cleanup() -> Result<()>
{
    let (node, _peer) = linked_pair("neighbours")?;
    node.run(async || {
        let monitor = Monitor::start(&["192.0.2.2", "2001:db8::2"]);
        until_managed(&["192.0.2.2", "2001:db8::2"]).await?;
        let all = BTreeSet::from([ip("192.0.2.2"), ip("2001:db8::2")]);
        assert_eq!(node::release_for(&all).await?, 2, "one for each family");
        until_managed(&["192.0.2.2", "2001:db8::2"]).await.context("after their removal")?;
        monitor.targets.send_replace(Some(BTreeSet::from([ip("192.0.2.2")])));
        until_managed(&["192.0.2.2"]).await.context("after a node has gone")?;
        drop(monitor);
        let of_another_agent = BTreeSet::from([ip("192.0.2.3"), ip("2001:db8::2")]);
        assert_eq!(node::release_for(&of_another_agent).await?, 0);
        assert_eq!(node::release_for(&all).await?, 1);
        until_managed(&[]).await
    })
}
