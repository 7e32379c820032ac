//! The program of `millrace monitor --kernel`: it tells of packets of Services that the kernel drops.
//!
//! It is no part of the data plane, and no packet waits for it but those that are dropped.
#![no_std]
#![no_main]
#![expect(
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "the macros of aya-ebpf want it so, and drop the docs"
)]

#[path = "../header.rs"]
#[expect(dead_code, reason = "it has the headers of all programs")]
mod header;
#[path = "../required.rs"]
mod required;

use core::ptr;

use aya_ebpf::Global;
use aya_ebpf::btf_maps::{HashMap, PerCpuArray, RingBuf};
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_kernel as read_bytes, bpf_snprintf};
use aya_ebpf::macros::{btf_map, raw_tracepoint};
use aya_ebpf::programs::RawTracePointContext;
use header::{Ipv4, Ipv6, protocol};
use proxy_common::kernel_drop::{
    CAPTURED_WORDS, FUNCTION_WORDS, KernelDrop, KernelDropSettings, PLACES as LEAST_PLACES, Place,
    RING_BYTES, TOLD_ALREADY, Told,
};

/// Set by the command.
#[unsafe(no_mangle)]
static SETTINGS: Global<KernelDropSettings> = Global::new(KernelDropSettings {
    head: 0,
    network_header: 0,
    tail: 0,
    mark: 0,
    arrived_by: 0,
    device: 0,
    told_already: 0,
    index: 0,
    namespace: 0,
    inode: 0,
    mark_value: 0,
    mark_mask: 0,
    first_reason: 0,
    rate: 0,
});
/// A function's name. The kernel wants the format in read-only memory.
#[unsafe(no_mangle)]
static FUNCTION_FORMAT: [u8; 4] = *b"%ps\0";

/// The frontends and backends. The command writes it, and chooses its size.
#[btf_map]
static PLACES: HashMap<Place, u32, LEAST_PLACES, NO_PREALLOC> = HashMap::new();
#[btf_map]
static DROPS: RingBuf<KernelDrop, RING_BYTES> = RingBuf::new();
/// Entry 0 is the only one.
#[btf_map]
static TOLD: PerCpuArray<Told, 1> = PerCpuArray::new();

/// `BPF_F_NO_PREALLOC`: most entries are never written.
const NO_PREALLOC: usize = 1;
const CAPTURED_BYTES: u32 = (CAPTURED_WORDS * 8) as u32;

/// `kfree_skb(skb, location, reason)`, as the kernel calls it since 5.17.
#[raw_tracepoint(tracepoint = "kfree_skb")]
pub fn kernel_drops(context: RawTracePointContext) -> i32 {
    let (skb, location): (u64, u64) = (context.arg(0), context.arg(1));
    let reason: u32 = context.arg(2);
    if reason >= SETTINGS.load().first_reason {
        let _ = look(skb, location, reason);
    }
    0
}

/// A packet that nobody asked for gives `None`.
#[inline(always)]
fn look(skb: u64, location: u64, reason: u32) -> Option<()> {
    let settings = SETTINGS.load();
    let head: u64 = read(skb + u64::from(settings.head))?;
    let network: u16 = read(skb + u64::from(settings.network_header))?;
    let packet = head + u64::from(network);
    let place = place_of(packet);
    if place == 0 {
        let mark: u32 = read(skb + u64::from(settings.mark))?;
        if settings.mark_mask == 0 || mark & settings.mark_mask != settings.mark_value {
            return None;
        }
    }
    if read::<u32>(skb + u64::from(settings.told_already))? == TOLD_ALREADY {
        return None;
    }
    // SAFETY: the helper has no arguments.
    let at = unsafe { bpf_ktime_get_ns() };
    let told = TOLD.get_ptr_mut(0)?;
    if !may_tell(told, at, settings.rate) {
        return None;
    }
    let Some(mut room) = DROPS.reserve(0) else {
        // SAFETY: the map look-up checked the index; only this CPU writes the entry.
        unsafe { (*told).lost += 1 };
        return None;
    };
    let drop: *mut KernelDrop = room.as_mut_ptr();
    let tail: u32 = read(skb + u64::from(settings.tail)).unwrap_or(0);
    let captured = tail.wrapping_sub(network.into());
    let captured = if captured > CAPTURED_BYTES { CAPTURED_BYTES } else { captured };
    let (device, namespace) = device_of(skb, &settings);
    // SAFETY: the ring has room for the whole drop, and all of it is written. The helpers check what they read.
    unsafe {
        (*drop).at = at;
        (*drop).reason = reason;
        (*drop).place = place;
        (*drop).device = device;
        (*drop).namespace = namespace;
        (*drop).reserved = 0;
        (*drop).captured = captured;
        (*drop).function = [0; FUNCTION_WORDS];
        let mut arguments = [location];
        let text = (&raw mut (*drop).function).cast();
        let format = (&raw const FUNCTION_FORMAT).cast();
        bpf_snprintf(text, (FUNCTION_WORDS * 8) as u32, format, arguments.as_mut_ptr(), 8);
        let bytes = (&raw mut (*drop).packet).cast();
        if read_bytes(bytes, CAPTURED_BYTES, packet as *const _) != 0 {
            (*drop).captured = 0;
        }
    }
    room.submit(0);
    Some(())
}

/// Counts a drop that is told, or left out because its second had enough.
#[inline(always)]
fn may_tell(told: *mut Told, at: u64, rate: u32) -> bool {
    let second = (at / 1_000_000_000) as u32;
    // SAFETY: the map look-up checked the index; only this CPU writes the entry.
    unsafe {
        if (*told).second != second {
            (*told).second = second;
            (*told).used = 0;
        }
        if (*told).used >= rate {
            (*told).lost += 1;
            return false;
        }
        (*told).used += 1;
    }
    true
}

/// Returns the index of the packet's device, and the inode of its network namespace; zeros without one.
#[inline(always)]
fn device_of(skb: u64, settings: &KernelDropSettings) -> (u32, u32) {
    let device: u64 = read(skb + u64::from(settings.device)).unwrap_or(0);
    if device == 0 {
        return (0, 0);
    }
    let arrived_by: u32 = read(skb + u64::from(settings.arrived_by)).unwrap_or(0);
    let leaves_by: u32 = read(device + u64::from(settings.index)).unwrap_or(0);
    let net: u64 = read(device + u64::from(settings.namespace)).unwrap_or(0);
    let namespace = if net == 0 { 0 } else { read(net + u64::from(settings.inode)).unwrap_or(0) };
    (if arrived_by == 0 { leaves_by } else { arrived_by }, namespace)
}

/// Returns the value in PLACES of a packet or of the packet inside, and 0 if there is none.
#[inline(always)]
fn place_of(packet: u64) -> u32 {
    let Some(outer) = Headers::read(packet) else { return 0 };
    let place = outer.place();
    if place != 0 || !outer.is_tunnel() {
        return place;
    }
    Headers::read(packet + u64::from(outer.length)).map_or(0, |inner| inner.place())
}

/// What the headers of a packet tell.
struct Headers {
    source: [u32; 4],
    destination: [u32; 4],
    source_port: u16,
    destination_port: u16,
    protocol: u8,
    /// Bytes of the IP header.
    length: u32,
}

/// The offset of a fragment, in host byte order.
const FRAGMENT_OFFSET: u16 = 0x1fff;

impl Headers {
    #[inline(always)]
    fn read(packet: u64) -> Option<Self> {
        let first: u8 = read(packet)?;
        let (mut headers, has_ports) = match first >> 4 {
            4 => {
                let ip: Ipv4 = read(packet)?;
                let mapped = |word: [u32; 1]| [0, 0, 0xffff_u32.to_be(), word[0]];
                let headers = Self {
                    source: mapped(ip.source),
                    destination: mapped(ip.destination),
                    source_port: 0,
                    destination_port: 0,
                    protocol: ip.protocol,
                    length: u32::from(first & 0xf) * 4,
                };
                (headers, u16::from_be(ip.fragment) & FRAGMENT_OFFSET == 0)
            }
            6 => {
                let ip: Ipv6 = read(packet)?;
                let headers = Self {
                    source: ip.source,
                    destination: ip.destination,
                    source_port: 0,
                    destination_port: 0,
                    protocol: ip.next_header,
                    length: size_of::<Ipv6>() as u32,
                };
                (headers, true)
            }
            _ => return None,
        };
        if has_ports && matches!(headers.protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
            let ports: [u16; 2] = read(packet + u64::from(headers.length))?;
            [headers.source_port, headers.destination_port] = ports;
        }
        Some(headers)
    }

    #[inline(always)]
    const fn is_tunnel(&self) -> bool {
        matches!(self.protocol, protocol::IPV4 | protocol::IPV6)
    }

    #[inline(always)]
    fn place(&self) -> u32 {
        let protocol = if self.source_port | self.destination_port == 0 { 0 } else { self.protocol.into() };
        let mut key = Place { address: self.destination, port: self.destination_port, protocol };
        let mut place = find(&key);
        if place == 0 && protocol != 0 {
            key.address = [0; 4];
            place = find(&key);
        }
        key.port = self.source_port;
        if place == 0 && protocol != 0 {
            place = find(&key);
        }
        if place == 0 {
            key.address = self.source;
            place = find(&key);
        }
        place
    }
}

#[inline(always)]
fn find(key: &Place) -> u32 {
    // SAFETY: the value is one word, read at once.
    PLACES.get_ptr(key).map_or(0, |value| unsafe { ptr::read_volatile(value) })
}

/// Reads the kernel's memory; `None` where there is none.
#[inline(always)]
fn read<T: Copy>(address: u64) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(address as *const T) }.ok()
}
