//! Sysctls: as they are now, and as files set them at boot.

use std::collections::BTreeMap;

use super::boot::{Assignment, Boot};
use super::finding::faults_or;
use super::fix::{Fix, name};
use super::{Facts, Finding};
use crate::dataplane::ebpf::Dispatch;
use crate::model::Family;
use crate::node::{DeviceKind, Look, Ports, Sysctls, first_and_last};

const IP_FORWARD: &str = "ipv4/ip_forward";
const FORWARDING6: &str = "ipv6/conf/all/forwarding";
const LOCAL_PORTS: &str = "ipv4/ip_local_port_range";
const RESERVED: &str = "ipv4/ip_local_reserved_ports";
const NODE_PORTS: (u16, u16) = (30000, 32767);
/// The reverse-path filter that drops a packet whose source is reached by another device.
const STRICT: u32 = 1;

/// The sysctls below `net/` that the data path depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<String, String>,
    /// The files that set sysctls at boot.
    pub boot: Boot,
}

impl Settings {
    /// Reads the sysctls of this network namespace, and the files for the boot.
    pub fn read(devices: impl Iterator<Item = String>) -> Self {
        let sysctls = Sysctls::default();
        let usual = [IP_FORWARD, FORWARDING6, LOCAL_PORTS, RESERVED, "ipv4/conf/all/rp_filter"];
        let keys = usual.into_iter().map(str::to_owned).chain(devices.map(|device| rp_filter(&device)));
        let values = keys.filter_map(|key| Some((sysctls.read(&key).ok()?, key)));
        Self { values: values.map(|(value, key)| (key, value)).collect(), boot: Boot::read() }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Returns the reverse-path filter of a device: the kernel uses the higher of two values.
    fn rp_filter(&self, device: &str) -> Option<u32> {
        let value = |device: &str| self.get(&rp_filter(device))?.parse::<u32>().ok();
        Some(value("all")?.max(value(device)?))
    }

    /// Sets a value, as a test needs it.
    #[cfg(test)]
    pub fn set(&mut self, key: &str, value: &str) {
        self.values.insert(key.to_owned(), value.to_owned());
    }
}

fn rp_filter(device: &str) -> String {
    format!("ipv4/conf/{device}/rp_filter")
}

pub fn forwarding(facts: &Facts) -> Vec<Finding> {
    let is_off = |key: &&str| facts.sysctls.get(key) == Some("0");
    let off: Vec<&str> = [IP_FORWARD, FORWARDING6].into_iter().filter(is_off).collect();
    if facts.pins.is_err() {
        let names = off.iter().map(|key| name(key)).collect::<Vec<_>>().join(", ");
        let later = if off.is_empty() { "on".to_owned() } else { format!("the agent turns {names} on") };
        return vec![Finding::pass(later)];
    }
    let faults = off.into_iter().map(|key| {
        Fix::sysctl(key, 1).fail(format!("{} is 0: no packet from outside reaches a pod", name(key)))
    });
    faults_or(faults.collect(), || "on".to_owned())
}

pub fn reverse_path(facts: &Facts) -> Vec<Finding> {
    let Ok(network) = &facts.network else { return vec![Finding::skip("the devices are not known")] };
    if facts.pins.is_err() {
        return vec![Finding::pass("the agent loosens rp_filter of uplinks, if there are several")];
    }
    let strict = |device: &str| facts.sysctls.rp_filter(device) == Some(STRICT);
    let mut faults = Vec::new();
    for (index, device) in network.uplinks().filter(|(_, device)| device.kind != DeviceKind::Overlay) {
        if let Some(other) = other_exit(&network.look, index).filter(|_| strict(&device.name)) {
            let name = &device.name;
            faults.push(Fix::sysctl(&rp_filter(name), 2).fail(format!(
                "rp_filter of {name} is 1 (strict), and the default route leads by {other}: the kernel drops clients' \
                 packets that come in by {name}"
            )));
        }
    }
    if facts.settings.dsr.dispatch != Dispatch::Node {
        faults.extend(toward_pods(facts, &strict));
    }
    faults_or(faults, || "no strict filter is on a path of clients".to_owned())
}

/// Returns the device of the best default route, if packets to most clients leave there and not by this device.
fn other_exit(look: &Look, index: u32) -> Option<&str> {
    let routes =
        look.state.default_routes.iter().filter(|route| route.family == Family::V4 && route.table == 254);
    let best = routes.clone().map(|route| route.metric).min()?;
    let mut exits = routes.filter(|route| route.metric == best);
    let first = exits.clone().next()?.device;
    if exits.any(|route| route.device == index) {
        return None;
    }
    look.state.devices.get(&first).map(|device| device.name.as_str())
}

/// Returns the warning about the devices of pods that decapsulate themselves, and answer with a Service's address.
fn toward_pods(facts: &Facts, strict: &dyn Fn(&str) -> bool) -> Option<Finding> {
    let network = facts.network.as_ref().ok()?;
    let patterns = &facts.settings.pod_interfaces;
    let is_strict = |name: &&str| patterns.iter().any(|pattern| pattern.matches(name)) && strict(name);
    let names = network.look.state.devices.values().map(|device| device.name.as_str());
    let names: Vec<&str> = names.filter(is_strict).collect();
    let first = *names.first()?;
    let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
    Some(Finding::warn(
        format!(
            "rp_filter of {first}{more} is 1 (strict): with --dsr-dispatch {} the kernel drops replies with a \
             Service's address from pods there",
            facts.settings.dsr.dispatch.name()
        ),
        format!("sysctl -w net.ipv4.conf.{first}.rp_filter=0, and for each such device"),
    ))
}

pub fn ports(facts: &Facts) -> Vec<Finding> {
    let mut faults = Vec::new();
    let range = facts.sysctls.get(LOCAL_PORTS).and_then(first_and_last);
    let reserved = facts.sysctls.get(RESERVED).map(Ports::parse).unwrap_or_default();
    if let Some((first, last)) = range {
        let shared = (first.max(NODE_PORTS.0), last.min(NODE_PORTS.1));
        if shared.0 <= shared.1 && !reserved.holds(shared) {
            let above = format!("{} {last}", NODE_PORTS.1 + 1);
            faults.push(Fix::sysctl(LOCAL_PORTS, above).warn(format!(
                "net.ipv4.ip_local_port_range {first}-{last} overlaps Kubernetes' usual NodePorts: a process may be \
                 given the number of a NodePort, and its connection fails"
            )));
        }
    }
    let snat = (*facts.settings.snat_ports.start(), *facts.settings.snat_ports.end());
    if facts.pins.is_ok() && facts.sysctls.get(RESERVED).is_some() && !reserved.holds(snat) {
        let all = Ports([reserved.0, vec![snat]].concat());
        faults.push(Fix::sysctl(RESERVED, all).warn(format!(
            "--snat-ports {}-{} are not in net.ipv4.ip_local_reserved_ports: a process may be given one, and its \
             replies are taken for a Service's",
            snat.0, snat.1
        )));
    }
    faults_or(faults, || "no process is given a NodePort or a port of --snat-ports".to_owned())
}

pub fn boot(facts: &Facts) -> Vec<Finding> {
    if facts.sysctls.boot.is_empty() {
        return vec![Finding::skip("no file of sysctl.d is visible here")];
    }
    let Ok(network) = &facts.network else { return vec![Finding::skip("the devices are not known")] };
    let mut faults = Vec::new();
    let mut expect = |key: &str, is_wrong: &dyn Fn(&str) -> bool, why: &str| {
        if let Some(set) = facts.sysctls.boot.value(key).filter(|set| is_wrong(&set.value)) {
            faults.push(at_boot(key, set, why));
        }
    };
    expect(IP_FORWARD, &|value| value == "0", "pods are cut off until the agent starts again");
    expect(FORWARDING6, &|value| value == "0", "pods are cut off until the agent starts again");
    let uplinks: Vec<&str> = network.uplinks().map(|(_, device)| device.name.as_str()).collect();
    if uplinks.len() > 1 {
        for device in uplinks.into_iter().chain(["all"]) {
            let why = "packets from clients that are reached by another uplink are dropped then";
            expect(&rp_filter(device), &|value| value == "1", why);
        }
    }
    let snat = (*facts.settings.snat_ports.start(), *facts.settings.snat_ports.end());
    let lacks = |value: &str| !Ports::parse(value).holds(snat);
    expect(RESERVED, &lacks, "processes may be given the ports of --snat-ports then");
    faults_or(faults, || "no file of sysctl.d sets what the data path can't have".to_owned())
}

fn at_boot(key: &str, set: &Assignment, why: &str) -> Finding {
    let (name, value, file) = (name(key), &set.value, &set.file);
    Finding::warn(
        format!("{file} sets {name} to {value:?} at boot and at each `sysctl --system`: {why}"),
        format!("change it in {file}"),
    )
}

#[cfg(test)]
#[path = "sysctl_tests.rs"]
mod tests;
