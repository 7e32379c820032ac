//! Addresses of Services, whatever the port: VIPS.
//!
//! An address is in the map while a frontend for clients has it. A node's address is marked: its other
//! ports belong to the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proxy_common::frontend::{
    FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP, FRONTEND_KIND_NODE_PORT, Frontend, SCOPE_EXTERNAL,
};
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL, VIP_INSIDE_ONLY, VIP_ON_NODE};

use super::change::{Change, FrontendAt, Op};

/// The entries in VIPS, and the wanted ones.
#[derive(Clone, Debug, Default)]
pub struct Vips {
    /// The number of entries in FRONTENDS; an address without a frontend is absent.
    frontends: BTreeMap<IpAddr, Counts>,
    written: BTreeMap<IpAddr, u32>,
    /// Addresses whose entry may be outdated.
    due: BTreeSet<IpAddr>,
}

/// The number of frontends of an address.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    as_cluster_ip: usize,
    as_other: usize,
    /// Frontends of both kinds for clients inside the cluster only.
    inside_only: usize,
}

impl Vips {
    /// Takes over an entry found in the map.
    pub fn adopt(&mut self, address: IpAddr, bits: u32) {
        self.written.insert(address, bits);
        self.due.insert(address);
    }

    /// Counts a frontend found, written or removed.
    pub fn count_frontend(&mut self, at: &FrontendAt, value: Frontend, by: isize) {
        if at.scope != SCOPE_EXTERNAL || value.kind() == FRONTEND_KIND_NODE_PORT {
            return;
        }
        let address = at.address.ip();
        let counts = self.frontends.entry(address).or_default();
        let is_cluster_ip = value.kind() == FRONTEND_KIND_CLUSTER_IP;
        let count = if is_cluster_ip { &mut counts.as_cluster_ip } else { &mut counts.as_other };
        *count = count.saturating_add_signed(by);
        if value.flags & FRONTEND_INSIDE_ONLY != 0 {
            counts.inside_only = counts.inside_only.saturating_add_signed(by);
        }
        if counts.as_cluster_ip + counts.as_other == 0 {
            self.frontends.remove(&address);
        }
        self.due.insert(address);
    }

    /// Marks every address for a check: the node addresses have changed.
    pub fn recheck_all(&mut self) {
        self.due.extend(self.frontends.keys().chain(self.written.keys()));
    }

    /// Returns the writes and removals; `is_node` tells the addresses of nodes.
    pub fn changes(&self, is_node: impl Fn(IpAddr) -> bool) -> Vec<Op> {
        let change = |address: &IpAddr| {
            let wanted = match self.bits(*address) {
                0 => 0,
                _ if is_node(*address) => VIP_ON_NODE,
                bits => bits,
            };
            match (wanted, self.written.get(address)) {
                (0, None) => None,
                (0, Some(_)) => Some(Change::RemoveVip(*address)),
                (wanted, Some(bits)) if *bits == wanted => None,
                (wanted, _) => Some(Change::Vip(*address, wanted)),
            }
        };
        self.due.iter().filter_map(change).map(|change| Op { change, owner: None }).collect()
    }

    /// Keeps only the addresses with failed operations marked.
    pub fn retain_failed(&mut self, is_node: impl Fn(IpAddr) -> bool) {
        let differing = self.changes(is_node);
        let address = |op: Op| match op.change {
            Change::Vip(address, _) | Change::RemoveVip(address) => Some(address),
            _ => None,
        };
        self.due = differing.into_iter().filter_map(address).collect();
    }

    /// Records a written or removed entry.
    pub fn record(&mut self, address: IpAddr, bits: Option<u32>) {
        match bits {
            Some(bits) => self.written.insert(address, bits),
            None => self.written.remove(&address),
        };
    }

    /// Returns the entries in the map.
    pub fn written(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        self.written.iter().map(|(address, bits)| (*address, *bits))
    }

    fn bits(&self, address: IpAddr) -> u32 {
        let Counts { as_cluster_ip, as_other, inside_only } =
            self.frontends.get(&address).copied().unwrap_or_default();
        let bit = |condition: bool, bit: u32| if condition { bit } else { 0 };
        bit(as_cluster_ip != 0, VIP_CLUSTER_IP)
            | bit(as_other != 0, VIP_EXTERNAL)
            | bit(inside_only != 0 && inside_only == as_cluster_ip + as_other, VIP_INSIDE_ONLY)
    }
}
