//! Addresses that are a service's, whatever the port: VIPS.
//!
//! An address is there as long as a frontend for clients has it. One that is a node's too is marked so: its other ports are
//! the node's business.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proxy_common::frontend::{
    FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP, FRONTEND_KIND_NODE_PORT, Frontend, SCOPE_EXTERNAL,
};
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL, VIP_INSIDE_ONLY, VIP_ON_NODE};

use super::change::{Change, FrontendAt, Op};

/// What is in VIPS, and what shall be.
#[derive(Clone, Debug, Default)]
pub struct Vips {
    /// Number of entries in FRONTENDS; none has no frontend.
    frontends: BTreeMap<IpAddr, Counts>,
    written: BTreeMap<IpAddr, u32>,
    /// Addresses whose entry may be another than it shall be.
    due: BTreeSet<IpAddr>,
}

/// How many frontends an address has.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    as_cluster_ip: usize,
    as_other: usize,
    /// Of both kinds, those for clients inside the cluster only.
    inside_only: usize,
}

impl Vips {
    /// Takes over an entry found in the map.
    pub fn adopt(&mut self, address: IpAddr, bits: u32) {
        self.written.insert(address, bits);
        self.due.insert(address);
    }

    /// Counts a frontend that was found, written or removed.
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

    /// Looks at every address again: others are a node's now.
    pub fn recheck_all(&mut self) {
        self.due.extend(self.frontends.keys().chain(self.written.keys()));
    }

    /// What must be written or removed, if `is_node` says which addresses are a node's.
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

    /// All that differed is written but for what failed.
    pub fn retain_failed(&mut self, is_node: impl Fn(IpAddr) -> bool) {
        let differing = self.changes(is_node);
        let address = |op: Op| match op.change {
            Change::Vip(address, _) | Change::RemoveVip(address) => Some(address),
            _ => None,
        };
        self.due = differing.into_iter().filter_map(address).collect();
    }

    /// Records that an entry was written or removed.
    pub fn record(&mut self, address: IpAddr, bits: Option<u32>) {
        match bits {
            Some(bits) => self.written.insert(address, bits),
            None => self.written.remove(&address),
        };
    }

    /// What is in the map.
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
