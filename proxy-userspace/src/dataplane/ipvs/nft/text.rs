//! Our table and its members, as input for nft.
//!
//! Protocols are numbers, because their names need `/etc/protocols`, which small images lack.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::{direct, forged};
use crate::dataplane::Mark;
use crate::dataplane::ipvs::state::{Element, Member, Set, marks};
use crate::model::{Family, Protocol};

/// The family and name of the table.
pub const TABLE: &str = "inet millrace";
/// The name of the table.
pub const NAME: &str = "millrace";
/// The start of the name of the chain that identifies the rules. A hash of the rules follows.
pub const LAYOUT: &str = "layout_";
/// The largest number of elements in one statement.
const STATEMENT: usize = 500;

/// The sets of a family. `ADDR` stands for its address type, `INNER` for the place of an inner destination.
const SETS: [(Set, &str); 24] = [
    (Set::Services, "type PORT;"),
    (Set::Vips, "type ADDR;"),
    (Set::Refusing, "type ADDR;"),
    (Set::Refused, "type PORT;"),
    (Set::DroppedOutside, "type PORT;"),
    (Set::DroppedInside, "type PORT;"),
    (Set::Restricted, "type PORT;"),
    (Set::Allowed(Protocol::Tcp), RANGE_TYPE),
    (Set::Allowed(Protocol::Udp), RANGE_TYPE),
    (Set::Allowed(Protocol::Sctp), RANGE_TYPE),
    (Set::Marks, "type PORT : mark;"),
    (Set::Local, "type PORT;"),
    (Set::Loop, "type ADDR . PORT;"),
    (Set::Cluster, "type ADDR; flags interval;"),
    (Set::Near, "type ADDR; flags interval;"),
    (Set::Direct, "type PORT;"),
    (Set::Inside, "type ADDR; flags interval;"),
    (Set::Nodes, "type ADDR;"),
    (Set::FouNodes, "type ADDR;"),
    (Set::InnerDestinations, "typeof INNER;"),
    (Set::Encapsulated, "type ADDR : mark;"),
    (Set::Targets, "type mark . PORT : ADDR . inet_service;"),
    (Set::NodeTargets, "type mark . inet_proto . inet_service : ADDR . inet_service;"),
    (Set::Segments, "typeof iifname : tcp option maxseg size;"),
];
const PORT_TYPE: &str = "ADDR . inet_proto . inet_service";
/// The type of source ranges. It has no protocol, because nft 1.0.6 swaps that byte in the key of an interval
/// as if it were two. Linux refuses this since 7.
const RANGE_TYPE: &str = "type ADDR . inet_service . ADDR; flags interval;";

/// The chains of all families. A line with `IP` or a digit `N` exists once per family.
///
/// - `input` runs after connection tracking and before IPVS (98 and 99); so does `output` (-200 and -98).
/// - `forwarded` clears the masquerading mark. IPVS never forwards the packets that it serves, so the mark
///   there comes from the programs of eBPF mode. The node has them during a mode change. The mark requests
///   nothing any more.
const CHAINS: &str = "
chain gate {
  PORT @refusedN ct state new reject with icmpx type port-unreachable
  meta l4proto 6 PORT @restrictedN IP daddr . th dport . IP saddr != @allowed_tcpN drop
  meta l4proto 17 PORT @restrictedN IP daddr . th dport . IP saddr != @allowed_udpN drop
  meta l4proto 132 PORT @restrictedN IP daddr . th dport . IP saddr != @allowed_sctpN drop
  IP daddr @vipsN PORT != @servicesN goto unknownN
}
chain input {
  type filter hook input priority 90; policy accept;
  ct direction reply accept
  meta l4proto != { 6, 17, 132 } accept
  jump gate
  iifname @uplinks IP saddr != @nearN jump outsideN
  PORT @dropped_insideN ct state new drop
  iifname @uplinks PORT @servicesN meta mark set meta mark | VALUE
  IP saddr != @insideN PORT @servicesN meta mark set meta mark | VALUE
}
chain output {
  type filter hook output priority -110; policy accept;
  meta mark & SERVICE_MASK == SERVICE_VALUE meta l4proto { 4, 41 } meta mark set 0 accept
  meta mark & SERVICE_MASK == SERVICE_VALUE meta mark set VALUE accept
  ct direction reply accept
  meta l4proto != { 6, 17, 132 } accept
  jump gate
  PORT @dropped_insideN ct state new drop
  PORT @servicesN meta mark set meta mark | VALUE
}
chain forwarded {
  type filter hook forward priority 300; policy accept;
  meta mark & VALUE == VALUE meta mark set meta mark & UNMASK
}
chain postrouting {
  type nat hook postrouting priority 100; policy accept;
  IP saddr . PORT @loopN masquerade fully-random
  meta mark & VALUE != VALUE return
  fib saddr type != local PORT @localN return
  meta mark set meta mark & UNMASK
  meta l4proto { 6, 17, 132 } th sport >= 1024 masquerade to :BESIDE fully-random
  masquerade fully-random
}
";

/// The chains of one family.
///
/// `outside` also sees packets from other nodes. They get the list of externalTrafficPolicy, because a node's
/// address may stand for pods that it masquerades. They get no Direct Server Return: a node's stack drops
/// packets from the network with one of its own addresses as the source.
const FAMILY_CHAINS: &str = "
chain unknownN {
  IP daddr @refusingN reject with icmpx type port-unreachable
  drop
}
chain outsideN {
  PORT @dropped_outsideN ct state new drop
  IP saddr @clusterN PORT @directN return
  meta mark set PORT map @marksN accept
}
";

/// The table without members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    text: String,
    /// The name of the chain that identifies the layout.
    pub name: String,
    /// The number of rules.
    pub rules: usize,
}

/// The extent of the rules of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All rules.
    Whole,
    /// The rules without DNAT and conntrack zones, which a kernel may lack. This node then takes no packets
    /// that other nodes encapsulate.
    Bare,
}

impl Layout {
    /// Returns the table for a masquerading mark.
    ///
    /// SNAT uses ports outside `kept` if there are enough, because eBPF mode uses `kept`. A privileged port
    /// stays privileged.
    #[must_use]
    pub fn new(mark: Mark, kept: &RangeInclusive<u16>, extent: Extent) -> Self {
        let mut text = "set uplinks { type ifname; }\n".to_owned();
        for family in [Family::V4, Family::V6] {
            for (set, definition) in SETS {
                let kind = if set.is_map() { "map" } else { "set" };
                let definition = definition.replace("PORT", PORT_TYPE).replace("ADDR", address_type(family));
                let definition = definition.replace("INNER", forged::inner_destination(family));
                let name = set_name(set, Some(family));
                let _ = writeln!(text, "{kind} {name} {{ {definition} }}");
            }
            text.push_str(&of_family(FAMILY_CHAINS, family));
        }
        for line in CHAINS.lines() {
            // Only the place of a digit is an N after a lower-case word.
            let twice = of_family(line, Family::V4) != of_family(line, Family::V6);
            let families: &[Family] = if twice { &[Family::V4, Family::V6] } else { &[Family::V4] };
            for family in families {
                text.push_str(&of_family(line, *family));
                text.push('\n');
            }
        }
        text.push_str(&forged::chains());
        if extent == Extent::Whole {
            text.push_str(&direct::chains());
        }
        for (word, number) in [
            ("SERVICE_MASK", marks::MASK),
            ("SERVICE_VALUE", marks::VALUE),
            ("UNMASK", !mark.value),
            ("VALUE", mark.value),
        ] {
            text = text.replace(word, &format!("{number:#x}"));
        }
        let ports = beside(kept);
        text = text.replace("BESIDE", &format!("{}-{}", ports.start(), ports.end()));
        let is_rule = |line: &&str| line.starts_with("  ") && !line.starts_with("  type ");
        let rules = text.lines().filter(is_rule).count();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let name = format!("{LAYOUT}{:016x}", hasher.finish());
        Self { text, name, rules }
    }

    /// Returns the commands that make the table anew with these members, in one transaction.
    #[must_use]
    pub fn replace(&self, members: &BTreeMap<Member, Option<u32>>) -> String {
        // Deleting a missing table is an error. Adding an existing one is not.
        let mut text = format!("table {TABLE}\ndelete table {TABLE}\n");
        let _ = writeln!(text, "table {TABLE} {{\n{}chain {} {{ }}\n}}", self.text, self.name);
        text.push_str(&change("add", members.iter().map(|(member, mark)| (member, *mark))));
        text
    }
}

/// Returns the commands that change members. `verb` is `add` or `delete`.
pub fn change<'a>(verb: &str, members: impl Iterator<Item = (&'a Member, Option<u32>)>) -> String {
    let mut by_set: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((set, element), mark) in members {
        by_set.entry(set_name(*set, element.family())).or_default().push(show(*set, element, mark));
    }
    let mut text = String::new();
    for (set, elements) in by_set {
        for part in elements.chunks(STATEMENT) {
            let _ = writeln!(text, "{verb} element {TABLE} {set} {{ {} }}", part.join(", "));
        }
    }
    text
}

/// Returns the set and the family for the name of a set.
pub fn set_of_name(name: &str) -> Option<(Set, Option<Family>)> {
    let families = [Family::V4, Family::V6];
    let all = families.into_iter().flat_map(|family| SETS.map(|(set, _)| (set, Some(family))));
    all.chain([(Set::Uplinks, None)]).find(|(set, family)| set_name(*set, *family) == name)
}

/// Returns the name of a set.
pub fn set_name(set: Set, family: Option<Family>) -> String {
    let word = match set {
        Set::Services => "services",
        Set::Vips => "vips",
        Set::Refusing => "refusing",
        Set::Refused => "refused",
        Set::DroppedOutside => "dropped_outside",
        Set::DroppedInside => "dropped_inside",
        Set::Restricted => "restricted",
        Set::Allowed(Protocol::Tcp) => "allowed_tcp",
        Set::Allowed(Protocol::Udp) => "allowed_udp",
        Set::Allowed(Protocol::Sctp) => "allowed_sctp",
        Set::Marks => "marks",
        Set::Local => "local",
        Set::Loop => "loop",
        Set::Cluster => "cluster",
        Set::Near => "near",
        Set::Direct => "direct",
        Set::Inside => "inside",
        Set::Uplinks => "uplinks",
        Set::Nodes => "nodes",
        Set::FouNodes => "fou_nodes",
        Set::InnerDestinations => "inner_destinations",
        Set::Encapsulated => "encapsulated",
        Set::Targets => "targets",
        Set::NodeTargets => "node_targets",
        Set::Segments => "segments",
    };
    let digit = match family {
        Some(Family::V4) => "4",
        Some(Family::V6) => "6",
        None => "",
    };
    format!("{word}{digit}")
}

fn show(set: Set, element: &Element, mark: Option<u32>) -> String {
    let text = match element {
        Element::Port(protocol, address) if set == Set::Loop => {
            format!("{} . {}", address.ip(), port(*protocol, *address))
        }
        Element::Port(protocol, address) => port(*protocol, *address),
        Element::Range(address, range) => format!("{} . {} . {range}", address.ip(), address.port()),
        Element::Address(address) if set == Set::InnerDestinations => forged::show(*address),
        Element::Address(address) => address.to_string(),
        Element::Net(net) => net.to_string(),
        Element::Device(name) | Element::FamilyDevice(_, name) => format!("\"{name}\""),
        Element::Target { number, protocol, frontend, backend } => {
            let frontend = match set {
                Set::NodeTargets => format!("{} . {}", protocol.number(), frontend.port()),
                _ => port(*protocol, *frontend),
            };
            let key = format!("{number:#x} . {frontend}");
            return mark.map_or(key.clone(), |port| format!("{key} : {backend} . {port}"));
        }
    };
    mark.map_or(text.clone(), |mark| format!("{text} : {mark:#x}"))
}

fn port(protocol: Protocol, address: SocketAddr) -> String {
    format!("{} . {} . {}", address.ip(), protocol.number(), address.port())
}

/// Replaces the placeholders of `text` for a family.
fn of_family(text: &str, family: Family) -> String {
    let (header, digit) = match family {
        Family::V4 => ("ip", "4"),
        Family::V6 => ("ip6", "6"),
    };
    let mut text =
        text.replace("PORT", "IP daddr . meta l4proto . th dport").replace("IP ", &format!("{header} "));
    for word in [
        "refused",
        "restricted",
        "allowed_tcp",
        "allowed_udp",
        "allowed_sctp",
        "vips",
        "services",
        "unknown",
        "cluster",
        "near",
        "direct",
        "outside",
        "inside",
        "loop",
        "local",
        "refusing",
        "marks",
    ] {
        text = text.replace(&format!("{word}N"), &format!("{word}{digit}"));
    }
    text
}

/// Returns the larger part of the ports below and above a range. Returns all ports from 1024 if that part is
/// small.
fn beside(kept: &RangeInclusive<u16>) -> RangeInclusive<u16> {
    const FIRST: u16 = 1024;
    const ENOUGH: usize = 8192;
    let below = FIRST..=kept.start().saturating_sub(1);
    let above = kept.end().saturating_add(1).max(FIRST)..=u16::MAX;
    let more = if below.len() >= above.len() { below } else { above };
    if more.len() >= ENOUGH { more } else { FIRST..=u16::MAX }
}

const fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}
