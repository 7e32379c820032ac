//! Ports of rules: as a policy writes them, and as sets of numbers that split into prefixes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::networking::v1::NetworkPolicyPort;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::problem::Notes;
use crate::model::{Protocol, parse_port, parse_protocol};

/// The bits of a port.
const PORT_BITS: u8 = 16;

/// A port of a pod that has a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

/// Returns the numbers of all ports with this name and protocol.
pub(super) fn numbers<'a>(
    ports: &'a BTreeSet<NamedPort>,
    name: &str,
    protocol: Protocol,
) -> impl Iterator<Item = u16> + use<'a> {
    let port = |number| NamedPort { name: name.to_owned(), protocol, number };
    ports.range(port(0)..=port(u16::MAX)).map(|port| port.number)
}

/// An entry of a rule's `ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortMatch {
    /// Ports from `first` to `last`, both included.
    Range { protocol: Protocol, first: u16, last: u16 },
    /// The port with this name of the pod that gets the packet.
    Name { protocol: Protocol, name: String },
}

/// Parses the ports of a rule; `None` = all traffic. An invalid entry is left out, so that it matches nothing.
pub(super) fn read_ports(
    ports: Option<&[NetworkPolicyPort]>,
    field: &str,
    notes: &mut Notes,
) -> Option<Vec<PortMatch>> {
    let ports = ports.filter(|ports| !ports.is_empty())?;
    let mut read = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        match read_port(port) {
            Ok(port) => read.push(port),
            Err((part, wrong)) => {
                let message = format!("{wrong}; this entry matches nothing");
                notes.warn(format!("{field}[{index}].{part}"), message);
            }
        }
    }
    Some(read)
}

/// Parses an entry. The error names the field and what it takes.
fn read_port(port: &NetworkPolicyPort) -> Result<PortMatch, (&'static str, String)> {
    let protocol = parse_protocol(port.protocol.as_deref()).map_err(|wrong| ("protocol", wrong))?;
    let refuse_end = |why: &str| match port.end_port {
        Some(end) => Err(("endPort", format!("{end} {why}"))),
        None => Ok(()),
    };
    match &port.port {
        None => {
            refuse_end("has no port before it; takes the last port of a range")?;
            Ok(PortMatch::Range { protocol, first: 0, last: u16::MAX })
        }
        Some(IntOrString::String(name)) => {
            if !is_port_name(name) {
                return Err((
                    "port",
                    format!("{name:?} is not a name of a port; takes one such as http, or a number"),
                ));
            }
            refuse_end("is behind the name of a port; takes the last port behind a number")?;
            Ok(PortMatch::Name { protocol, name: name.clone() })
        }
        Some(IntOrString::Int(number)) => {
            let first = parse_port(*number).map_err(|wrong| ("port", wrong))?;
            let last = port.end_port.map_or(Ok(first), parse_port).map_err(|wrong| ("endPort", wrong))?;
            if last < first {
                return Err(("endPort", format!("{last} is below the port {first}")));
            }
            Ok(PortMatch::Range { protocol, first, last })
        }
    }
}

/// Returns whether a container's port may have this name (RFC 6335, section 5.1).
fn is_port_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=15).contains(&name.len())
        && name.chars().all(is_letter)
        && name.chars().any(|c| c.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

/// The traffic that a rule allows, with numbers alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ports {
    /// All, also of protocols without ports.
    All,
    /// Ranges by IP protocol number: first to last port. Ranges neither overlap nor adjoin.
    Of(BTreeMap<u8, BTreeMap<u16, u16>>),
}

impl Ports {
    /// Returns the ports of one range.
    pub fn range(protocol: Protocol, first: u16, last: u16) -> Self {
        Self::Of([(protocol.number(), [(first, last)].into())].into())
    }

    /// Returns no ports.
    pub const fn none() -> Self {
        Self::Of(BTreeMap::new())
    }

    /// Adds ports.
    pub fn add(&mut self, more: &Self) {
        match (&mut *self, more) {
            (Self::All, _) => {}
            (_, Self::All) => *self = Self::All,
            (Self::Of(ranges), Self::Of(more)) => {
                for (protocol, more) in more {
                    let ranges = ranges.entry(*protocol).or_default();
                    for (first, last) in more {
                        insert(ranges, *first, *last);
                    }
                }
            }
        }
    }

    /// Returns the prefixes: IP protocol number, port, and the leading bits of the port that count. `None` is
    /// any protocol.
    pub fn prefixes(&self) -> Vec<Option<(u8, u16, u8)>> {
        match self {
            Self::All => vec![None],
            Self::Of(ranges) => {
                let ranges = ranges
                    .iter()
                    .flat_map(|(protocol, ranges)| ranges.iter().map(move |range| (*protocol, range)));
                ranges
                    .flat_map(|(protocol, (first, last))| {
                        split(*first, *last).into_iter().map(move |(port, bits)| Some((protocol, port, bits)))
                    })
                    .collect()
            }
        }
    }
}

/// Inserts a range, joined with those that it overlaps or adjoins.
fn insert(ranges: &mut BTreeMap<u16, u16>, first: u16, last: u16) {
    let (mut first, mut last) = (first, last);
    ranges.retain(|from, to| {
        let is_apart = u32::from(*to) + 1 < u32::from(first) || u32::from(last) + 1 < u32::from(*from);
        if !is_apart {
            (first, last) = (first.min(*from), last.max(*to));
        }
        is_apart
    });
    ranges.insert(first, last);
}

/// Splits a range of ports into the fewest prefixes: port and number of leading bits.
fn split(first: u16, last: u16) -> Vec<(u16, u8)> {
    let (mut at, end) = (u32::from(first), u32::from(last) + 1);
    let mut prefixes = Vec::new();
    while at < end {
        let aligned = at.trailing_zeros().min(u32::from(PORT_BITS));
        let free = aligned.min((end - at).ilog2());
        prefixes.push((at as u16, PORT_BITS - free as u8));
        at += 1 << free;
    }
    prefixes
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
