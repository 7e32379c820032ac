//! The next hop towards another node.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, BPF_FIB_LOOKUP_SRC,
    bpf_fib_lookup,
};
use aya_ebpf::helpers::generated;
use proxy_common::hop::{DEVICE_XDP, HOP_NEIGHBOUR, HOP_SECONDS, HOP_XDP, Hop};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;
use proxy_common::way::{WAY_IPV4, WAY_RESOLVED, WAY_VALID, WAY_XDP, Way};

use crate::maps::config::FIB_SOURCE;
use crate::maps::family::{Family, FlowOf};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::maps::{self, clock, observe};
use crate::packet::Packet;
use crate::select::vip;
use crate::verdict::{HAND_TO_TC, Verdict};

/// The device by which a frame leaves, and its Ethernet addresses (destination, source).
#[derive(Clone, Copy, Default)]
pub struct NextHop {
    pub device: u32,
    pub addresses: [u32; 3],
    /// Not zero if the kernel keeps the neighbour's address up to date without being asked: the agent has
    /// installed it as a managed one.
    ///
    /// No bool: `Result` would keep its variant in a bool's unused values, and the kernel refuses the BTF of that.
    pub managed: u32,
}

impl NextHop {
    /// The next hop towards a backend.
    #[inline(always)]
    pub fn of_hop<A>(hop: &Hop<A>) -> Self {
        let addresses = ethernet_addresses(hop.destination_mac, hop.source_mac);
        Self { device: hop.device, addresses, managed: 0 }
    }
    /// Sends a frame there.
    #[inline(always)]
    pub const fn send(&self, reason: Reason) -> Verdict {
        if self.managed != 0 {
            Verdict::Transmit(reason, self.device)
        } else {
            Verdict::Send(reason, self.device)
        }
    }
}

/// The way of a backend on another node.
#[inline(always)]
pub fn lookup_way(id: u32) -> Result<&'static Way, Verdict> {
    match maps::WAYS.get(id) {
        Some(way) if way.flags & WAY_VALID != 0 && way.mtu != 0 => Ok(way),
        _ => Err(Verdict::Drop(Reason::NoWay)),
    }
}

/// The next hop of a way: the agent's while the agent lives, else the FIB's answer.
#[inline(always)]
pub fn resolve<P: Packet>(packet: &P, way: &Way) -> Result<NextHop, Verdict> {
    let usable = WAY_RESOLVED | if packet.needs_xdp_way() { WAY_XDP } else { 0 };
    if way.flags & usable == usable && observe::agent_is_alive() {
        return Ok(NextHop {
            device: way.device,
            addresses: ethernet_addresses(way.destination_mac, way.source_mac),
            managed: u32::from(way.destination_mac != [0; 6]),
        });
    }
    ask_fib(packet, way)
}

/// Packs destination and source, which lie side by side in memory: three loads, and no detour over the stack.
#[inline(always)]
fn ethernet_addresses(destination: [u8; 6], source: [u8; 6]) -> [u32; 3] {
    let [to0, to1, to2, to3, to4, to5] = destination;
    let [from0, from1, from2, from3, from4, from5] = source;
    [[to0, to1, to2, to3], [to4, to5, from0, from1], [from2, from3, from4, from5]].map(u32::from_ne_bytes)
}

#[inline(never)]
fn ask_fib<P: Packet>(packet: &P, way: &Way) -> Result<NextHop, Verdict> {
    let mut room = MaybeUninit::uninit();
    let query = blank_query(packet, &mut room);
    if way.flags & WAY_IPV4 != 0 {
        V4::ask(query, &V4::unmap(&way.source), &V4::unmap(&way.target));
    } else {
        V6::ask(query, &V6::unmap(&way.source), &V6::unmap(&way.target));
    }
    let neighbour = look_up(packet, query, 0)?;
    // Only a device known to have XDP takes frames from XDP: the one the frame came in by, and the way's own.
    let reachable =
        query.ifindex == packet.device() || query.ifindex == way.device && way.flags & WAY_XDP != 0;
    if packet.needs_xdp_way() && !(neighbour && reachable) {
        return Err(HAND_TO_TC);
    }
    let addresses = ethernet_addresses(query.dmac, query.smac);
    Ok(NextHop { device: query.ifindex, addresses, managed: 0 })
}

/// Finds the next hop towards the client in a reply's entry, for a packet of so many bytes.
///
/// There are too many clients to have ways for.
#[inline(never)]
pub fn to_client<P: Packet, F: Family>(
    packet: &P,
    reply: &FlowOf<F>,
    length: u32,
    next: &mut NextHop,
) -> Result<(), Verdict> {
    let mut room = MaybeUninit::uninit();
    let query = blank_query(packet, &mut room);
    F::ask(query, &reply.source, &reply.destination);
    query.__bindgen_anon_1.tot_len = at_most_u16(length);
    let neighbour = look_up(packet, query, 0)?;
    let reachable = || query.ifindex == packet.device() || device_flags(query.ifindex) & DEVICE_XDP != 0;
    if packet.needs_xdp_way() && !(neighbour && reachable()) {
        return Err(HAND_TO_TC);
    }
    let addresses = ethernet_addresses(query.dmac, query.smac);
    *next = NextHop { device: query.ifindex, addresses, managed: 0 };
    Ok(())
}

#[inline(always)]
const fn at_most_u16(length: u32) -> u16 {
    if length > u16::MAX as u32 { u16::MAX } else { length as u16 }
}

/// The next hop to a backend on another node at its own address: the FIB's answer of the last second.
#[inline(always)]
pub fn hop<P: Packet, F: Family>(
    packet: &P,
    reference: BackendRef,
    backend: &F::Address,
) -> Result<&'static Hop<F::Address>, Verdict> {
    let entry = F::hop(reference.id()).ok_or(Verdict::Drop(Reason::NoWay))?;
    // SAFETY: the map's memory; a hop that is being written names no backend.
    let hop = unsafe { &*entry };
    let now = clock::now();
    if hop.backend != reference.0 || now.saturating_sub(hop.asked) >= HOP_SECONDS {
        ask_hop::<P, F>(packet, reference, backend, entry)?;
    }
    let usable = HOP_NEIGHBOUR | if hop.device == packet.device() { 0 } else { HOP_XDP };
    if packet.needs_xdp_way() && hop.flags & usable != usable {
        return Err(HAND_TO_TC);
    }
    Ok(hop)
}

/// Bytes an IP packet to a backend may have, if known.
#[inline(always)]
pub fn hop_mtu<F: Family>(reference: BackendRef) -> Option<u16> {
    let entry = F::hop(reference.id())?;
    // SAFETY: the map's memory.
    let hop = unsafe { &*entry };
    (hop.backend == reference.0).then_some(hop.mtu)
}

/// Writes the FIB's answer about a backend.
#[inline(never)]
fn ask_hop<P: Packet, F: Family>(
    packet: &P,
    reference: BackendRef,
    backend: &F::Address,
    entry: *mut Hop<F::Address>,
) -> Result<(), Verdict> {
    let mut room = MaybeUninit::uninit();
    let query = blank_query(packet, &mut room);
    F::ask(query, &F::Address::default(), backend);
    let flags = if FIB_SOURCE.load() != 0 { BPF_FIB_LOOKUP_SRC } else { 0 };
    let neighbour = look_up(packet, query, flags)?;
    // A backend whose replies would come in by an unseen device can't be served.
    // Asking for the MTU overwrites the index.
    let index = query.ifindex;
    // SAFETY: copied at once.
    let device = unsafe { maps::DEVICES.get(index).copied() }.ok_or(no_way(packet))?;
    let answered = F::answered_source(query);
    let known = FIB_SOURCE.load() != 0 && answered != F::Address::default();
    let source = if known { answered } else { F::source_of(&device) };
    if source == F::Address::default() {
        return Err(no_way(packet));
    }
    // SAFETY: both fields of the union are the same integer.
    let mtu = if neighbour { unsafe { query.__bindgen_anon_1.mtu_result } } else { ask_mtu(packet, query) };
    let is_xdp = device.flags & DEVICE_XDP != 0;
    // The agent may not know the address yet, or never if it has stopped.
    vip::mark_served::<F>(&source);
    // SAFETY: the map look-up checked the index. The compiler must not move the stores: a reader trusts the
    // rest only once it sees `backend`.
    unsafe {
        (&raw mut (*entry).backend).write_volatile(BackendRef::NONE.0);
        (&raw mut (*entry).source).write_volatile(source);
        (&raw mut (*entry).asked).write_volatile(clock::now());
        (&raw mut (*entry).device).write_volatile(index);
        (&raw mut (*entry).mtu).write_volatile(mtu);
        (&raw mut (*entry).flags)
            .write_volatile(if neighbour { HOP_NEIGHBOUR } else { 0 } | if is_xdp { HOP_XDP } else { 0 });
        (&raw mut (*entry).destination_mac).write_volatile(query.dmac);
        (&raw mut (*entry).source_mac).write_volatile(query.smac);
        (&raw mut (*entry).backend).write_volatile(reference.0);
    }
    Ok(())
}

/// Asks for the MTU. Without a neighbour the FIB names none, unless the packet is too long.
#[inline(always)]
fn ask_mtu<P: Packet>(packet: &P, query: &mut bpf_fib_lookup) -> u16 {
    query.__bindgen_anon_1.tot_len = u16::MAX;
    query.ifindex = packet.device();
    // The look-up reads its own result there as a table's number only if a flag says so, and none does.
    let _ = look_up(packet, query, 0);
    // SAFETY: both fields of the union are the same integer.
    unsafe { query.__bindgen_anon_1.mtu_result }
}

#[inline(always)]
fn device_flags(device: u32) -> u32 {
    // SAFETY: copied at once.
    unsafe { maps::DEVICES.get(device).copied() }.map_or(0, |device| device.flags)
}

#[repr(C, align(8))]
struct Query(bpf_fib_lookup);

/// A query for a packet that came in here. With a length in it, the answer names the possible length.
#[inline(always)]
fn blank_query<'a, P: Packet>(packet: &P, room: &'a mut MaybeUninit<Query>) -> &'a mut bpf_fib_lookup {
    let words = room.as_mut_ptr().cast::<u64>();
    for index in 0..size_of::<Query>() / size_of::<u64>() {
        // Volatile: for a frame without an Ethernet header LLVM would otherwise mask pointers, which the
        // verifier refuses.
        // SAFETY: inside the query, which is aligned for words.
        unsafe { words.add(index).write_volatile(0) };
    }
    // SAFETY: all-zero is valid for this plain C struct.
    let Query(query) = unsafe { room.assume_init_mut() };
    query.__bindgen_anon_1.tot_len = 1;
    query.ifindex = packet.device();
    query
}

/// Asks the FIB; returns whether the neighbour is known.
///
/// The device is known in both cases; without a route the look-up fails.
#[inline(always)]
fn look_up<P: Packet>(packet: &P, query: &mut bpf_fib_lookup, flags: u32) -> Result<bool, Verdict> {
    let size = size_of::<bpf_fib_lookup>() as i32;
    // SAFETY: the context is the kernel's and the query is as large as said.
    let answer = unsafe { generated::bpf_fib_lookup(packet.context(), &raw mut *query, size, flags) };
    if answer == i64::from(BPF_FIB_LKUP_RET_SUCCESS) {
        Ok(true)
    } else if answer == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH) {
        Ok(false)
    } else if answer == i64::from(BPF_FIB_LKUP_RET_FRAG_NEEDED) {
        // SAFETY: both fields of the union are the same integer.
        Err(Verdict::Refuse(Reason::TooBig, u32::from(unsafe { query.__bindgen_anon_1.mtu_result })))
    } else {
        Err(no_way(packet))
    }
}

/// The verdict without a route. TC asks again and decides.
#[inline(always)]
fn no_way<P: Packet>(packet: &P) -> Verdict {
    if packet.needs_xdp_way() { HAND_TO_TC } else { Verdict::Drop(Reason::NoWay) }
}
