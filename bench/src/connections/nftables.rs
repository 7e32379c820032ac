//! kube-proxy's nftables rules, as far as the first packet to a ClusterIP meets them.
//!
//! There is a verdict map of all Services, a chain for each Service that chooses an endpoint, and a
//! chain for each endpoint that translates.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use millrace_lab::net::Namespace;
use millrace_lab::process::output;
use millrace_lab::topology::{Dual, Family};

/// The most Services that the rules can have.
pub const MAX_SERVICES: u16 = 60_000;

/// Writes the rules of `number` Services into a node, all with one endpoint. Returns the address of
/// the last Service, whose port is 80.
pub fn write(node: &Namespace, number: u16, backend: Dual, port: u16) -> Result<Dual> {
    let mut text = String::new();
    for family in Family::ALL {
        table(&mut text, family, number, backend, port)?;
    }
    let file = tempfile(&text)?;
    output(node, &["nft", "-f", &file]).context("nftables' rules")?;
    std::fs::remove_file(&file)?;
    Ok(address(number))
}

fn tempfile(text: &str) -> Result<String> {
    let path = std::env::temp_dir().join(format!("millrace-nftables-{}", std::process::id()));
    std::fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Returns the ClusterIPs of the `number`th Service.
fn address(number: u16) -> Dual {
    let [high, low] = number.to_be_bytes();
    Dual { v4: Ipv4Addr::new(10, 97, high, low), v6: Ipv6Addr::new(0x2001, 0xdb8, 0x6, 0, 0, 0, 0, number) }
}

fn table(text: &mut String, family: Family, number: u16, backend: Dual, port: u16) -> Result<()> {
    let (table, field, mapped) = match family {
        Family::V4 => ("ip", "ip daddr", "ipv4_addr"),
        Family::V6 => ("ip6", "ip6 daddr", "ipv6_addr"),
    };
    let (source, server) = match family {
        Family::V4 => ("ip saddr", format!("{}:{port}", backend.v4)),
        Family::V6 => ("ip6 saddr", format!("[{}]:{port}", backend.v6)),
    };
    let backend = backend.of(family);
    writeln!(text, "table {table} kube-proxy {{")?;
    writeln!(text, "chain mark-for-masquerade {{ meta mark set meta mark or 0x4000; }}")?;
    for service in 1..=number {
        writeln!(
            text,
            "chain endpoint-{service} {{ {source} {backend} jump mark-for-masquerade; meta l4proto tcp dnat to {server}; }}"
        )?;
        writeln!(
            text,
            "chain service-{service} {{ numgen random mod 1 vmap {{ 0 : goto endpoint-{service} }}; }}"
        )?;
    }
    write!(text, "map service-ips {{ type {mapped} . inet_proto . inet_service : verdict; elements = {{ ")?;
    for service in 1..=number {
        write!(text, "{} . tcp . 80 : goto service-{service}, ", address(service).of(family))?;
    }
    writeln!(text, "}} }}")?;
    writeln!(text, "chain services {{ {field} . meta l4proto . th dport vmap @service-ips; }}")?;
    writeln!(text, "chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}")?;
    writeln!(text, "chain nat-output {{ type nat hook output priority -100; jump services; }}")?;
    writeln!(
        text,
        "chain nat-postrouting {{ type nat hook postrouting priority srcnat; meta mark and 0x4000 == 0 return; \
         meta mark set meta mark xor 0x4000; masquerade fully-random; }}"
    )?;
    writeln!(text, "}}")?;
    Ok(())
}
