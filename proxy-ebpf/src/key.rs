//! Keys of the hash maps, written in the words the kernel hashes them by.
//!
//! A 32-bit load from bytes that were stored one by one a moment ago can't be forwarded from the store buffer; the hash
//! would wait for each such word. Little-endian, like the bpfel target.

use core::mem::MaybeUninit;

use proxy_common::addr::Address;
use proxy_common::flow::FlowKey;
use proxy_common::frontend::FrontendKey;

const _: () = assert!(cfg!(target_endian = "little"));

/// A tuple; `ports` as they lie in the packet, source port first.
#[inline(always)]
pub fn flow<A: Address>(source: A, destination: A, ports: u32, protocol: u8) -> FlowKey<A> {
    let mut key = MaybeUninit::<FlowKey<A>>::uninit();
    let pointer = key.as_mut_ptr();
    // SAFETY: four stores inside the key that together write all of it: two addresses, then source and destination
    // port, then the protocol and three zeroes.
    unsafe {
        (&raw mut (*pointer).source).write(source);
        (&raw mut (*pointer).destination).write(destination);
        (&raw mut (*pointer).source_port).cast::<u32>().write(ports);
        (&raw mut (*pointer).protocol).cast::<u32>().write(u32::from(protocol));
        key.assume_init()
    }
}

/// An address, port, protocol and scope a client may ask for.
#[inline(always)]
pub fn frontend<A: Address>(address: A, port: u16, protocol: u8, scope: u8) -> FrontendKey<A> {
    let last = u32::from(port) | u32::from(protocol) << 16 | u32::from(scope) << 24;
    let mut key = MaybeUninit::<FrontendKey<A>>::uninit();
    let pointer = key.as_mut_ptr();
    // SAFETY: two stores inside the key that together write all of it.
    unsafe {
        (&raw mut (*pointer).address).write(address);
        (&raw mut (*pointer).port).cast::<u32>().write(last);
        key.assume_init()
    }
}

/// Two ports as they lie in a packet.
#[inline(always)]
pub fn ports(source: u16, destination: u16) -> u32 {
    u32::from(source) | u32::from(destination) << 16
}
