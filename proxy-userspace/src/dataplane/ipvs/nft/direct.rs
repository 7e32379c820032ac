//! The rules of Direct Server Return on a backend's node.
//!
//! They forward a decapsulated packet to the backend like one without an outer header. The reply leaves with
//! the frontend's address as its source.

use std::fmt::Write;

use crate::dataplane::ipvs::netlink::{Kind, tunnel_address};
use crate::model::Family;

/// The conntrack zone of connections with encapsulated packets.
///
/// A node that was the director before has two connections with the same addresses. The zone separates them,
/// and identifies the replies.
pub const ZONE: u16 = 78;

/// The chains, with placeholders.
///
/// - Only nodes encapsulate. Inner packets have passed the director's source ranges, so the ranges of this
///   node do not apply to them.
/// - `decapsulate` runs before connection tracking (-200), which sees only the inner packets. The device
///   removes the outer header and keeps the mark.
/// - `inner` translates destinations (-100), once per connection.
/// - `delivered` drops inner packets without a target. This node would otherwise serve them as packets from
///   their clients.
/// - `clamp` sees replies before their source is translated back (100).
const CHAINS: &str = "
chain decapsulate {
  type filter hook prerouting priority -300; policy accept;
  OUTER iifname @uplinks IP saddr @nodesN meta mark set IP daddr map @encapsulatedN notrack IP daddr set OWN
  iifname DEVICE ct original zone set ZONE
}
chain inner {
  type nat hook prerouting priority -105; policy accept;
  iifname DEVICE dnat IP to meta mark . IP daddr . meta l4proto . th dport map @targetsN
  iifname DEVICE IP daddr @nodesN dnat IP to meta mark . meta l4proto . th dport map @node_targetsN
}
chain delivered {
  type filter hook prerouting priority -90; policy accept;
  iifname DEVICE ct status dnat meta mark set 0 accept
  iifname DEVICE drop
}
chain clamp {
  type filter hook postrouting priority -150; policy accept;
  meta nfproto NFPROTO ct original zone ZONE tcp flags & (syn | ack) == syn | ack tcp option maxseg size set oifname map @segmentsN
}
";

/// Returns the chains with each rule once per family.
pub fn chains() -> String {
    let mut text = String::new();
    for line in CHAINS.lines() {
        if !line.starts_with("  ") || line.starts_with("  type ") {
            let _ = writeln!(text, "{line}");
            continue;
        }
        for family in [Family::V4, Family::V6] {
            let _ = writeln!(text, "{}", rule(line, family));
        }
    }
    text
}

fn rule(line: &str, family: Family) -> String {
    let (header, outer, protocol, digit) = match family {
        Family::V4 => ("ip", "ip protocol 4", "ipv4", "4"),
        Family::V6 => ("ip6", "ip6 nexthdr 41", "ipv6", "6"),
    };
    let device = format!("\"{}\"", Kind::Tunnel(family).name());
    let mut text = line.to_owned();
    for (word, value) in [
        ("OUTER", outer),
        ("OWN", &tunnel_address(family).to_string()),
        ("DEVICE", &device),
        ("ZONE", &ZONE.to_string()),
        ("NFPROTO", protocol),
        ("IP ", &format!("{header} ")),
        ("nodesN", &format!("nodes{digit}")),
        ("encapsulatedN", &format!("encapsulated{digit}")),
        ("targetsN", &format!("targets{digit}")),
        ("segmentsN", &format!("segments{digit}")),
    ] {
        text = text.replace(word, value);
    }
    text
}
