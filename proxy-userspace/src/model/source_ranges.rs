//! Who may reach a Service's load balancer addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Family;
use super::address::parse_address;
use super::problem::Notes;

/// The sources that are let in, by family; a family that is not in it is open to everybody.
pub(super) type SourceRanges = BTreeMap<Family, BTreeSet<IpNet>>;

/// Reads `spec.loadBalancerSourceRanges`. Blank entries count for nothing, and one that can't be read keeps everybody
/// out rather than nobody.
pub(super) fn read_source_ranges(entries: &[String], notes: &mut Notes) -> SourceRanges {
    let mut ranges = SourceRanges::new();
    for (index, text) in entries.iter().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        match range(text.trim()) {
            Ok(range) => {
                ranges.entry(Family::of(range.addr())).or_default().insert(range);
            }
            Err(wrong) => {
                notes.warn(format!("spec.loadBalancerSourceRanges[{index}]"), wrong);
                for family in [Family::V4, Family::V6] {
                    ranges.entry(family).or_default();
                }
            }
        }
    }
    ranges.retain(|_, ranges| ranges.iter().all(|range| range.prefix_len() > 0));
    ranges
}

/// What the data plane shall let in to the load balancer addresses `vips`. Where a program puts a VIP on a device of
/// its node, the node's own packets for it have the VIP as their source: who lets the node in means these too.
pub(super) fn with_vips(mut ranges: SourceRanges, vips: &[IpAddr], own: &BTreeSet<IpAddr>) -> SourceRanges {
    // Ranges without an address to guard would be entries for nothing.
    let guarded: BTreeSet<Family> = vips.iter().copied().map(Family::of).collect();
    ranges.retain(|family, _| guarded.contains(family));
    for (family, ranges) in &mut ranges {
        if own.iter().any(|own| ranges.iter().any(|range| range.contains(own))) {
            ranges.extend(vips.iter().filter(|vip| Family::of(**vip) == *family).copied().map(IpNet::from));
        }
    }
    ranges
}

fn range(text: &str) -> Result<IpNet, String> {
    let takes = "takes one such as 192.0.2.0/24 or 2001:db8::/64";
    parse_range(text).map(|range| range.trunc()).ok_or_else(|| format!("{text:?} is not a CIDR; {takes}"))
}

/// A prefix as kube-proxy reads it (`ParseCIDRSloppy` in k8s.io/utils/net): as addresses, see [`parse_address`].
fn parse_range(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let length: u8 = length.bytes().all(|digit| digit.is_ascii_digit()).then(|| length.parse().ok())??;
    let parsed = parse_address(address)?;
    // The length of an IPv4-mapped prefix counts the 96 bits in front of the IPv4 address.
    let is_mapped = parsed.is_ipv4() && address.contains(':');
    let length = if is_mapped { length.checked_sub(96)? } else { length };
    IpNet::new(parsed, length).ok()
}

#[cfg(test)]
#[path = "source_ranges_tests.rs"]
mod tests;
