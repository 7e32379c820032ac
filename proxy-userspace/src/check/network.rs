//! Devices: uplinks, those of pods, and their programs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::finding::faults_or;
use super::{Facts, Finding};
use crate::config::Settings;
use crate::dataplane::ebpf::{self, Chain, XdpMode};
use crate::node::{self, Device, DeviceKind, Hook, Look, NodeError, Topology, XdpUse};

/// The node's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The kernel's state.
    pub look: Look,
    /// The devices with programs, and the routes to nodes, as an agent with these settings has them.
    pub topology: Topology,
    /// Devices with an address of a network that are no uplinks.
    pub overlooked: BTreeSet<String>,
    /// The driver of each uplink, as far as it is known.
    pub drivers: BTreeMap<String, String>,
    /// Uplinks that merge received segments (LRO).
    pub merging: BTreeSet<String>,
    /// The programs on each uplink, in the order in which they see packets.
    pub chains: Vec<Chain>,
}

impl Network {
    /// Looks at the network. `targets` are the addresses of the cluster's nodes, as far as they are known. Devices with
    /// these indexes serve as uplinks now, so their addresses are this node's.
    pub async fn read(
        settings: &Settings,
        targets: &BTreeSet<IpAddr>,
        serving: &BTreeSet<u32>,
    ) -> Result<Self, NodeError> {
        let wanted = settings.node();
        let look = node::look(targets).await?;
        let own = look.state.addresses.iter().filter(|(index, _)| serving.contains(index));
        let targets = &targets.iter().copied().chain(own.map(|(_, address)| *address)).collect();
        let topology = node::topology(&look.state, &wanted, targets);
        let overlooked = node::overlooked(&look.state, &wanted, targets);
        let uplinks = || topology.uplinks.iter();
        let drivers = uplinks().filter_map(|name| Some((name.clone(), node::ethtool::driver(name).ok()?)));
        let merging = uplinks().filter(|name| node::ethtool::has_lro(name).unwrap_or(false));
        Ok(Self {
            drivers: drivers.collect(),
            merging: merging.cloned().collect(),
            chains: uplinks().flat_map(|name| ebpf::chains(name)).collect(),
            look,
            topology,
            overlooked,
        })
    }

    /// Returns a device with its index, by name.
    pub fn device(&self, name: &str) -> Option<(u32, &Device)> {
        let mut devices = self.look.state.devices.iter();
        devices.find(|(_, device)| device.name == name).map(|(index, device)| (*index, device))
    }

    /// Returns the uplinks with their indexes.
    pub fn uplinks(&self) -> impl Iterator<Item = (u32, &Device)> {
        self.topology.uplinks.iter().filter_map(|name| self.device(name))
    }
}

pub fn uplinks(facts: &Facts) -> Vec<Finding> {
    let network = match &facts.network {
        Ok(network) => network,
        Err(why) => return vec![Finding::skip(why)],
    };
    let mut faults = missing(network);
    if network.topology.uplinks.is_empty() && faults.is_empty() {
        faults.push(Finding::fail(
            "no device has a default route or a node's address: nothing from outside is served",
            "name the devices toward the network by --uplinks",
        ));
    }
    for (index, device) in network.uplinks() {
        let name = &device.name;
        let has_carrier = network.look.links.get(&index).is_none_or(|link| link.has_carrier);
        if !device.up {
            faults.push(Finding::fail(format!("{name} is down"), format!("ip link set {name} up")));
        } else if !has_carrier {
            let remedy = format!("look at the cable or the peer of {name}: ip -d link show {name}");
            faults.push(Finding::fail(format!("{name} is up, and has no carrier"), remedy));
        }
    }
    faults_or(faults, || chosen(network))
}

/// Returns the failures of the names in `--uplinks` that no device has.
fn missing(network: &Network) -> Vec<Finding> {
    const SHOWN: usize = 8;
    let is_link = |device: &&Device| device.kind != DeviceKind::Loopback;
    let mut there: Vec<&str> =
        network.look.state.devices.values().filter(is_link).map(|device| device.name.as_str()).collect();
    there.sort_unstable();
    let more = there.len().saturating_sub(SHOWN);
    there.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    let consequence = if network.topology.uplinks.is_empty() {
        "Nothing from outside is served."
    } else {
        "What comes in there is not served."
    };
    let fault = |name: &String| {
        Finding::fail(
            format!(
                "--uplinks names {name}; there is no such device (there are: {there}{more}). {consequence}"
            ),
            "name the devices toward the network by --uplinks, or leave it out",
        )
    };
    network.topology.missing_uplinks.iter().map(fault).collect()
}

fn chosen(network: &Network) -> String {
    let names = network.topology.uplinks.iter().map(|name| match network.drivers.get(name) {
        Some(driver) => format!("{name} ({driver})"),
        None => name.clone(),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    if network.overlooked.is_empty() {
        return names;
    }
    let left = network.overlooked.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("{names}; not {left}: --uplinks can name it if clients or nodes come by it")
}

pub fn xdp(facts: &Facts) -> Vec<Finding> {
    let Ok(network) = &facts.network else { return vec![Finding::skip("the devices are not known")] };
    if facts.pins.is_err() && facts.others.is_ipvs_ours {
        return vec![Finding::skip("IPVS serves here, without programs")];
    }
    let findings: Vec<Finding> =
        network.uplinks().map(|(index, device)| of_device(facts, network, index, device)).collect();
    if findings.is_empty() { vec![Finding::skip("there is no uplink")] } else { findings }
}

fn of_device(facts: &Facts, network: &Network, index: u32, device: &Device) -> Finding {
    let name = &device.name;
    let attached = facts.pins.as_ref().ok().and_then(|pins| {
        let is_it = |one: &&ebpf::read::AttachedView| (one.device_index, &*one.hook) == (index, "xdp");
        pins.status.attached.iter().find(is_it)
    });
    let found = network.look.links.get(&index).and_then(|link| link.xdp);
    if let Some(id) = found.filter(|id| attached.is_none_or(|ours| ours.program_id != *id)) {
        return Finding::warn(
            format!("{name} has the XDP program {id} of other software; TC serves there, behind it"),
            format!("bpftool prog show id {id}, and detach it if it is not needed"),
        );
    }
    if let Some(attached) = attached {
        return Finding::pass(format!("{name}: {}, in place", attached.mode));
    }
    if network.merging.contains(name) && wants_xdp(network, index) {
        return Finding::warn(
            format!("{name} merges received segments (LRO), with which many drivers refuse XDP"),
            format!("ethtool -K {name} lro off"),
        );
    }
    let why = without_xdp(facts.settings.xdp, facts.settings.node().xdp, device);
    match (why, facts.pins.is_ok()) {
        (Some(why), _) => Finding::pass(format!("{name}: served by TC alone, {why}")),
        (None, false) => {
            let driver = network.drivers.get(name).map_or("unknown", String::as_str);
            Finding::pass(format!("{name}: tried when the agent starts (driver {driver})"))
        }
        (None, true) => {
            let driver = network.drivers.get(name).map_or("its driver", String::as_str);
            let found = format!("{name}: served by TC alone, {driver} does not take the XDP program");
            match facts.settings.xdp {
                XdpMode::Native | XdpMode::Generic => {
                    Finding::warn(found, "the agent's log has the driver's answer; --xdp auto expects it")
                }
                XdpMode::Auto | XdpMode::Off => Finding::pass(found),
            }
        }
    }
}

fn wants_xdp(network: &Network, index: u32) -> bool {
    network.topology.devices.get(&index).is_some_and(|target| target.hooks.contains(&Hook::Xdp))
}

/// Returns why a device gets no XDP program.
fn without_xdp(mode: XdpMode, used: XdpUse, device: &Device) -> Option<&'static str> {
    match device.kind {
        _ if mode == XdpMode::Off => Some("as --xdp off says"),
        _ if device.mac.is_none() => Some("as it has no Ethernet frames"),
        DeviceKind::Veth if used == XdpUse::OffTheWire => Some("as it is a veth device"),
        DeviceKind::Bridge | DeviceKind::Vlan | DeviceKind::Overlay | DeviceKind::Loopback => {
            Some("as XDP sees its packets on the device below")
        }
        DeviceKind::Veth | DeviceKind::Other => None,
    }
}

pub fn pods(facts: &Facts) -> Vec<Finding> {
    let Ok(network) = &facts.network else { return vec![Finding::skip("the devices are not known")] };
    let targets = network.topology.devices.values();
    let count = targets.filter(|target| target.hooks.contains(&Hook::TcPodIn)).count();
    let patterns: Vec<String> = facts.settings.pod_interfaces.iter().map(ToString::to_string).collect();
    let patterns = patterns.join(",");
    vec![if count == 0 {
        Finding::skip(format!("no device matches --pod-interfaces {patterns} yet"))
    } else {
        Finding::pass(format!("{count} match --pod-interfaces {patterns}"))
    }]
}

pub fn links(facts: &Facts) -> Vec<Finding> {
    let pins = match &facts.pins {
        Ok(pins) => pins,
        Err(why) => return vec![Finding::skip(why)],
    };
    let Ok(network) = &facts.network else { return vec![Finding::skip("the devices are not known")] };
    let has = |index: u32, hook: &str| {
        pins.status.attached.iter().any(|one| (one.device_index, &*one.hook) == (index, hook))
    };
    let mut faults = Vec::new();
    for (index, target) in &network.topology.devices {
        // XDP is tried, and TC serves without it.
        let hooks = target.hooks.iter().filter_map(|hook| tc_name(*hook));
        for hook in hooks.filter(|hook| !has(*index, hook)) {
            faults.push(Finding::fail(
                format!("{hook} is not attached to {}: what passes there is not served", target.name),
                "look at the agent's log; an agent that runs attaches it again within a minute",
            ));
        }
    }
    faults_or(faults, || format!("{} programs are attached", pins.status.attached.len()))
}

const fn tc_name(hook: Hook) -> Option<&'static str> {
    match hook {
        Hook::Xdp => None,
        Hook::TcIngress | Hook::TcIngressL3 => Some("tc_ingress"),
        Hook::TcEgress | Hook::TcEgressL3 => Some("tc_egress"),
        Hook::TcPodIn => Some("tc_pod_in"),
        Hook::TcPodOut => Some("tc_pod_out"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::judged;
    use super::super::finding::Outcome;
    use super::*;

    /// Reads the topology anew after a change of the settings or the devices.
    fn renew(facts: &mut Facts) {
        let settings = facts.settings.node();
        let network = facts.network.as_mut().unwrap();
        network.topology = node::topology(&network.look.state, &settings, &BTreeSet::new());
    }

    #[test]
    fn a_misspelt_uplink_is_a_fault_that_names_the_devices_there() {
        let found = judged(
            |facts| {
                facts.settings.uplinks = vec!["eth9".to_owned()];
                renew(facts);
            },
            uplinks,
        );
        assert_eq!(found.outcome, Outcome::Fail);
        assert_eq!(
            found.found,
            "--uplinks names eth9; there is no such device (there are: eth0, veth1). Nothing from outside is served."
        );
        let beside = judged(
            |facts| {
                facts.settings.uplinks = vec!["eth0".to_owned(), "eth9".to_owned()];
                renew(facts);
            },
            uplinks,
        );
        assert!(beside.found.ends_with("What comes in there is not served."), "{}", beside.found);
    }

    #[test]
    fn an_uplink_that_is_down_or_without_carrier_is_a_fault() {
        assert_eq!(judged(|_| {}, uplinks), Finding::pass("eth0 (virtio_net)"));
        let down = |facts: &mut Facts| {
            let network = facts.network.as_mut().unwrap();
            network.look.state.devices.get_mut(&2).unwrap().up = false;
        };
        assert_eq!(judged(down, uplinks), Finding::fail("eth0 is down", "ip link set eth0 up"));
        let loose = |facts: &mut Facts| {
            facts.network.as_mut().unwrap().look.links.get_mut(&2).unwrap().has_carrier = false;
        };
        assert!(judged(loose, uplinks).found.contains("no carrier"));
        let without = |facts: &mut Facts| {
            facts.network.as_mut().unwrap().look.state.default_routes.clear();
            renew(facts);
        };
        assert!(judged(without, uplinks).found.starts_with("no device has a default route"));
        let second = |facts: &mut Facts| {
            facts.network.as_mut().unwrap().overlooked.insert("eth1".to_owned());
        };
        assert!(judged(second, uplinks).found.contains("not eth1"));
    }

    #[test]
    fn an_uplink_without_xdp_has_a_reason() {
        let says = |change: fn(&mut Facts)| judged(change, xdp);
        assert_eq!(says(|_| {}).found, "eth0: native, in place");
        let foreign = says(|facts| {
            facts.network.as_mut().unwrap().look.links.get_mut(&2).unwrap().xdp = Some(99);
        });
        assert!(
            foreign.outcome == Outcome::Warn && foreign.found.contains("XDP program 99 of other software")
        );
        let bare = |facts: &mut Facts| {
            facts.pins.as_mut().unwrap().status.attached.clear();
            facts.network.as_mut().unwrap().look.links.get_mut(&2).unwrap().xdp = None;
        };
        let refused = judged(bare, xdp);
        assert_eq!(refused.found, "eth0: served by TC alone, virtio_net does not take the XDP program");
        let asked = judged(
            |facts| {
                bare(facts);
                facts.settings.xdp = XdpMode::Native;
            },
            xdp,
        );
        assert_eq!(asked.outcome, Outcome::Warn);
        let off = judged(
            |facts| {
                bare(facts);
                facts.settings.xdp = XdpMode::Off;
            },
            xdp,
        );
        assert_eq!(off.found, "eth0: served by TC alone, as --xdp off says");
        let by_ipvs = |facts: &mut Facts| {
            facts.pins = Err("none".to_owned());
            facts.others.is_ipvs_ours = true;
        };
        assert_eq!(judged(by_ipvs, xdp).outcome, Outcome::Skip);
        let merging = judged(
            |facts| {
                bare(facts);
                facts.network.as_mut().unwrap().merging.insert("eth0".to_owned());
            },
            xdp,
        );
        assert_eq!(merging.remedy, "ethtool -K eth0 lro off");
    }

    #[test]
    fn a_hook_without_its_program_is_a_fault() {
        assert_eq!(judged(|_| {}, links), Finding::pass("5 programs are attached"));
        let gone = |facts: &mut Facts| {
            facts.pins.as_mut().unwrap().status.attached.retain(|one| one.hook != "tc_ingress");
        };
        assert!(judged(gone, links).found.starts_with("tc_ingress is not attached to eth0:"));
        let none = |facts: &mut Facts| facts.pins = Err("no data plane".to_owned());
        assert_eq!(judged(none, links), Finding::skip("no data plane"));
    }

    #[test]
    fn devices_of_pods_are_counted() {
        assert!(judged(|_| {}, pods).found.starts_with("1 match --pod-interfaces veth*,"));
        let none = |facts: &mut Facts| {
            facts.network.as_mut().unwrap().look.state.devices.remove(&3);
            renew(facts);
        };
        assert_eq!(judged(none, pods).outcome, Outcome::Skip);
    }
}
