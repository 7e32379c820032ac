//! Our table and its members, as nft reads them.
//!
//! Protocols are numbers: their names would need a file that small images lack.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::{direct, forged};
use crate::dataplane::Mark;
use crate::dataplane::ipvs::state::{Element, Member, Set, marks};
use crate::model::{Family, Protocol};

/// Family and name of the table.
pub const TABLE: &str = "inet millrace";
/// Its name.
pub const NAME: &str = "millrace";
/// A chain of this name and a hash tells which rules the table has.
pub const LAYOUT: &str = "layout_";
/// Elements in one statement.
const STATEMENT: usize = 500;

/// The sets of a family, `ADDR` being its type of address, `INNER` the place of an inner destination.
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
/// Without the protocol: for the key of intervals nft 1.0.6 turns its one byte round as if it were two, which Linux refuses since 7.
const RANGE_TYPE: &str = "type ADDR . inet_service . ADDR; flags interval;";

/// The chains of all families; a line with `IP` or a digit `N` is there once for each. `input` is after connection
/// tracking and before IPVS (98 and 99), `output` as well (-200, -98). What IPVS serves is never forwarded: a mark there is that of
/// programs of eBPF mode, of which the node has some while it changes its mode, and asks for nothing any more.
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

/// The chains of one family. In `outside` are other nodes, too: they get the list that externalTrafficPolicy says, since their
/// addresses may stand for pods that they masquerade, but are not answered directly: a node's stack takes nothing off a wire
/// that comes from its own address.
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
    /// Name of the chain that says which layout a table has.
    pub name: String,
    /// Number of rules.
    pub rules: usize,
}

/// Which rules a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All.
    Whole,
    /// Those that need no translation of destinations and no zones of connection tracking, which a kernel may lack: this
    /// node can take nothing that others encapsulate.
    Bare,
}

impl Layout {
    /// The table whose masquerading mark is `mark`, and that gives connections ports beside those of `kept`, as far as
    /// there are any: those are eBPF mode's. A privileged port stays one.
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
            // A digit's place is behind a lower-case word: no other N is.
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

    /// Makes the table anew with these members, in one transaction.
    #[must_use]
    pub fn replace(&self, members: &BTreeMap<Member, Option<u32>>) -> String {
        // To delete what is not there is an error; to add what is there is none.
        let mut text = format!("table {TABLE}\ndelete table {TABLE}\n");
        let _ = writeln!(text, "table {TABLE} {{\n{}chain {} {{ }}\n}}", self.text, self.name);
        text.push_str(&change("add", members.iter().map(|(member, mark)| (member, *mark))));
        text
    }
}

/// `verb` is `add` or `delete`.
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

/// The set and family of a set's name.
pub fn set_of_name(name: &str) -> Option<(Set, Option<Family>)> {
    let families = [Family::V4, Family::V6];
    let all = families.into_iter().flat_map(|family| SETS.map(|(set, _)| (set, Some(family))));
    all.chain([(Set::Uplinks, None)]).find(|(set, family)| set_name(*set, *family) == name)
}

fn set_name(set: Set, family: Option<Family>) -> String {
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

/// The text with a family's words in it.
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

/// The ports below or above a range, whichever are more; or all from 1024, where those are few.
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
