//! Other software that serves the same packets: kube-proxy, other data planes, other users of ports and marks.

use std::collections::BTreeSet;
use std::fs;

use super::finding::faults_or;
use super::network::Network;
use super::{Facts, Finding};
use crate::config::Settings;
use crate::dataplane::ebpf::{Chain, Side};
use crate::dataplane::ipvs;
use crate::model::Protocol;
use crate::node;

/// The device that kube-proxy's IPVS mode and ours have.
const IPVS_DEVICE: &str = ipvs::DEVICE;

/// Traces of other software.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The places of kube-proxy's rules.
    pub kube_proxy: Vec<&'static str>,
    /// Processes of kube-proxy in this network namespace that are visible here.
    pub processes: Vec<u32>,
    /// Whether Millrace's IPVS mode has left something here.
    pub is_ipvs_ours: bool,
    /// TCP ports that a process of this network namespace listens on.
    pub listening: BTreeSet<u16>,
}

impl Others {
    /// Looks for traces.
    pub fn read() -> Self {
        Self {
            kube_proxy: ipvs::traces_of_kube_proxy(),
            processes: processes("kube-proxy"),
            is_ipvs_ours: ipvs::is_here(),
            listening: node::listeners()
                .into_iter()
                .filter(|listener| listener.protocol == Protocol::Tcp)
                .map(|listener| listener.address.port())
                .collect(),
        }
    }
}

/// Returns the processes of a program in this network namespace.
fn processes(name: &str) -> Vec<u32> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let own = namespace("thread-self");
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |number: &u32| {
        fs::read_to_string(format!("/proc/{number}/comm")).is_ok_and(|comm| comm.trim_end() == name)
            && namespace(&number.to_string()) == own
    };
    numbers.filter(is_it).collect()
}

pub fn kube_proxy(facts: &Facts) -> Vec<Finding> {
    if facts.settings.model.service_proxy_name.is_some() {
        return vec![Finding::pass("with --service-proxy-name, another proxy is expected beside this one")];
    }
    let others = &facts.others;
    let has_device = device(facts, IPVS_DEVICE) && !others.is_ipvs_ours;
    let mut traces: Vec<String> = others.kube_proxy.iter().map(|trace| (*trace).to_owned()).collect();
    traces.extend(has_device.then(|| format!("the device {IPVS_DEVICE}")));
    if let [process, ..] = others.processes.as_slice() {
        return vec![Finding::warn(
            format!("kube-proxy runs here (process {process}), and serves the same Services"),
            "end it on this node, then run `kube-proxy --cleanup`; or give one of the two a --service-proxy-name",
        )];
    }
    let faults = traces.into_iter().map(|trace| {
        Finding::warn(
            format!("kube-proxy's rules are here ({trace}), and serve the same Services"),
            "end kube-proxy on this node if it runs, then run `kube-proxy --cleanup`",
        )
    });
    faults_or(faults.collect(), || "no trace of kube-proxy".to_owned())
}

fn device(facts: &Facts, name: &str) -> bool {
    facts.network.as_ref().is_ok_and(|network| network.device(name).is_some())
}

/// Other data planes: the name, a device, the beginning of their programs' names, and what to do.
const DATA_PLANES: [(&str, &str, &str, &str); 3] = [
    ("Cilium", "cilium_host", "cil_", "set kubeProxyReplacement to false in Cilium's configuration"),
    ("Calico's eBPF", "bpfin.cali", "cali_", "set bpfEnabled to false in Calico's FelixConfiguration"),
    ("kube-router", "kube-dummy-if", "", "run kube-router with --run-service-proxy=false"),
];

pub fn data_planes(facts: &Facts) -> Vec<Finding> {
    let chains = facts.network.iter().flat_map(|network| &network.chains);
    let names: Vec<&str> = chains.flat_map(|chain| &chain.programs).map(|(_, name)| name.as_str()).collect();
    let faults = DATA_PLANES.into_iter().filter_map(|(software, name, programs, remedy)| {
        let program = names.iter().find(|name| !programs.is_empty() && name.starts_with(programs));
        let trace = match program {
            Some(program) => format!("the program {program} on an uplink"),
            None if device(facts, name) => format!("the device {name}"),
            None => return None,
        };
        let found = format!("{software} is here ({trace}), and may serve the same Services");
        Some(Finding::warn(found, remedy))
    });
    faults_or(faults.collect(), || "no trace of Cilium, Calico's eBPF or kube-router".to_owned())
}

pub fn programs(facts: &Facts) -> Vec<Finding> {
    let Ok(pins) = &facts.pins else { return vec![Finding::skip("no program of Millrace is attached yet")] };
    let ours: BTreeSet<u32> = pins.status.attached.iter().map(|one| one.program_id).collect();
    let Ok(network) = &facts.network else { return vec![Finding::skip("the devices are not known")] };
    let faults = network.chains.iter().filter_map(|chain| before_ours(chain, &ours));
    faults_or(faults.collect(), || "no other program sees packets before ours".to_owned())
}

/// Returns the finding of other programs between the wire and ours.
fn before_ours(chain: &Chain, ours: &BTreeSet<u32>) -> Option<Finding> {
    let is_ours = |(id, _): &(u32, String)| ours.contains(id);
    let (between, verb) = match chain.side {
        Side::Ingress => {
            (chain.programs.iter().take_while(|one| !is_ours(one)).collect::<Vec<_>>(), "sees packets on")
        }
        Side::Egress => (
            chain.programs.iter().rev().take_while(|one| !is_ours(one)).collect(),
            "sees translated replies on",
        ),
    };
    // A chain without our program is the matter of another check.
    if between.is_empty() || between.len() == chain.programs.len() {
        return None;
    }
    let names = between.iter().map(|(id, name)| format!("{name} ({id})")).collect::<Vec<_>>().join(", ");
    let place = if chain.side == Side::Ingress { "before" } else { "behind" };
    Some(Finding::warn(
        format!("{names} {verb} {} {place} ours: it may drop or redirect them", chain.device),
        format!("bpftool net show dev {}; start the agent again after the other software", chain.device),
    ))
}

pub fn mark(facts: &Facts) -> Vec<Finding> {
    let mark = facts.settings.mark;
    let Ok(network) = &facts.network else { return vec![Finding::skip("the policy rules are not known")] };
    if mark.mask == 0 {
        return vec![Finding::skip("no mark with --fwmark 0/0")];
    }
    let mut faults: Vec<Finding> = known_users(facts, network);
    for rule in &network.look.rules {
        // A rule that asks for none of our bits can't be met by them.
        let asked = rule.mask & mark.mask;
        if asked != 0 && rule.mark & asked == mark.value & asked {
            faults.push(Finding::warn(
                format!(
                    "the policy rule {} asks for mark {:#x}/{:#x}, which packets of Services have by --fwmark {:#x}/{:#x}",
                    rule.priority, rule.mark, rule.mask, mark.value, mark.mask
                ),
                "ip rule show; give Millrace other bits by --fwmark",
            ));
        }
    }
    faults_or(faults, || format!("no policy rule asks for {:#x}/{:#x}", mark.value, mark.mask))
}

/// Bits of the mark that known software uses: kube-proxy and the kubelet, Cilium, Calico.
fn known_users(facts: &Facts, network: &Network) -> Vec<Finding> {
    let users = [
        ("kube-proxy and the kubelet", 0xc000, !facts.others.kube_proxy.is_empty()),
        ("Cilium", 0xf00, network.device("cilium_host").is_some()),
        (
            "Calico",
            0xffff_0000,
            network.look.state.devices.values().any(|device| device.name.starts_with("cali")),
        ),
    ];
    let mark = facts.settings.mark;
    let shared = users.into_iter().filter(|(_, bits, is_here)| *is_here && bits & mark.mask != 0);
    let fault = |(software, bits, _): (&str, u32, bool)| {
        Finding::warn(
            format!(
                "--fwmark {:#x}/{:#x} shares bits with {software}, which uses {bits:#x}",
                mark.value, mark.mask
            ),
            "give Millrace other bits by --fwmark, such as 0x1000/0x1000",
        )
    };
    shared.map(fault).collect()
}

pub fn ports(facts: &Facts) -> Vec<Finding> {
    if let Some(agent) = &facts.agent {
        return vec![Finding::pass(format!("the agent (process {}) has them", agent.process))];
    }
    let Settings { healthz_bind_address, metrics_bind_address, .. } = &facts.settings;
    let wanted =
        [("--healthz-bind-address", healthz_bind_address), ("--metrics-bind-address", metrics_bind_address)];
    let taken = wanted.into_iter().filter_map(|(flag, address)| {
        let port = address.as_ref()?.port();
        facts.others.listening.contains(&port).then(|| {
            Finding::fail(
                format!("another process listens on port {port}, which the agent takes for {flag}"),
                format!(
                    "ss -ltnp 'sport = :{port}' names it, often kube-proxy; end it, or give another {flag}"
                ),
            )
        })
    });
    faults_or(taken.collect(), || {
        let numbers = wanted.iter().filter_map(|(_, address)| Some(address.as_ref()?.port().to_string()));
        format!("{} are free", numbers.collect::<Vec<_>>().join(" and "))
    })
}

#[cfg(test)]
mod tests {
    use super::super::example::judged;
    use super::super::finding::Outcome;
    use super::*;
    use crate::dataplane::Mark;
    use crate::node::{Device, MarkRule};

    fn add_device(facts: &mut Facts, name: &str) {
        let state = &mut facts.network.as_mut().unwrap().look.state;
        let device = Device { name: name.to_owned(), ..state.devices[&3].clone() };
        state.devices.insert(9, device);
    }

    #[test]
    fn kube_proxy_is_found_by_its_rules_its_device_and_its_process() {
        assert_eq!(judged(|_| {}, kube_proxy).outcome, Outcome::Pass);
        let rules = |facts: &mut Facts| facts.others.kube_proxy = vec!["nftables' table kube-proxy"];
        assert_eq!(
            judged(rules, kube_proxy).found,
            "kube-proxy's rules are here (nftables' table kube-proxy), and serve the same Services"
        );
        let device = |facts: &mut Facts| add_device(facts, IPVS_DEVICE);
        assert!(judged(device, kube_proxy).found.contains("the device kube-ipvs0"));
        let ours = |facts: &mut Facts| {
            device(facts);
            facts.others.is_ipvs_ours = true;
        };
        assert_eq!(judged(ours, kube_proxy).outcome, Outcome::Pass);
        assert!(judged(|facts| facts.others.processes = vec![7], kube_proxy).found.contains("process 7"));
        let beside = |facts: &mut Facts| {
            rules(facts);
            facts.settings.model.service_proxy_name = Some("millrace".to_owned());
        };
        assert_eq!(judged(beside, kube_proxy).outcome, Outcome::Pass);
    }

    #[test]
    fn other_data_planes_are_found_by_devices_and_programs() {
        assert_eq!(judged(|_| {}, data_planes).outcome, Outcome::Pass);
        let router = judged(|facts| add_device(facts, "kube-dummy-if"), data_planes);
        assert_eq!(
            router.found,
            "kube-router is here (the device kube-dummy-if), and may serve the same Services"
        );
        let program = |facts: &mut Facts| {
            let chains = &mut facts.network.as_mut().unwrap().chains;
            chains[0].programs.push((50, "cil_from_netdev".to_owned()));
        };
        assert!(judged(program, data_planes).found.contains("the program cil_from_netdev"));
        assert_eq!(judged(program, programs).outcome, Outcome::Pass, "it is behind ours");
    }

    #[test]
    fn a_program_before_ours_is_named() {
        assert_eq!(judged(|_| {}, programs).outcome, Outcome::Pass);
        let first = |facts: &mut Facts| {
            facts.network.as_mut().unwrap().chains[0].programs.insert(0, (50, "police".to_owned()));
        };
        assert_eq!(
            judged(first, programs).found,
            "police (50) sees packets on eth0 before ours: it may drop or redirect them"
        );
        let last = |facts: &mut Facts| {
            facts.network.as_mut().unwrap().chains[1].programs.push((50, "police".to_owned()));
        };
        assert!(judged(last, programs).found.contains("translated replies on eth0 behind ours"));
        assert_eq!(judged(|facts| facts.pins = Err(String::new()), programs).outcome, Outcome::Skip);
    }

    #[test]
    fn a_rule_that_asks_for_our_mark_is_named() {
        let with = |mark, mask| {
            judged(
                |facts| {
                    let rules = &mut facts.network.as_mut().unwrap().look.rules;
                    rules.push(MarkRule { priority: 9, mark, mask });
                },
                super::mark,
            )
        };
        assert_eq!(with(0x1000, 0x1000).outcome, Outcome::Warn);
        assert_eq!(with(0x1200, 0xff00).outcome, Outcome::Warn);
        assert_eq!(with(0x200, 0xf00).outcome, Outcome::Pass);
        assert_eq!(with(0, 0x1000).outcome, Outcome::Pass, "it asks that our bit is not set");
        let none = |facts: &mut Facts| facts.settings.mark = Mark { value: 0, mask: 0 };
        assert_eq!(judged(none, super::mark).outcome, Outcome::Skip);
        let shared = |facts: &mut Facts| {
            facts.settings.mark = Mark { value: 0x4000, mask: 0x4000 };
            facts.others.kube_proxy = vec!["iptables' chain KUBE-SERVICES"];
        };
        assert!(judged(shared, super::mark).found.contains("shares bits with kube-proxy"));
    }

    #[test]
    fn a_port_that_another_process_has_is_a_fault_before_the_agent_runs() {
        let without = |facts: &mut Facts| facts.agent = None;
        assert_eq!(judged(without, ports).found, "10256 and 10249 are free");
        let taken = |facts: &mut Facts| {
            without(facts);
            facts.others.listening.insert(10256);
        };
        assert!(judged(taken, ports).found.starts_with("another process listens on port 10256"));
        assert_eq!(judged(|_| {}, ports).outcome, Outcome::Pass);
    }
}
