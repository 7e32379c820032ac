//! Asks for the sockets of this node, if a Service requests an address of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Listener, Model, Protocol};
use crate::node::{Sysctls, first_and_last, listeners};

/// Age at which the known sockets are too old for a change of Services.
const OLD: Duration = Duration::from_secs(1);
/// Age at which a UDP socket with a port that the kernel may have chosen counts as a server's. A client's is gone by then:
/// it waits for one answer.
const SERVER: Duration = Duration::from_secs(4);
/// The ports that the kernel chooses from, and its default.
const LOCAL_PORTS: (&str, RangeInclusive<u16>) = ("ipv4/ip_local_port_range", 32768..=60999);

/// The last look at the sockets.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    looked: Option<Instant>,
    /// UDP sockets that may be clients', and when each was seen first; `None` = at the first look.
    seen: BTreeMap<Listener, Option<Instant>>,
}

impl Sockets {
    /// Tells the model of the sockets that there are now.
    pub fn look(&mut self, model: &mut Model) {
        if model.has_own_addresses() {
            model.set_listeners(self.servers(listeners(), &local_ports(), Instant::now()));
        } else {
            // Sockets of the next first look are as old as any.
            *self = Self::default();
        }
    }

    /// Does the same if the last look was long ago.
    pub fn look_if_old(&mut self, model: &mut Model, now: Instant) {
        if self.looked.is_none_or(|looked| looked + OLD <= now) {
            self.look(model);
        }
    }

    /// Returns the sockets without those that may be clients'.
    fn servers(
        &mut self,
        mut found: BTreeSet<Listener>,
        local_ports: &RangeInclusive<u16>,
        now: Instant,
    ) -> BTreeSet<Listener> {
        let since = self.looked.replace(now).map(|_| now);
        let may_be_client = |listener: &Listener| {
            listener.protocol == Protocol::Udp && local_ports.contains(&listener.address.port())
        };
        self.seen.retain(|listener, _| found.contains(listener));
        for listener in found.iter().copied().filter(may_be_client) {
            self.seen.entry(listener).or_insert(since);
        }
        let is_young = |since: Option<Instant>| since.is_some_and(|since| now < since + SERVER);
        found.retain(|listener| !self.seen.get(listener).copied().is_some_and(is_young));
        found
    }
}

fn local_ports() -> RangeInclusive<u16> {
    let (name, default) = LOCAL_PORTS;
    let range = Sysctls::default().read(name).ok().as_deref().and_then(first_and_last);
    range.map_or(default, |(first, last)| first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_udp_socket_with_a_port_of_the_kernels_counts_if_it_was_there_at_first_or_stays() {
        let socket = |protocol, port| Listener { protocol, address: ([0, 0, 0, 0], port).into() };
        let (former, client) = (socket(Protocol::Udp, 40000), socket(Protocol::Udp, 51820));
        let (server, tcp) = (socket(Protocol::Udp, 53), socket(Protocol::Tcp, 51820));
        let mut sockets = Sockets::default();
        let begin = Instant::now();
        let mut at = |seconds, found: &[Listener]| {
            let found = found.iter().copied().collect();
            let servers = sockets.servers(found, &(32768..=60999), begin + Duration::from_secs(seconds));
            servers.into_iter().collect::<BTreeSet<_>>()
        };
        assert_eq!(at(0, &[former]), [former].into());
        assert_eq!(at(5, &[former, client, server, tcp]), [former, server, tcp].into());
        assert_eq!(at(6, &[former, server]), [former, server].into());
        assert_eq!(at(10, &[client]), [].into(), "another client's");
        assert_eq!(at(15, &[client]), [client].into());
    }
}
