//! The kernel settings that this data plane depends on.

use crate::node::Sysctls;

/// The devices that answer ARP requests for addresses of Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arp {
    /// The node's own setting.
    #[default]
    AsIs,
    /// No device answers for an address of another device, or uses one as its source.
    Strict,
}

/// Corrects wrong settings, and logs each change.
pub fn prepare(arp: Arp) {
    let sysctls = Sysctls::default();
    for (key, wanted) in [
        ("ipv4/vs/conntrack", "1"),
        ("ipv4/vs/expire_nodest_conn", "1"),
        ("ipv4/vs/expire_quiescent_template", "1"),
    ] {
        sysctls.require(key, wanted);
    }
    // Without these settings, a reply between two pods of a bridge bypasses IPVS and has the wrong source.
    for key in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
        sysctls.require(key, "1");
    }
    if release().is_some_and(reuses_ports_badly) {
        sysctls.require("ipv4/vs/conn_reuse_mode", "0");
    }
    if arp == Arp::Strict {
        sysctls.require("ipv4/conf/all/arp_ignore", "1");
        sysctls.require("ipv4/conf/all/arp_announce", "2");
    }
}

/// The major and minor number of a kernel's release.
type Release = (u32, u32);

fn release() -> Option<Release> {
    let uname = nix::sys::utsname::uname().ok()?;
    parse(uname.release().to_str()?)
}

fn parse(text: &str) -> Option<Release> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether a connection from a reused client port waits a second: from kernel 4.1 until before 5.9.
const fn reuses_ports_badly((major, minor): Release) -> bool {
    match major {
        4 => minor >= 1,
        5 => minor < 9,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_from_4_1_to_5_8_need_another_reuse_mode() {
        for (text, needs) in [("4.0.9", false), ("4.1.0", true), ("4.19.0-27-amd64", true), ("5.8.18", true)]
        {
            assert_eq!(reuses_ports_badly(parse(text).unwrap()), needs, "{text}");
        }
        for text in ["5.9.0", "5.10.0-rc1", "6.1.0-50-cloud-amd64", "7.0"] {
            assert!(!reuses_ports_badly(parse(text).unwrap()), "{text}");
        }
        assert_eq!(parse("unknown"), None);
    }
}
