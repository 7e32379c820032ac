//! The search for kube-proxy's rules in nftables and iptables.
//!
//! kube-proxy's IPVS mode leaves addresses on its own device. The node monitor sees them.

use std::fs;
use std::process::{Command, Stdio};

use crate::dataplane::netlink::Generation;
use crate::model::Family;

const TABLE: &str = "kube-proxy";
const CHAIN: &str = "KUBE-SERVICES";

/// Returns the places of kube-proxy's rules, in words. The programs nft and iptables may be missing.
#[must_use]
pub fn traces() -> Vec<&'static str> {
    let families = [Family::V4, Family::V6];
    let mut nftables = Generation::open().ok();
    let mut any = |asked: fn(&mut Generation, Family) -> bool| {
        nftables.as_mut().is_some_and(|nftables| families.into_iter().any(|family| asked(nftables, family)))
    };
    let in_nftables = any(|nftables, family| nftables.has_ip_table(family, TABLE).unwrap_or(false));
    // iptables-nft keeps its rules in nftables tables of the same names. iptables-legacy does not.
    let in_iptables = any(|nftables, family| nftables.has_ip_chain(family, "nat", CHAIN).unwrap_or(false));
    [
        in_nftables.then_some("nftables' table kube-proxy"),
        (in_iptables || is_in_legacy_iptables()).then_some("iptables' chain KUBE-SERVICES"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether legacy iptables has the chain. Only the program can read legacy rules; it runs only if the kernel
/// has a table of them.
fn is_in_legacy_iptables() -> bool {
    let lists = ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
    ["iptables-legacy", "ip6tables-legacy"].into_iter().zip(lists).any(|(program, list)| {
        let has_table = fs::read_to_string(list).is_ok_and(|names| names.lines().any(|name| name == "nat"));
        has_table && lists_chain(program)
    })
}

fn lists_chain(program: &str) -> bool {
    let mut command = Command::new(program);
    command.args(["-t", "nat", "-S", CHAIN]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Returns the traces of `rules` in a new network namespace, which ends with its thread.
    fn traces_of(rules: &'static str) -> Vec<&'static str> {
        let run = move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
            nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
            assert!(nft.wait().unwrap().success());
            traces()
        };
        std::thread::spawn(run).join().unwrap()
    }

    #[test]
    fn rules_of_kube_proxy_are_found_in_nftables_and_iptables() {
        assert_eq!(traces_of(""), Vec::<&str>::new());
        assert_eq!(
            traces_of("add table inet kube-proxy\nadd table ip nat\nadd chain ip nat OTHER\n"),
            Vec::<&str>::new()
        );
        assert_eq!(traces_of("add table ip6 kube-proxy\n"), ["nftables' table kube-proxy"]);
        assert_eq!(
            traces_of("add table ip nat\nadd chain ip nat KUBE-SERVICES\n"),
            ["iptables' chain KUBE-SERVICES"]
        );
    }
}
