//! The judgement: two look-ups of longest prefixes, one for the peer, one for protocol and port.

use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::policy::{NOT_ISOLATED, OPENED_BY_PEER, PEER_CLASS, PEER_OWN_NODE, PolicyRule, RULE_EXACT};

use crate::policy::family::{Family, KeyOf};
use crate::policy::maps;
use crate::policy::scene::Scene;

/// Whether policies allow the connection of a key that an end has opened, at a destination port.
///
/// The node reaches its pods. `may_be_node`: whether the packet was made on the node, if it comes from its address: others
/// come in its name where the node masquerades.
#[inline(always)]
pub fn allows<F: Family>(key: &KeyOf<F>, scene: &Scene, opened: u16, port: u16, may_be_node: bool) -> bool {
    if opened == OPENED_BY_PEER {
        scene.ingress == NOT_ISOLATED || has_rule::<F>(key, scene.ingress, port, may_be_node)
    } else {
        scene.egress == NOT_ISOLATED || has_rule::<F>(key, scene.egress, port, false)
    }
}

/// The destination port of a connection that an end has opened; 0 for an echo request.
#[inline(always)]
pub fn destination_port<A>(key: &proxy_common::policy::PolicyFlowKey<A>, opened: u16) -> u16 {
    if opened == OPENED_BY_PEER { key.pod_port } else { key.peer_port }
}

/// Not inlined: the keys would stay on the programs' stack.
#[inline(never)]
fn has_rule<F: Family>(key: &KeyOf<F>, profile: u32, port: u16, is_open_to_node: bool) -> bool {
    let peer = F::peer(&key.peer);
    // The kubelet's probes come from there.
    if is_open_to_node && peer & PEER_OWN_NODE != 0 {
        return true;
    }
    let class = peer & PEER_CLASS;
    let rule = PolicyRule {
        profile: profile.to_be(),
        class: class.to_be(),
        protocol: key.protocol as u8,
        reserved: 0,
        port,
    };
    maps::POLICY_RULES.get(&Key::new(RULE_EXACT, rule)).is_some()
}
