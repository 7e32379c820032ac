//! Who may reach a Service's load balancer addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Family;
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
    let range: IpNet = text.parse().map_err(|_| format!("{text:?} is not a CIDR; {takes}"))?;
    let mapped = match range {
        IpNet::V4(_) => None,
        IpNet::V6(range) => range.addr().to_ipv4_mapped(),
    };
    match mapped {
        None => Ok(range.trunc()),
        Some(_) => Err(format!("{range} is IPv4 in IPv6 clothes; {takes}")),
    }
}

#[cfg(test)]
#[path = "source_ranges_tests.rs"]
mod tests;
