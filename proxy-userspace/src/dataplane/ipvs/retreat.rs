//! The end of IPVS mode: its connections stay until they end, and it gets no new ones.
//!
//! Nothing follows the cluster any more. Sets, addresses and devices stay, because connections need them. UDP
//! virtual services stay, because sockets that were connected before still send there. No other new packets
//! reach them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;

use tracing::{debug, warn};

use super::kernel::Kernel;
use super::netlink::Generation;
use super::plan::{Kernel as _, Op};
use super::state::{Connections, Server, Set, State, Virtual};
use super::{OpenError, Settings, lock, nft};
use crate::dataplane::Mark;
use crate::model::Protocol;

/// Whether an earlier agent left IPVS serving in this network namespace. Our table is made first and removed
/// last, so it tells. The check starts no process and loads no module of IPVS.
#[must_use]
pub fn is_here() -> bool {
    match Generation::open().and_then(|mut nftables| nftables.has_table(nft::NAME)) {
        Ok(is_here) => is_here,
        // A kernel without nftables has other errors for it.
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => {
            debug!("no nftables, so nothing of IPVS mode: {error}");
            false
        }
        Err(error) => {
            warn!("whether IPVS serves can't be asked: {error}");
            false
        }
    }
}

/// The end of IPVS mode. When this is dropped, everything stays as it is.
#[derive(Debug)]
pub struct Retreat {
    kernel: Kernel,
    _lock: UnixListener,
}

/// The connections that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Virtual services with connections over TCP or SCTP.
    pub services: usize,
    /// Whether other nodes may encapsulate packets for endpoints of this one. Their connections are unknown
    /// here.
    pub takes_encapsulated: bool,
}

impl Left {
    /// Whether no connection is left.
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        self.services == 0 && !self.takes_encapsulated
    }
}

impl Retreat {
    /// Takes over the state of an agent in IPVS mode, which must have ended.
    pub fn begin(settings: &Settings) -> Result<Self, OpenError> {
        let lock = lock()?;
        // Without a mark the rules would masquerade everything.
        let mark = if settings.mark.mask == 0 { Mark::default() } else { settings.mark };
        let kernel = Kernel::open(&Settings { mark, ..settings.clone() })?;
        Ok(Self { kernel, _lock: lock })
    }

    /// Keeps new connections away, and removes virtual services without connections; to be repeated until
    /// none is left.
    pub fn go_on(&mut self) -> Result<Left, OpenError> {
        let state = self.kernel.read()?;
        let servers: BTreeSet<(Virtual, SocketAddr)> = state.servers.keys().copied().collect();
        let connections = self.kernel.connections(&servers).map_err(OpenError::ipvs)?;
        let Leaving { ops, left } = leaving(&state, &connections);
        for part in ops.chunk_by(Op::goes_with) {
            let part: Vec<&Op> = part.iter().collect();
            for failure in self.kernel.apply_all(&part).into_iter().filter_map(Result::err) {
                warn!("IPVS goes: {failure}");
            }
        }
        Ok(left)
    }
}

/// Returns the next operations, and the connections that are left then.
#[derive(Debug, PartialEq, Eq)]
struct Leaving {
    ops: Vec<Op>,
    left: Left,
}

fn leaving(state: &State, connections: &BTreeMap<(Virtual, SocketAddr), Connections>) -> Leaving {
    let is_in_use = |place: &(Virtual, SocketAddr)| {
        // A virtual service that can't be counted may have connections.
        connections.get(place).is_none_or(|had| had.active > 0 || had.inactive > 0)
    };
    let (mut closed, mut gone, mut services) = (Vec::new(), Vec::new(), 0);
    for service in state.services.keys().filter(|service| service.protocol() != Protocol::Udp) {
        let servers: Vec<_> = state.servers.iter().filter(|((of, _), _)| of == service).collect();
        if !servers.iter().any(|(place, _)| is_in_use(place)) {
            gone.push(Op::DeleteService(*service));
            continue;
        }
        services += 1;
        for (place, server) in servers {
            if !is_in_use(place) {
                gone.push(Op::DeleteServer(*service, place.1));
            } else if server.weight != 0 {
                closed.push(Op::PutServer(*service, place.1, Server { weight: 0, ..*server }));
            }
        }
    }
    let takes_encapsulated = state.members.keys().any(|(set, _)| *set == Set::Encapsulated);
    closed.append(&mut gone);
    Leaving { ops: closed, left: Left { services, takes_encapsulated } }
}

#[cfg(test)]
#[path = "retreat_tests.rs"]
mod tests;
