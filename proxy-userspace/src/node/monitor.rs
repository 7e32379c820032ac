//! Follows the node's network and publishes the topology for the data plane.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tracing::{debug, info, warn};

use super::host::Host;
use super::topology::{NodeSettings, Topology, is_service_device, topology, uplinks};
use super::{DeviceKind, NodeError, NodeState, Update, decode, neighbours, query, remarks};

/// Time to collect a burst: a link that comes up sends some twenty notifications.
const BURST: Duration = Duration::from_millis(10);
/// The longest time between two updates. The firewall waits for new devices.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Wait after a request that the kernel refused.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two probes of next hops that the kernel does not keep resolved itself.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two dumps: next-hop objects and learned path MTUs change without notification.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);

const GROUPS: [MulticastGroup; 8] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// Keeps `published` at the [`topology`] of this network namespace, until one of the two channels
/// is closed.
///
/// `targets` are the addresses of the cluster's nodes. While it is `None`, nodes are unknown:
/// nothing is published and no neighbour removed.
pub async fn follow(
    settings: NodeSettings,
    targets: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    published: watch::Sender<Option<Topology>>,
) -> Result<(), NodeError> {
    let (connection, _, mut notifications) =
        rtnetlink::new_multicast_connection(&GROUPS).map_err(NodeError::Open)?;
    let listener = tokio::spawn(connection);
    // Requests have a socket of their own, so that a flood of notifications can't crowd out the
    // answers.
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NodeError::Open)?;
    let requester = tokio::spawn(connection);
    let mut monitor = Monitor {
        state: NodeState::default(),
        stale: Stale::Everything,
        prepared: Vec::new(),
        uplinks: Vec::new(),
        overlooked: BTreeSet::new(),
        veths_with_xdp: BTreeSet::new(),
        missing: BTreeSet::new(),
        service_devices: BTreeSet::new(),
        unroutable: BTreeSet::new(),
        own: BTreeSet::new(),
        managed: BTreeSet::new(),
        host: Host::new(settings.notes.as_deref()),
        settings,
        targets,
        published,
        handle,
    };
    let result = monitor.run(&mut notifications).await;
    listener.abort();
    requester.abort();
    result
}

/// A message and its sender.
type Notification = (NetlinkMessage<RouteNetlinkMessage>, SocketAddr);

/// The part of the state that has to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stale {
    Nothing,
    Routes,
    Everything,
}

struct Monitor {
    settings: NodeSettings,
    host: Host,
    targets: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    published: watch::Sender<Option<Topology>>,
    handle: Handle,
    state: NodeState,
    stale: Stale,
    /// The uplinks whose sysctls are set.
    prepared: Vec<String>,
    /// The devices and addresses that were logged last.
    uplinks: Vec<String>,
    overlooked: BTreeSet<String>,
    veths_with_xdp: BTreeSet<String>,
    missing: BTreeSet<String>,
    service_devices: BTreeSet<String>,
    unroutable: BTreeSet<IpAddr>,
    /// Node addresses that were on this node once. A device that is being replaced removes them for
    /// a while.
    own: BTreeSet<IpAddr>,
    /// Next hops that the kernel was asked to resolve since the last probe.
    managed: BTreeSet<(u32, IpAddr)>,
}

impl Monitor {
    async fn run(
        &mut self,
        notifications: &mut (impl Stream<Item = Notification> + Unpin),
    ) -> Result<(), NodeError> {
        let mut probe = interval_at(Instant::now() + PROBE_INTERVAL, PROBE_INTERVAL);
        let mut resync = interval_at(Instant::now() + RESYNC_INTERVAL, RESYNC_INTERVAL);
        probe.set_missed_tick_behavior(MissedTickBehavior::Delay);
        resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let begun = Instant::now();
            match self.update().await {
                Err(NodeError::Request(error @ rtnetlink::Error::NetlinkError(_))) => {
                    warn!(%error, "the kernel refused an rtnetlink request; everything is read again");
                    self.stale = Stale::Everything;
                    sleep(RETRY_INTERVAL).await;
                    continue;
                }
                updated => updated?,
            }
            // At most a fifth of a CPU, with thousands of nodes and a flapping routing daemon. While containers start and
            // end, the kernel keeps requests waiting for seconds: no work of this task.
            sleep(BURST.max(begun.elapsed() * 4).min(LONGEST_PAUSE)).await;
            tokio::select! {
                notification = notifications.next() => {
                    let (message, _) = notification.ok_or(NodeError::Closed)?;
                    self.apply(&message.payload);
                    while let Some(Some((message, _))) = notifications.next().now_or_never() {
                        self.apply(&message.payload);
                    }
                }
                changed = self.targets.changed() => match changed {
                    Ok(()) => self.stale = self.stale.max(Stale::Routes),
                    Err(_) => return Ok(()),
                },
                _ = probe.tick() => self.managed.clear(),
                _ = resync.tick() => self.stale = Stale::Everything,
                () = self.published.closed() => return Ok(()),
            }
        }
    }

    fn apply(&mut self, payload: &NetlinkPayload<RouteNetlinkMessage>) {
        match payload {
            NetlinkPayload::InnerMessage(message) => {
                for update in decode::updates(message) {
                    if update.affects_routes() {
                        self.stale = self.stale.max(Stale::Routes);
                    }
                    if let Update::NeighbourGone(device, address) = &update {
                        self.managed.remove(&(*device, *address));
                    }
                    self.state.apply(update);
                }
            }
            NetlinkPayload::Overrun(_) => {
                debug!("rtnetlink notifications were lost; everything is read again");
                self.stale = Stale::Everything;
            }
            _ => {}
        }
    }

    /// Reads the stale part of the state, publishes the topology, and updates sysctls and
    /// neighbours.
    async fn update(&mut self) -> Result<(), NodeError> {
        if self.stale == Stale::Everything {
            self.state = query::dump(&self.handle).await?;
        }
        self.report_missing();
        let Some(targets) = self.targets.borrow_and_update().clone() else {
            self.stale = self.stale.max(Stale::Routes);
            return Ok(());
        };
        if self.stale >= Stale::Routes {
            self.state.routes = query::routes(&self.handle, targets.iter().copied()).await?;
        }
        self.stale = Stale::Nothing;
        let topology = topology(&self.state, &self.settings, &targets);
        self.report(&topology, &targets);
        self.report_unexpected_devices(&targets);
        self.prepare(&topology, &targets);
        self.published.send_if_modified(|published| {
            let is_new = published.as_ref() != Some(&topology);
            *published = Some(topology);
            is_new
        });
        self.keep_resolved(&targets).await;
        Ok(())
    }

    /// Sets the sysctls of uplinks that are new, or that lead to nodes from now on.
    fn prepare(&mut self, topology: &Topology, targets: &BTreeSet<IpAddr>) {
        let devices = topology.ways.values().filter_map(|way| self.state.devices.get(&way.device));
        let to_nodes: BTreeSet<&str> = devices.map(|device| device.name.as_str()).collect();
        let uplinks = uplinks(&self.state, &self.settings, targets);
        // Encapsulated packets of other nodes come in by an overlay only if the nodes' addresses
        // are reached through it.
        let filtered = uplinks
            .iter()
            .filter(|device| device.kind != DeviceKind::Overlay || to_nodes.contains(device.name.as_str()));
        let names: Vec<&str> = filtered.map(|device| device.name.as_str()).collect();
        if names != self.prepared {
            self.host.prepare(&names);
            self.prepared = names.into_iter().map(str::to_owned).collect();
        }
    }

    /// Logs once which uplinks do not exist, before the nodes are known.
    fn report_missing(&mut self) {
        let names: BTreeSet<&str> = self.state.devices.values().map(|device| device.name.as_str()).collect();
        let missing: BTreeSet<String> =
            self.settings.uplinks.iter().filter(|name| !names.contains(name.as_str())).cloned().collect();
        for name in missing.difference(&self.missing) {
            warn!(device = %name, "--uplinks: there is no such device; it is taken up as soon as it appears");
        }
        self.missing = missing;
    }

    /// Logs changes of uplinks, of other proxies' devices and of nodes without a route.
    fn report(&mut self, topology: &Topology, targets: &BTreeSet<IpAddr>) {
        let uplinks = uplinks(&self.state, &self.settings, targets);
        let names: Vec<&str> = uplinks.iter().map(|device| device.name.as_str()).collect();
        if names != self.uplinks {
            let devices = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            info!(devices, "uplinks chosen");
            if let Some(ports) = &self.settings.snat_ports {
                self.host.reserve_ports(ports);
            }
            self.uplinks = names.into_iter().map(str::to_owned).collect();
        }
        let of_services = self.state.devices.values().filter(|device| is_service_device(device));
        let of_services: BTreeSet<String> = of_services.map(|device| device.name.clone()).collect();
        let others = of_services.iter().filter(|name| self.settings.own_device.as_deref() != Some(name));
        for name in others.filter(|name| !self.service_devices.contains(*name)) {
            warn!(
                device = %name,
                "the device carries another proxy's service addresses: they do not count as this node's own"
            );
        }
        self.service_devices = of_services;
        self.own.extend(topology.addresses.intersection(targets));
        let unroutable: BTreeSet<IpAddr> = targets
            .iter()
            .filter(|target| !topology.ways.contains_key(target) && !self.own.contains(target))
            .copied()
            .collect();
        for target in unroutable.difference(&self.unroutable) {
            warn!(address = %target, "no route to a node address: backends there are out of reach");
        }
        self.unroutable = unroutable;
    }

    /// Logs once which devices are no uplinks, or are veths with XDP, although a person may expect
    /// otherwise.
    fn report_unexpected_devices(&mut self, targets: &BTreeSet<IpAddr>) {
        let overlooked = remarks::overlooked(&self.state, &self.settings, targets);
        if overlooked != self.overlooked && !overlooked.is_empty() {
            let devices = overlooked.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            info!(
                devices,
                "devices with an address are no uplinks: they have neither a default route nor a node's address; \
                 clients that come in there are not served unless --uplinks names all devices toward the network"
            );
        }
        self.overlooked = overlooked;
        let veths = remarks::veths_with_xdp(&self.state, &self.settings, targets);
        for device in veths.difference(&self.veths_with_xdp) {
            warn!(
                device,
                "XDP on a veth: the sender leaves checksums to the device, so packets that XDP sends to other nodes \
                 arrive broken; switch offloading off at the other end (`ethtool -K DEVICE tx off tso off gso off`), \
                 or leave --xdp at auto"
            );
        }
        self.veths_with_xdp = veths;
    }

    async fn keep_resolved(&mut self, targets: &BTreeSet<IpAddr>) {
        let plan = neighbours::plan(&self.state, targets);
        for next_hop in plan.manage {
            if !self.managed.insert(next_hop) {
                continue;
            }
            if let Err(error) = neighbours::manage(&self.handle, next_hop).await {
                debug!(address = %next_hop.1, %error, "the neighbour can't be managed");
            }
        }
        for next_hop in plan.release {
            if let Err(error) = neighbours::release(&self.handle, next_hop).await {
                debug!(address = %next_hop.1, %error, "the neighbour can't be removed");
            }
        }
    }
}
