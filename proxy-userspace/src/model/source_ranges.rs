//! The sources that may reach a Service's load balancer addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Family;
use super::address::parse_address;
use super::problem::Notes;

/// The accepted sources by family. A family without entry accepts all.
pub(super) type SourceRanges = BTreeMap<Family, BTreeSet<IpNet>>;

/// Parses `spec.loadBalancerSourceRanges`. Blank entries have no effect. An unreadable one accepts
/// no source, so that a typing error opens nothing.
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

/// Adds the load balancer addresses `vips` to ranges that contain this node.
///
/// If a program puts a VIP on a device, the node's own packets to it have the VIP as their source.
pub(super) fn with_vips(mut ranges: SourceRanges, vips: &[IpAddr], own: &BTreeSet<IpAddr>) -> SourceRanges {
    // Ranges without a load balancer address would be map entries without use.
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

/// Parses a prefix as kube-proxy does (`ParseCIDRSloppy` in k8s.io/utils/net); for its address see
/// [`parse_address`].
pub(crate) fn parse_range(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let length: u8 = length.bytes().all(|digit| digit.is_ascii_digit()).then(|| length.parse().ok())??;
    let parsed = parse_address(address)?;
    // The length of an IPv4-mapped prefix includes the 96 bits before the IPv4 address.
    let is_mapped = parsed.is_ipv4() && address.contains(':');
    let length = if is_mapped { length.checked_sub(96)? } else { length };
    IpNet::new(parsed, length).ok()
}

#[cfg(test)]
#[path = "source_ranges_tests.rs"]
mod tests;
