//! The test targets that machines run, their needs, and the tests of the test layer.

use anyhow::{Result, bail};

use super::nic::{NICS, Nic};

/// Modules that belong together, each after those that it needs.
pub type Modules = &'static [&'static str];

/// Bridges between pods.
const BRIDGE: Modules = &["net/llc/llc", "net/802/stp", "net/bridge/bridge"];
/// VLANs. Only with them, a card that filters VLANs lets a frame with VLAN 0 pass: a priority
/// (`vlan_device_event` in net/8021q/vlan.c).
const VLANS: Modules = &["net/802/garp", "net/802/mrp", "net/8021q/8021q"];
/// Destruction of sockets by the agent.
const SOCKETS: Modules = &["net/ipv4/inet_diag", "net/ipv4/udp_diag", "net/ipv4/tcp_diag"];
/// Tunnels in UDP.
const UDP_TUNNELS: Modules = &["net/ipv4/udp_tunnel", "net/ipv6/ip6_udp_tunnel"];
/// Tunnels in IP.
const IP_TUNNELS: Modules =
    &["net/ipv4/tunnel4", "net/ipv4/ip_tunnel", "net/ipv4/ipip", "net/ipv6/tunnel6", "net/ipv6/ip6_tunnel"];
/// Overlays, VLANs and WireGuard.
const OVERLAYS: Modules = &[
    "net/ipv4/fou",
    "net/ipv6/fou6",
    "net/802/garp",
    "net/802/mrp",
    "net/8021q/8021q",
    "drivers/net/vxlan/vxlan",
    "arch/x86/crypto/poly1305-x86_64",
    "lib/crypto/libchacha",
    "arch/x86/crypto/chacha-x86_64",
    "lib/crypto/libchacha20poly1305",
    "lib/crypto/libcurve25519-generic",
    "arch/x86/crypto/curve25519-x86_64",
    "drivers/net/wireguard/wireguard",
];
/// IPVS, its schedulers, and nftables.
const IPVS: Modules = &[
    "drivers/net/dummy",
    "net/bridge/br_netfilter",
    "net/ipv4/netfilter/nf_defrag_ipv4",
    "net/ipv6/netfilter/nf_defrag_ipv6",
    "lib/libcrc32c",
    "net/netfilter/nf_conntrack",
    "net/netfilter/ipvs/ip_vs",
    "net/netfilter/ipvs/ip_vs_rr",
    "net/netfilter/ipvs/ip_vs_wrr",
    "net/netfilter/ipvs/ip_vs_lc",
    "net/netfilter/ipvs/ip_vs_wlc",
    "net/netfilter/ipvs/ip_vs_lblc",
    "net/netfilter/ipvs/ip_vs_lblcr",
    "net/netfilter/ipvs/ip_vs_sh",
    "net/netfilter/ipvs/ip_vs_dh",
    "net/netfilter/ipvs/ip_vs_sed",
    "net/netfilter/ipvs/ip_vs_nq",
    "net/netfilter/ipvs/ip_vs_fo",
    "net/netfilter/ipvs/ip_vs_ovf",
    "net/netfilter/ipvs/ip_vs_mh",
    "net/netfilter/nfnetlink",
    "net/netfilter/nf_tables",
    "net/netfilter/nft_ct",
    "net/netfilter/nf_nat",
    "net/netfilter/nft_chain_nat",
    "net/netfilter/nft_masq",
    "net/ipv4/netfilter/nf_reject_ipv4",
    "net/ipv6/netfilter/nf_reject_ipv6",
    "net/netfilter/nft_reject",
    "net/netfilter/nft_reject_inet",
    "net/netfilter/nft_fib",
    "net/ipv6/netfilter/nft_fib_ipv6",
    "net/ipv4/netfilter/nft_fib_ipv4",
    "net/netfilter/nft_fib_inet",
    "net/netfilter/nft_nat",
];

/// A test target that machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The target's name.
    pub name: &'static str,
    /// Modules that it needs, each after those that it needs itself.
    pub modules: &'static [Modules],
    /// Its kernels in the test layer.
    pub kernels: &'static [&'static str],
    /// Its tests in the test layer, which has minutes, not an hour: the filters of each machine. Empty = all.
    pub machines: &'static [&'static [&'static str]],
    /// Tests that no machine runs.
    pub skipped: &'static [&'static str],
    /// Whether it starts agents.
    pub needs_agent: bool,
    /// Programs of this machine that it, or its agents, run.
    pub tools: &'static [&'static str],
    /// The network cards that it can take. Empty = its machines have none.
    pub nics: &'static [Nic],
}

impl Target {
    /// Whole frames.
    pub const PACKET: Self = Self {
        name: "packet",
        modules: &[],
        kernels: &["6.1", "6.12"],
        machines: &[&[
            "sctp::",
            "backend_node::a_hinted",
            "backend_node::a_flow_entry",
            "kernel_drops::",
            "policy::clusters::",
        ]],
        skipped: &[],
        needs_agent: false,
        tools: &[],
        nics: &[],
    };
    /// Sockets of SCTP by eBPF and by IPVS. Few machines have its modules.
    pub const SCTP: Self = Self {
        name: "sctp",
        kernels: &["6.12"],
        machines: &[&[]],
        modules: &[BRIDGE, UDP_TUNNELS, IPVS, IP_TUNNELS, &["net/sctp/sctp"]],
        skipped: &[],
        needs_agent: true,
        tools: &["/usr/bin/ncat", "/usr/sbin/ip", "/usr/sbin/nft"],
        nics: &[],
    };
    /// Agents in IPVS mode. Few machines have its modules.
    pub const IPVS: Self = Self {
        name: "ipvs",
        kernels: &["6.1"],
        // Only one test of a mode change: such tests load the programs again and again, half a
        // minute each time.
        // Two machines, because all others are done before one is.
        machines: &[
            &["bad_input::", "change::connections_stay", "direct::", "lifetimes::", "mixed::"],
            &["forged::", "neighbours::", "reach::", "scale::", "schedulers::", "taken::", "views::"],
        ],
        modules: &[BRIDGE, IPVS, IP_TUNNELS],
        skipped: &[],
        needs_agent: true,
        tools: &["/usr/sbin/nft", "/usr/sbin/ip", "/usr/sbin/ipvsadm"],
        nics: &[],
    };
    /// Tunnel devices. Few machines have their modules.
    pub const TUNNELS: Self = Self {
        name: "tunnels",
        kernels: &["6.12"],
        machines: &[&["pod_routes::pods_of", "pods_take_off", "uplinks::"]],
        modules: &[BRIDGE, UDP_TUNNELS, IP_TUNNELS, OVERLAYS],
        skipped: &[],
        needs_agent: true,
        tools: &["/usr/sbin/ip"],
        nics: &[],
    };
    /// The test bed. On this machine's kernel it is a layer of its own.
    pub const NAMESPACE: Self = Self {
        name: "namespace",
        kernels: &["6.1"],
        // A few tests that share one cluster: each other cluster loads its nodes' programs anew. The fifth test of
        // `translated` opens thousands of sockets, and takes as long as the four.
        machines: &[&["translated::a_", "translated::large_bodies", "translated::pods_on"]],
        modules: &[BRIDGE, SOCKETS, &["drivers/net/tun"]],
        // Machines have no interpreter and no compiler.
        skipped: &["programs::a_go_client", "programs::a_python_client"],
        needs_agent: true,
        tools: &[
            "/usr/sbin/ip",
            "/usr/bin/curl",
            "/usr/bin/dig",
            "/usr/sbin/dnsmasq",
            "/usr/bin/iperf3",
            "/usr/bin/tcpdump",
        ],
        nics: &[],
    };
    /// Network cards, with `--long` only: the test bed with emulated cards takes a machine ten minutes.
    pub const DRIVERS: Self = Self {
        name: "drivers",
        kernels: &[],
        machines: &[&[]],
        modules: &[BRIDGE, VLANS],
        skipped: &[],
        needs_agent: true,
        tools: &[],
        nics: &NICS,
    };
    /// All targets. The longest ones come first, because machines run in parallel.
    pub const ALL: [Self; 6] =
        [Self::IPVS, Self::NAMESPACE, Self::TUNNELS, Self::DRIVERS, Self::SCTP, Self::PACKET];

    /// Returns the cards of these names; all that the target can take if none is named.
    pub fn nics_named(self, names: &[String]) -> Result<Vec<&'static Nic>> {
        if !names.is_empty() && self.nics.is_empty() {
            bail!("--nic is for the test target `drivers`, and `{}` takes no network card", self.name);
        }
        let is_wanted = |nic: &&Nic| names.is_empty() || names.iter().any(|name| name == nic.name);
        Ok(self.nics.iter().filter(is_wanted).collect())
    }

    /// Returns the target of this name.
    pub fn named(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|target| target.name == name) {
            Some(target) => Ok(target),
            None => {
                bail!("machines don't run `{name}`; they run {}", Self::ALL.map(|one| one.name).join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::nic::NAMES;

    #[test]
    fn a_target_that_machines_do_not_run_is_refused() {
        assert_eq!(Target::named("packet").unwrap(), Target::PACKET);
        let error = Target::named("nothing").unwrap_err().to_string();
        assert!(error.contains("they run ipvs"), "{error}");
    }

    #[test]
    fn a_network_card_is_for_the_target_that_takes_one() {
        let names = |target: Target, names: &[&str]| {
            let named: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            target.nics_named(&named).map(|nics| nics.into_iter().map(|nic| nic.name).collect::<Vec<_>>())
        };
        assert_eq!(names(Target::DRIVERS, &["vmxnet3"]).unwrap(), ["vmxnet3"]);
        assert_eq!(names(Target::DRIVERS, &[]).unwrap(), NAMES);
        assert!(names(Target::PACKET, &[]).unwrap().is_empty());
        let error = names(Target::PACKET, &["vmxnet3"]).unwrap_err().to_string();
        assert!(error.contains("`packet` takes no network card"), "{error}");
    }
}
