//! The maps carry out the operations of a plan.

use std::net::IpAddr;

use aya::Pod;
use proxy_common::addr::{mapped, unmapped};
use proxy_common::backend::BACKEND_SERVING;
use proxy_common::frontend::{
    FRONTEND_KIND_LOAD_BALANCER, FRONTEND_KIND_NODE_PORT, Frontend, SCOPE_EXTERNAL,
};
use proxy_common::node_flow::node_port_bit;
use proxy_common::vip::{FILTER_SERVED, FILTER_VIP, VipKey};
use proxy_common::way::{PEER_SELF, PeerKey, WAY_RESOLVED, Way};
use proxy_common::{Addr4, Addr6, Address};

use super::convert::{address_filter_place, backend, frontend_key};
use super::error::OpenError;
use super::grace_period::GracePeriod;
use super::maps::{Maps, Table};
use super::plan::{BackendEntry, BackendId, Change, Extent, FrontendAt, Kernel, RangeAt};
use crate::model::Family;

impl Kernel for Maps {
    fn apply(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::ClearSlots(extent) => self.clear_slots(*extent),
            Change::RemoveName(id) => {
                self.figures.forget(*id)?;
                self.names.remove(id)
            }
            Change::Way(id, way) => self.write_way(*id, *way),
            Change::Backend(id, entry) => self.write_backend(*id, entry),
            Change::Slots { words, .. } => {
                words.iter().try_for_each(|(index, slot)| self.store_slot(*index, slot.0))
            }
            Change::Service(id, entry) => self
                .services
                .store(*id, entry.0)
                .then_some(())
                .ok_or_else(|| format!("SERVICES ends before {id}")),
            Change::Name(id, name) => self.names.insert(id, name),
            Change::Hint(key, reference) => self.hints.insert(key, &reference.0),
            Change::RemoveHint(key) => self.hints.remove(key),
            Change::Peer(address, bits) => self.write_peer(*address, *bits),
            Change::RemovePeer(address) => self.peers.remove(&PeerKey { address: mapped(*address) }),
            Change::Vip(address, bits) => self.write_vip(*address, *bits),
            Change::RemoveVip(address) => self.vips.remove(&VipKey { address: mapped(*address) }),
            Change::Device(index, device) => self.devices.insert(index, device),
            Change::RemoveDevice(index) => self.devices.remove(index),
            Change::SourceRange(range) => self.write_range(*range),
            Change::RemoveSourceRange(range) => self.remove_range(*range),
            Change::Frontend(at, value) | Change::Restrict(at, value) => self.write_frontend(at, Some(value)),
            Change::RemoveFrontend(at) => self.write_frontend(at, None),
        }
    }
}

impl Maps {
    fn store_slot(&self, index: u32, word: u64) -> Result<(), String> {
        self.selection
            .store(index, word)
            .then_some(())
            .ok_or_else(|| format!("SELECTION ends before {index}"))
    }

    fn clear_slots(&self, extent: Extent) -> Result<(), String> {
        (extent.offset..extent.offset + extent.length).try_for_each(|index| self.store_slot(index, 0))
    }

    /// Writes a way. It is unresolved during the change, with its old and then its new fields. So a
    /// program never reads half of an old and half of a new next hop.
    fn write_way(&mut self, id: u32, way: Way) -> Result<(), String> {
        let unresolved = |way: Way| Way { flags: way.flags & !WAY_RESOLVED, ..way };
        let before = self.ways.get(id).unwrap_or_default();
        if before.flags & WAY_RESOLVED != 0 {
            self.ways.set(id, &unresolved(before))?;
        }
        self.ways.set(id, &unresolved(way))?;
        if way.flags & WAY_RESOLVED != 0 {
            self.ways.set(id, &way)?;
        }
        Ok(())
    }

    fn write_backend(&mut self, id: BackendId, entry: &BackendEntry) -> Result<(), String> {
        self.lost_backend |= entry.flags & BACKEND_SERVING == 0;
        let no_family = || format!("endpoint {} is not of its family", entry.address);
        match id.family {
            Family::V4 => self.of4.backends.set(id.id, &backend(entry).ok_or_else(no_family)?),
            Family::V6 => self.of6.backends.set(id.id, &backend(entry).ok_or_else(no_family)?),
        }
    }

    /// Writes an address of a Service. The filter comes first, because the programs look there
    /// first.
    fn write_vip(&mut self, address: IpAddr, bits: u32) -> Result<(), String> {
        self.mark_address(address, FILTER_SERVED | FILTER_VIP)?;
        self.vips.insert(&VipKey { address: mapped(address) }, &bits)
    }

    /// Sets `FILTER_*` bits of an address: from now on the programs look at its packets.
    fn mark_address(&self, address: IpAddr, bits: u64) -> Result<(), String> {
        let (word, shift) = address_filter_place(address);
        let is_set = self.address_filter.store(word, self.address_filter.load(word) | bits << shift);
        is_set.then_some(()).ok_or_else(|| format!("ADDRESS_FILTER ends before {word}"))
    }

    /// Returns whether an address has `FILTER_*` bits.
    pub fn has_marked(&self, address: IpAddr, bits: u64) -> bool {
        let (word, shift) = address_filter_place(address);
        self.address_filter.load(word) >> shift & bits == bits
    }

    /// Marks this node's addresses, at which NodePorts, SNAT replies and tunnel packets arrive.
    pub fn mark_own(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), String> {
        addresses.into_iter().try_for_each(|address| self.mark_address(address, FILTER_SERVED))
    }

    /// Writes the address of a node, this one's own into the filter first.
    fn write_peer(&mut self, address: IpAddr, bits: u32) -> Result<(), String> {
        if bits & PEER_SELF != 0 {
            self.mark_address(address, FILTER_SERVED)?;
        }
        self.peers.insert(&PeerKey { address: mapped(address) }, &bits)
    }

    fn write_range(&mut self, range: RangeAt) -> Result<(), String> {
        if !self.of4.source_ranges.insert(range)? {
            self.of6.source_ranges.insert(range)?;
        }
        Ok(())
    }

    fn remove_range(&mut self, range: RangeAt) -> Result<(), String> {
        if !self.of4.source_ranges.remove(range)? {
            self.of6.source_ranges.remove(range)?;
        }
        Ok(())
    }

    /// Sets the bits of an earlier agent's frontends and addresses in NODE_PORTS and ADDRESS_FILTER.
    ///
    /// An earlier version may lack these maps. Its entries serve on, so the bits come before the
    /// programs of this version.
    pub fn mark_found(&self) -> Result<(), OpenError> {
        let mark = |address: IpAddr, port: u16, scope: u8, value: &Frontend| {
            if may_be_on_node(port, scope, value) {
                self.mark_node_port(port);
            }
            self.mark_address(address, filter_bits(value)).is_ok()
        };
        let (of4, of6) = (&self.of4.frontends, &self.of6.frontends);
        of4.for_each(|key, value| mark(key.address.to_ip(), key.port, key.scope, &value))?;
        of6.for_each(|key, value| mark(key.address.to_ip(), key.port, key.scope, &value))?;
        self.vips.for_each(|key, _| {
            self.mark_address(unmapped(key.address), FILTER_SERVED | FILTER_VIP).is_ok()
        })?;
        self.peers.for_each(|key, bits| {
            bits & PEER_SELF == 0 || self.mark_address(unmapped(key.address), FILTER_SERVED).is_ok()
        })
    }

    fn mark_node_port(&self, port: u16) -> bool {
        let (word, mask) = node_port_bit(port);
        self.node_ports.store(word, self.node_ports.load(word) | mask)
    }

    /// Writes or removes a frontend. The bits of its port and its address come first: from its first
    /// packet on, the programs must tell the node's own connections from it.
    fn write_frontend(&mut self, at: &FrontendAt, value: Option<&Frontend>) -> Result<(), String> {
        let port = at.address.port().to_be();
        if value.is_some_and(|value| may_be_on_node(port, at.scope, value)) && !self.mark_node_port(port) {
            return Err("NODE_PORTS has too few words".to_owned());
        }
        if let Some(value) = value {
            self.mark_address(at.address.ip(), filter_bits(value))?;
        }
        self.is_index_behind = true;
        if let Some(key) = frontend_key::<Addr4>(at) {
            self.of4.frontend_index.close(&key);
            return write_or_remove(&mut self.of4.frontends, &key, value);
        }
        let key =
            frontend_key::<Addr6>(at).ok_or_else(|| format!("frontend {} has no family", at.address))?;
        self.of6.frontend_index.close(&key);
        write_or_remove(&mut self.of6.frontends, &key, value)
    }

    /// Copies the frontends that lack a copy, and closes copies that FRONTENDS does not have.
    ///
    /// If it fails, the programs find the frontends in FRONTENDS.
    pub fn fill_frontend_index(&self) -> Result<(), OpenError> {
        let (of4, of6) = (&self.of4, &self.of6);
        let missing4 = of4.frontend_index.compare(&of4.frontends.all()?);
        let missing6 = of6.frontend_index.compare(&of6.frontends.all()?);
        if missing4.is_empty() && missing6.is_empty() {
            return Ok(());
        }
        let failed = |error| OpenError::MapIo { map: "FRONTEND_INDEX", error };
        let period = GracePeriod::new().map_err(failed)?;
        // A program may still read an entry that was closed.
        period.wait().map_err(failed)?;
        of4.frontend_index.write(&missing4);
        of6.frontend_index.write(&missing6);
        // A program may have read a word before it was written.
        period.wait().map_err(failed)?;
        of4.frontend_index.open_entries(&missing4);
        of6.frontend_index.open_entries(&missing6);
        Ok(())
    }
}

/// Returns the `FILTER_*` bits of a frontend's address.
const fn filter_bits(value: &Frontend) -> u64 {
    match value.kind() {
        FRONTEND_KIND_NODE_PORT => FILTER_SERVED,
        _ => FILTER_SERVED | FILTER_VIP,
    }
}

/// Returns whether a frontend may have an address and port (network byte order) of the node's own
/// connections, or be for the node's pods at an address of the node.
///
/// A load balancer address may be a node's address. The kernel gives a port below 1024 only to a
/// socket that asks for it.
fn may_be_on_node(port: u16, scope: u8, value: &Frontend) -> bool {
    const FIRST_UNPRIVILEGED: u16 = 1024;
    match value.kind() {
        FRONTEND_KIND_NODE_PORT => true,
        FRONTEND_KIND_LOAD_BALANCER => scope == SCOPE_EXTERNAL && u16::from_be(port) >= FIRST_UNPRIVILEGED,
        _ => false,
    }
}

fn write_or_remove<K: Pod, V: Pod>(
    table: &mut Table<K, V>,
    key: &K,
    value: Option<&V>,
) -> Result<(), String> {
    match value {
        Some(value) => table.insert(key, value),
        None => table.remove(key),
    }
}
