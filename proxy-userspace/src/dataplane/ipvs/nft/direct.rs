//! The rules of Direct Server Return: what other nodes encapsulated for a backend of this one gets there as if it had come in
//! bare, and the reply goes out with the frontend's address again.

use std::fmt::Write;

use crate::dataplane::ipvs::netlink::{Kind, tunnel_address};
use crate::model::Family;

/// Connections that came encapsulated are in a zone of their own: there are two with the same addresses where this node was
/// the director before. It is what tells their replies, too.
pub const ZONE: u16 = 78;

/// Nodes alone encapsulate: what is inside has passed the director's source ranges, and these of this node it does not meet.
/// `decapsulate` is before connection tracking (-200), which sees the inner packets alone; the device takes the outer header
/// off and keeps the mark. `inner` is translation of destinations (-100), once for each connection; what came for nobody
/// goes no further, or it would be served as if its client had sent it here. `clamp` sees replies before their source is
/// translated back (100).
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

/// The chains, their rules once for each family.
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
