//! From the tables in the maps to other ones: which entries are written, in which order.
//!
//! A program reads a pod, a peer and a rule one after the other, and each may be of the former tables or of the next
//! ones. So rules come first, then peers, then pods; what nothing uses any more goes last. Numbers of classes and
//! profiles have one meaning in all tables that exist at the same time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use proxy_common::policy::{PEER_NODE, PEER_OWN_NODE, POLICY_OPEN_UNKNOWN, PolicyPod};

use crate::policy::{Compiled, PeerEntry, RuleKey, Step};

/// What the maps hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Values of POLICY_PEERS4/6.
    pub peers: BTreeMap<IpNet, u32>,
    /// Keys of POLICY_RULES.
    pub rules: BTreeSet<RuleKey>,
    /// Values of POLICY_PODS, by device.
    pub pods: BTreeMap<u32, PolicyPod>,
    /// Word of POLICY_CONFIG.
    pub flags: u32,
}

/// A change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Adds a rule.
    Rule(RuleKey),
    /// Removes a rule.
    NoRule(RuleKey),
    /// Writes a peer.
    Peer(IpNet, u32),
    /// Removes a peer.
    NoPeer(IpNet),
    /// Writes a pod, by device.
    Pod(u32, PolicyPod),
    /// Removes a pod, by device.
    NoPod(u32),
    /// Writes the flags.
    Flags(u32),
    /// Lets all connections be judged again.
    Generation,
}

impl Tables {
    /// Returns the tables of a node with these pods. `nodes` are addresses that no pod may send tunnels to.
    #[must_use]
    pub fn of(
        compiled: &Compiled,
        pods: BTreeMap<u32, PolicyPod>,
        nodes: &BTreeSet<IpAddr>,
        has_policies: bool,
    ) -> Self {
        let mut peers: BTreeMap<IpNet, u32> =
            compiled.peers.iter().map(|(net, peer)| (*net, value(*peer))).collect();
        let of_nodes = nodes.iter().filter_map(|node| Some(((*node).into(), peer(compiled, nodes, *node)?)));
        peers.extend(of_nodes);
        let flags = if has_policies { 0 } else { POLICY_OPEN_UNKNOWN };
        Self { peers, rules: compiled.rules.iter().copied().collect(), pods, flags }
    }

    /// Takes over a change.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Rule(key) => drop(self.rules.insert(key)),
            Op::NoRule(key) => drop(self.rules.remove(&key)),
            Op::Peer(net, value) => drop(self.peers.insert(net, value)),
            Op::NoPeer(net) => drop(self.peers.remove(&net)),
            Op::Pod(device, pod) => drop(self.pods.insert(device, pod)),
            Op::NoPod(device) => drop(self.pods.remove(&device)),
            Op::Flags(flags) => self.flags = flags,
            Op::Generation => {}
        }
    }

    /// Returns the changes to other tables. `between` are tables that judge alike for the pods of both, where they differ
    /// from the wanted ones.
    #[must_use]
    pub fn changes_to(&self, between: Option<&Self>, wanted: &Self) -> Vec<Op> {
        let step = between.unwrap_or(wanted);
        let mut ops: Vec<Op> = step.rules.difference(&self.rules).copied().map(Op::Rule).collect();
        change_peers(&self.peers, &step.peers, &mut ops);
        self.change_pods(&wanted.pods, wanted.flags, &mut ops);
        let judged = ops.len();
        if between.is_some() {
            let known = |key: &&RuleKey| self.rules.contains(key) || step.rules.contains(key);
            ops.extend(wanted.rules.iter().filter(|key| !known(key)).copied().map(Op::Rule));
            change_peers(&step.peers, &wanted.peers, &mut ops);
        }
        let added = step.rules.iter().filter(|_| between.is_some());
        let gone: BTreeSet<&RuleKey> =
            self.rules.iter().chain(added).filter(|key| !wanted.rules.contains(key)).collect();
        ops.extend(gone.into_iter().copied().map(Op::NoRule));
        if ops.len() > judged {
            ops.push(Op::Generation);
        }
        ops
    }

    /// Returns the changes to `compiled`, whose last step was this one. These tables must be of the ones before it. `nodes` are
    /// those before and now.
    #[must_use]
    pub fn changes_of_step(
        &self,
        step: &Step,
        compiled: &Compiled,
        pods: &BTreeMap<u32, PolicyPod>,
        [former, nodes]: [&BTreeSet<IpAddr>; 2],
    ) -> Vec<Op> {
        let mut ops: Vec<Op> = step.rules.iter().copied().map(Op::Rule).collect();
        for address in &(&step.addresses | &(former ^ nodes)) {
            let net = IpNet::from(*address);
            let wanted = peer(compiled, nodes, *address);
            if self.peers.get(&net) != wanted.as_ref() {
                ops.push(wanted.map_or(Op::NoPeer(net), |value| Op::Peer(net, value)));
            }
        }
        self.change_pods(pods, self.flags, &mut ops);
        ops
    }

    /// Adds the changes of pods and flags, behind which all connections are judged again.
    fn change_pods(&self, pods: &BTreeMap<u32, PolicyPod>, flags: u32, ops: &mut Vec<Op>) {
        let closes = self.flags != flags && flags & POLICY_OPEN_UNKNOWN == 0;
        ops.extend(closes.then_some(Op::Flags(flags)));
        let is_new = |(device, pod): &(&u32, &PolicyPod)| self.pods.get(device) != Some(pod);
        ops.extend(pods.iter().filter(is_new).map(|(device, pod)| Op::Pod(*device, *pod)));
        ops.extend(self.pods.keys().filter(|device| !pods.contains_key(device)).copied().map(Op::NoPod));
        if self.flags != flags && !closes {
            ops.push(Op::Flags(flags));
        }
        if !ops.is_empty() {
            ops.push(Op::Generation);
        }
    }
}

const fn value(peer: PeerEntry) -> u32 {
    if peer.is_own_node { peer.class | PEER_OWN_NODE | PEER_NODE } else { peer.class }
}

/// Returns the value of an address; `None` if it needs no entry.
fn peer(compiled: &Compiled, nodes: &BTreeSet<IpAddr>, address: IpAddr) -> Option<u32> {
    if nodes.contains(&address) {
        let around = compiled.peers.longest(address).copied().unwrap_or_default();
        return Some(value(around) | PEER_NODE);
    }
    compiled.peers.get(address.into()).copied().map(value)
}

/// Adds the changes of peers. A longer prefix is written before one around it, so that no address has the value of the
/// wrong one for a moment.
fn change_peers(from: &BTreeMap<IpNet, u32>, to: &BTreeMap<IpNet, u32>, ops: &mut Vec<Op>) {
    let mut changed: Vec<(&IpNet, &u32)> =
        to.iter().filter(|(net, value)| from.get(net) != Some(value)).collect();
    changed.sort_by_key(|(net, _)| Reverse(net.prefix_len()));
    ops.extend(changed.into_iter().map(|(net, value)| Op::Peer(*net, *value)));
    ops.extend(from.keys().filter(|net| !to.contains_key(net)).copied().map(Op::NoPeer));
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
