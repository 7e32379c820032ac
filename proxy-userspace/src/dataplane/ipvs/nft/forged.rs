//! The rules against forged tunnels. SECURITY.md has the trust model.
//!
//! A forged tunnel is a packet for a Service with Direct Server Return that a pod has encapsulated itself.
//! With UDP, the sender may also be a process of this node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_common::way::FOU_PORT;
use serde_json::Value;

use crate::model::Family;

/// The chain that counts and drops forged tunnels. eBPF mode has a reason with this name.
pub const CHAIN: &str = "forged_tunnel";

/// The chains, with placeholders.
///
/// The rules see a pod's own address, because the CNI masquerades later, in postrouting (100).
/// `forwarded_tunnels` never sees the tunnels of IPVS itself, which pass the output hook.
///
/// `@th` begins after the outer header with its options and extension headers. Connection tracking has
/// reassembled fragments before. A chain that compares raw bytes of `@th` must not compare the protocol as
/// well, or nft 1.0.6 aborts when it lists the chain.
const CHAINS: &str = "
chain CHAIN {
  counter drop
}
chain inner_ipv4 {
  INNER4 @inner_destinations4 goto CHAIN
}
chain inner_ipv6 {
  INNER6 @inner_destinations6 goto CHAIN
}
chain inner_fou {
  ip daddr @fou_nodes4 goto CHAIN
  ip6 daddr @fou_nodes6 goto CHAIN
  @th,64,4 4 @th,192,32 @inner_destinations4 goto CHAIN
  @th,64,4 6 @th,256,128 @inner_destinations6 goto CHAIN
}
chain tunnels {
  iifname @uplinks ip saddr @nodes4 accept
  iifname @uplinks ip6 saddr @nodes6 accept
  meta l4proto vmap { 4 : goto inner_ipv4, 17 : goto inner_fou, 41 : goto inner_ipv6 }
}
chain forwarded_tunnels {
  type filter hook forward priority -200; policy accept;
  meta l4proto { 4, 41 } goto tunnels
  meta l4proto 17 th dport FOU_PORT goto tunnels
}
chain own_tunnels {
  type filter hook output priority -200; policy accept;
  meta l4proto 17 th dport FOU_PORT goto tunnels
}
";

/// Returns the chains.
pub fn chains() -> String {
    let mut text = CHAINS.replace("CHAIN", CHAIN).replace("FOU_PORT", &FOU_PORT.to_string());
    for (word, family) in [("INNER4", Family::V4), ("INNER6", Family::V6)] {
        text = text.replace(word, inner_destination(family));
    }
    text
}

/// Returns the place of the inner destination directly after the outer header: offset and length in bits.
pub const fn inner_destination(family: Family) -> &'static str {
    match family {
        Family::V4 => "@th,128,32",
        Family::V6 => "@th,192,128",
    }
}

/// Returns an address as a number, which nft needs for a comparison of raw bytes.
pub fn show(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{:#x}", u32::from(address)),
        IpAddr::V6(address) => format!("{:#x}", u128::from(address)),
    }
}

/// Reads such an address from nft's output: a number, or text if the number has more than 64 bits.
pub fn read(family: Family, value: &Value) -> Option<IpAddr> {
    let number = match value {
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok()?,
            None => text.parse().ok()?,
        },
        number => number.as_u64()?.into(),
    };
    Some(match family {
        Family::V4 => Ipv4Addr::from(u32::try_from(number).ok()?).into(),
        Family::V6 => Ipv6Addr::from(number).into(),
    })
}

/// Returns the packets that [`CHAIN`] has counted, from the output of `nft --json`.
pub fn count(json: &str) -> u64 {
    let value: Value = serde_json::from_str(json).unwrap_or_default();
    let objects = value.get("nftables").and_then(Value::as_array).into_iter().flatten();
    let expressions = objects.filter_map(|object| object.pointer("/rule/expr")?.as_array()).flatten();
    expressions.filter_map(|one| one.pointer("/counter/packets")?.as_u64()).sum()
}
