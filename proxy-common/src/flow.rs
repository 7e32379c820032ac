//! FLOWS4/6 and FLOWS_NEW4/6: the flow entries, which record the decision for each connection.
//!
//! A connection has two entries, one for each direction, in the same table. A program finds an
//! entry by the tuple that the packet carries when the program meets it. FLOWS_NEW holds
//! unconfirmed connections, so a SYN flood evicts only those. FLOWS holds a connection once the
//! client's packets have confirmed it (decision 128). If FLOWS is full, the entries of a confirmed
//! connection stay in FLOWS_NEW, and serve it from there (decision 172).

use crate::Address;
use crate::hash::flow_hash;
use crate::layout::shared;
pub use crate::tuple::FlowKey;

/// State of [`Flow`]: the program saw only the client's SYN.
pub const FLOW_SYN: u8 = 1;
/// State of [`Flow`]: the client has answered, and data may flow.
pub const FLOW_ESTABLISHED: u8 = 2;
/// State of [`Flow`]: both sides have sent a FIN, or one a RST. On a director with DSR, the
/// client's FIN is enough. A later packet renews the entry's time.
pub const FLOW_CLOSING: u8 = 3;
/// State of [`Flow`]: a flow of datagrams, not TCP.
pub const FLOW_DATAGRAM: u8 = 4;

/// Flag of [`Flow`]: write `source` and `source_port` into the packet.
pub const FLOW_REWRITE_SOURCE: u8 = 1 << 0;
/// Flag of [`Flow`]: write `destination` and `destination_port` into the packet.
pub const FLOW_REWRITE_DESTINATION: u8 = 1 << 1;
/// Flag of [`Flow`]: the entry belongs to the reply direction.
pub const FLOW_REPLY: u8 = 1 << 2;
/// Flag of [`Flow`]: the backend is on another node, and the packet travels there encapsulated.
pub const FLOW_ENCAPSULATE: u8 = 1 << 3;
/// Flag of [`Flow`]: the client has sent its FIN.
pub const FLOW_FIN_CLIENT: u8 = 1 << 4;
/// Flag of [`Flow`]: the backend has sent its FIN. A director with DSR does not see that. There the
/// flag means that the client's last packet was a RST.
pub const FLOW_FIN_BACKEND: u8 = 1 << 5;
/// Flag of [`Flow`]: the packets came in encapsulated (DSR). This node is the backend's, not the
/// director.
pub const FLOW_DECAPSULATED: u8 = 1 << 6;
/// Flag of [`Flow`]: the packets came in with an outer IPv6 header, which is 20 bytes larger than
/// an IPv4 one.
pub const FLOW_OUTER_IPV6: u8 = 1 << 7;
/// Flag of a [`Flow`] with a fingerprint (SNAT): the backend has answered. Before that, the
/// connection's port may be taken from it (decision 56). Such an entry never came in encapsulated,
/// so it shares the bit with [`FLOW_DECAPSULATED`].
pub const FLOW_ANSWERED: u8 = FLOW_DECAPSULATED;

shared! {
    /// Value of FLOWS4/6. The programs write it, as a whole. The agent reads and deletes, and
    /// copies into a map of another size.
    pub struct Flow<A> {
        /// New source address with `FLOW_REWRITE_SOURCE`, else the packet's own.
        pub source: A,
        /// New destination address with `FLOW_REWRITE_DESTINATION`, else the packet's own.
        pub destination: A,
        /// New source port, network byte order.
        pub source_port: u16,
        /// New destination port, network byte order.
        pub destination_port: u16,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend that serves the connection.
        pub backend: u32,
        /// Service id of the port: that of its Cluster list, whichever list the backend was chosen from.
        pub service: u32,
        /// Monotonic second (CLOCK_MONOTONIC_COARSE / 1e9) of a packet. The last one may be later by
        /// [`Limits::renewal`](crate::timeouts::Limits::renewal).
        pub last_seen: u32,
        /// `FLOW_SYN`, `FLOW_ESTABLISHED`, `FLOW_CLOSING` or `FLOW_DATAGRAM`.
        pub state: u8,
        /// `FLOW_*` bits.
        pub flags: u8,
        /// [`fingerprint`] of the entry's key for SNAT, else 0. All other entries hold their
        /// client's address (decisions 12 and 54).
        pub check: u16,
    }
}

/// Returns 16 bits of the key's hash, never zero. They tell an entry of another key if the entry
/// does not hold its client.
#[inline(always)]
pub fn fingerprint<A: Address>(key: &FlowKey<A>) -> u16 {
    (flow_hash(key) >> 16) as u16 | 1
}

impl<A: Address> Flow<A> {
    /// Returns whether the entry is that of a client's packets with this key.
    ///
    /// The map may give a value to another key while a program reads it: an LRU map reuses nodes at
    /// once, and an update of an existing key frees one. Every entry therefore holds its client, or
    /// a fingerprint, which shows another connection's entry.
    #[inline(always)]
    #[must_use]
    pub fn is_clients(&self, key: &FlowKey<A>) -> bool {
        if self.check != 0 {
            return self.flags & FLOW_REPLY == 0 && self.check == fingerprint(key);
        }
        let port = self.source_port ^ key.source_port;
        let of_port = u32::from(port) & unless(self.flags, FLOW_REWRITE_SOURCE);
        let direction = u32::from(self.flags & FLOW_REPLY);
        direction | of_port | self.source.difference(&key.source) == 0
    }
    /// Returns whether the entry is that of replies with this key, which go to the client.
    ///
    /// As in [`is_clients`](Self::is_clients), it shows another connection's entry.
    #[inline(always)]
    #[must_use]
    pub fn is_reply(&self, key: &FlowKey<A>) -> bool {
        if self.check != 0 {
            return self.flags & FLOW_REPLY != 0 && self.check == fingerprint(key);
        }
        let port = self.destination_port ^ key.destination_port;
        let of_port = u32::from(port) & unless(self.flags, FLOW_REWRITE_DESTINATION);
        let direction = u32::from(!self.flags & FLOW_REPLY);
        direction | of_port | self.destination.difference(&key.destination) == 0
    }
    /// Returns whether the entry is that of the other direction of this key.
    #[inline(always)]
    #[must_use]
    pub fn is_twin_of(&self, key: &FlowKey<A>) -> bool {
        let ports = self.source_port ^ key.destination_port | self.destination_port ^ key.source_port;
        let addresses = self.source.difference(&key.destination) | self.destination.difference(&key.source);
        addresses | u32::from(ports) == 0
    }
    /// Turns the client's entry into the reply's, or the reverse: `twin` takes the place of `key`.
    #[inline(always)]
    pub fn reverse(&mut self, key: &FlowKey<A>, twin: &FlowKey<A>) {
        const REWRITES: u8 = FLOW_REWRITE_SOURCE | FLOW_REWRITE_DESTINATION;
        self.source = key.destination;
        self.source_port = key.destination_port;
        self.destination = key.source;
        self.destination_port = key.source_port;
        self.flags = (self.flags ^ FLOW_REPLY) & !REWRITES | swap_rewrites(self.flags);
        if self.check != 0 {
            self.check = fingerprint(twin);
        }
    }
}

/// Returns zero if a flag is set, else all ones.
#[inline(always)]
const fn unless(flags: u8, flag: u8) -> u32 {
    ((flags >> flag.trailing_zeros() & 1) as u32).wrapping_sub(1)
}

/// Swaps the rewrite flags: the source of one direction is the destination of the other.
#[inline(always)]
const fn swap_rewrites(flags: u8) -> u8 {
    (flags & FLOW_REWRITE_SOURCE) << 1 | (flags & FLOW_REWRITE_DESTINATION) >> 1
}

impl<A: Copy> Flow<A> {
    /// Returns whether the client's address is translated (SNAT).
    #[inline(always)]
    #[must_use]
    pub const fn is_translated(&self) -> bool {
        self.check != 0
    }
    /// Returns the key of the entry for the other direction: the translated tuple, reversed.
    ///
    /// The key is built field by field: the BPF stack has no room for the translated tuple in
    /// between.
    #[inline(always)]
    pub const fn twin(&self, key: &FlowKey<A>) -> FlowKey<A> {
        let (source, source_port) = if self.flags & FLOW_REWRITE_DESTINATION != 0 {
            (self.destination, self.destination_port)
        } else {
            (key.destination, key.destination_port)
        };
        let (destination, destination_port) = if self.flags & FLOW_REWRITE_SOURCE != 0 {
            (self.source, self.source_port)
        } else {
            (key.source, key.source_port)
        };
        FlowKey {
            source,
            destination,
            source_port,
            destination_port,
            protocol: key.protocol,
            reserved: 0,
            unused: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::Addr4;

    fn key() -> impl Strategy<Value = FlowKey<Addr4>> {
        (any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>(), any::<u8>()).prop_map(
            |(s, d, sp, dp, protocol)| FlowKey {
                source: Addr4::from(Ipv4Addr::from(s)),
                destination: Addr4::from(Ipv4Addr::from(d)),
                source_port: sp,
                destination_port: dp,
                protocol,
                reserved: 0,
                unused: 0,
            },
        )
    }

    proptest! {
        #[test]
        fn reversing_twice_changes_nothing(key in key()) {
            prop_assert_eq!(key.reversed().reversed(), key);
        }

        #[test]
        fn the_twin_of_the_twin_is_the_entry_itself(
            key in key(), new in key(), rewrite_source in any::<bool>(), rewrite_destination in any::<bool>(),
        ) {
            let flags = if rewrite_source { FLOW_REWRITE_SOURCE } else { 0 }
                | if rewrite_destination { FLOW_REWRITE_DESTINATION } else { 0 };
            let forward = Flow {
                source: new.source, destination: new.destination, source_port: new.source_port,
                destination_port: new.destination_port, flags, ..Flow::default()
            };
            let reply_key = forward.twin(&key);
            let reply = Flow {
                source: key.destination, destination: key.source,
                source_port: key.destination_port, destination_port: key.source_port,
                flags: if rewrite_source { FLOW_REWRITE_DESTINATION } else { 0 }
                    | if rewrite_destination { FLOW_REWRITE_SOURCE } else { 0 },
                ..Flow::default()
            };
            prop_assert_eq!(reply.twin(&reply_key), key);
        }
    }
}
