//! The use of this node's ports by connections to backends on other nodes (SNAT). The walk through
//! the flow entries counts it.
//!
//! Each port is usable once per destination, so ports run out towards one backend. Only ports that
//! can't be reused count: no embryos, no ended connections.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use proxy_common::Address;
use proxy_common::flow::{FLOW_CLOSING, FLOW_DATAGRAM, FLOW_REPLY, Flow, FlowKey};
use proxy_common::selection::BackendRef;

use crate::model::Family;

/// The percentage in use from which few ports are left.
const CROWDED: u64 = 80;
/// The percentage in use below which enough ports are left again.
const EASED: u64 = 70;

/// The destination of a port count: connections to it differ in the port alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// Family of its address.
    pub family: Family,
    /// The backend reference, as a word.
    backend: u32,
    /// IP protocol number.
    protocol: u8,
}

impl Destination {
    /// Returns the backend.
    #[must_use]
    pub const fn backend(self) -> BackendRef {
        BackendRef(self.backend)
    }
}

/// The counts of one walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    ports: HashMap<Destination, u32>,
    /// The ports in the current range, if others don't count: connections keep the ports of a
    /// former range.
    range: Option<RangeInclusive<u16>>,
    /// Connections over TCP and SCTP.
    pub connections: u64,
}

impl Usage {
    /// Returns an empty count of these ports only, or of all.
    #[must_use]
    pub fn of(range: Option<RangeInclusive<u16>>) -> Self {
        Self { range, ..Self::default() }
    }

    /// Counts the entry of a confirmed connection that has not expired. The reply's entry has the port.
    pub fn count<A: Address>(&mut self, key: &FlowKey<A>, flow: &Flow<A>) {
        // An entry without a backend belongs to another mode.
        if flow.flags & FLOW_REPLY == 0 && flow.state != FLOW_DATAGRAM && flow.backend != 0 {
            self.connections += 1;
        }
        let is_counted = |port: u16| self.range.as_ref().is_none_or(|range| range.contains(&port));
        if flow.is_translated()
            && flow.flags & FLOW_REPLY != 0
            && flow.state != FLOW_CLOSING
            && is_counted(u16::from_be(key.destination_port))
        {
            let family = if A::WORDS == 1 { Family::V4 } else { Family::V6 };
            let destination = Destination { family, backend: flow.backend, protocol: key.protocol };
            *self.ports.entry(destination).or_default() += 1;
        }
    }
}

/// The use of the ports after a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortUsage {
    /// Ports in use towards the destination with the most.
    pub most: u32,
    /// Destinations with few ports left, and their number of ports in use.
    pub crowded: BTreeMap<Destination, u32>,
}

impl PortUsage {
    /// Returns the use after another walk, of `ports` for each destination.
    ///
    /// A crowded destination stays crowded until its use is clearly lower, so that the agent warns
    /// once.
    #[must_use]
    pub fn after(&self, usage: &Usage, ports: u32) -> Self {
        let part = |used: u32| u64::from(used) * 100;
        let is_crowded = |(destination, used): &(&Destination, &u32)| {
            let least = if self.crowded.contains_key(destination) { EASED } else { CROWDED };
            part(**used) >= u64::from(ports) * least
        };
        let crowded = usage.ports.iter().filter(is_crowded).map(|(destination, used)| (*destination, *used));
        Self { most: usage.ports.values().copied().max().unwrap_or(0), crowded: crowded.collect() }
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::Addr4;
    use proxy_common::flow::FLOW_ESTABLISHED;

    use super::*;

    /// Returns a walk with `used` replies of TCP connections to a backend.
    fn walk(backend: u32, used: u32) -> Usage {
        let mut usage = Usage::default();
        add(&mut usage, backend, used);
        usage
    }

    fn add(usage: &mut Usage, backend: u32, used: u32) {
        let key = FlowKey::<Addr4> { protocol: 6, ..FlowKey::default() };
        let reply = Flow { flags: FLOW_REPLY, state: FLOW_ESTABLISHED, check: 1, backend, ..Flow::default() };
        (0..used).for_each(|_| usage.count(&key, &reply));
    }

    #[test]
    fn a_port_is_in_use_by_the_living_reply_of_a_translated_connection() {
        let reply = Flow::<Addr4> { flags: FLOW_REPLY, state: FLOW_ESTABLISHED, check: 1, ..Flow::default() };
        let counted = |flow: Flow<Addr4>| {
            let mut usage = Usage::default();
            usage.count(&FlowKey::default(), &flow);
            usage.ports.values().sum::<u32>()
        };
        assert_eq!(counted(reply), 1);
        assert_eq!(counted(Flow { state: FLOW_DATAGRAM, ..reply }), 1);
        assert_eq!(counted(Flow { state: FLOW_CLOSING, ..reply }), 0, "the connection has ended");
        assert_eq!(counted(Flow { flags: 0, ..reply }), 0, "the other direction");
        assert_eq!(counted(Flow { check: 0, ..reply }), 0, "a backend on this node");
    }

    #[test]
    fn ports_of_a_former_range_do_not_count() {
        let reply = Flow::<Addr4> { flags: FLOW_REPLY, state: FLOW_ESTABLISHED, check: 1, ..Flow::default() };
        let mut usage = Usage::of(Some(20_000..=20_999));
        for port in [61_000_u16, 19_999, 20_000, 20_999, 21_000] {
            let key = FlowKey { destination_port: port.to_be(), ..FlowKey::default() };
            usage.count(&key, &reply);
        }
        assert_eq!(usage.ports.values().sum::<u32>(), 2);
    }

    #[test]
    fn connections_are_counted_once_and_datagrams_and_other_modes_not() {
        let client = Flow::<Addr4> { state: FLOW_ESTABLISHED, backend: 1, ..Flow::default() };
        let counted = |flow: Flow<Addr4>| {
            let mut usage = Usage::default();
            usage.count(&FlowKey::default(), &flow);
            usage.connections
        };
        assert_eq!(counted(client), 1);
        assert_eq!(counted(Flow { state: FLOW_CLOSING, ..client }), 1, "its last packets may be under way");
        assert_eq!(counted(Flow { flags: FLOW_REPLY, ..client }), 0);
        assert_eq!(counted(Flow { state: FLOW_DATAGRAM, ..client }), 0);
        assert_eq!(counted(Flow { backend: 0, ..client }), 0);
    }

    #[test]
    fn destinations_are_counted_apart() {
        let mut usage = walk(1, 30);
        add(&mut usage, 2, 40);
        let datagrams = FlowKey::<Addr4> { protocol: 17, ..FlowKey::default() };
        let reply = Flow { flags: FLOW_REPLY, state: FLOW_DATAGRAM, check: 1, backend: 2, ..Flow::default() };
        (0..30).for_each(|_| usage.count(&datagrams, &reply));
        let port_usage = PortUsage::default().after(&usage, 50);
        assert_eq!(port_usage.most, 40);
        assert_eq!(port_usage.crowded.values().collect::<Vec<_>>(), [&40]);
    }

    #[test]
    fn a_destination_is_crowded_from_eighty_of_a_hundred_until_it_falls_below_seventy() {
        let mut port_usage = PortUsage::default();
        for (used, is_crowded) in [(79, false), (80, true), (75, true), (70, true), (69, false), (79, false)]
        {
            port_usage = port_usage.after(&walk(1, used), 100);
            assert_eq!((port_usage.most, !port_usage.crowded.is_empty()), (used, is_crowded));
        }
        let all = port_usage.after(&walk(1, 100), 100);
        assert_eq!(all.after(&Usage::default(), 100), PortUsage::default());
    }
}
