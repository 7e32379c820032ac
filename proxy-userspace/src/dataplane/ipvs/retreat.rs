//! The end of IPVS mode: existing connections go on until they end, and no new ones begin.
//!
//! The state no longer follows the cluster. Sets, addresses and devices stay, because connections need them.
//! UDP virtual services stay, because sockets connected before still send there. No other new packets reach
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;

use tracing::{debug, warn};

use super::kernel::Kernel;
use super::plan::{Kernel as _, Op};
use super::state::{Connections, Server, Set, State, Virtual};
use super::{OpenError, Settings, lock, nft};
use crate::dataplane::Mark;
use crate::dataplane::netlink::Generation;
use crate::model::Protocol;

/// Whether an earlier agent left IPVS serving in this network namespace.
///
/// The answer is whether our table exists, because the agent makes it first and removes it last. The check
/// starts no process and loads no module of IPVS.
#[must_use]
pub fn is_here() -> bool {
    match Generation::open().and_then(|mut nftables| nftables.has_table(nft::NAME)) {
        Ok(is_here) => is_here,
        // A kernel without nftables fails with other errors than EPERM.
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => {
            debug!(%error, "the kernel has no nftables, so IPVS mode left nothing");
            false
        }
        Err(error) => {
            warn!(%error, "looking for IPVS mode failed; the agent assumes that IPVS does not serve");
            false
        }
    }
}

/// The end of IPVS mode. A drop changes nothing in the kernel.
#[derive(Debug)]
pub struct Retreat {
    kernel: Kernel,
    _lock: UnixListener,
}

/// The remaining connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The number of virtual services with TCP or SCTP connections.
    pub services: usize,
    /// Whether other nodes may encapsulate packets for endpoints of this node. It doesn't know their
    /// connections.
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
    /// Takes over the state of an agent in IPVS mode. That agent must have ended.
    pub fn begin(settings: &Settings) -> Result<Self, OpenError> {
        let lock = lock()?;
        // The mask 0 matches every packet, so the rules would masquerade everything.
        let mark = if settings.mark.mask == 0 { Mark::default() } else { settings.mark };
        let kernel = Kernel::open(&Settings { mark, ..settings.clone() })?;
        Ok(Self { kernel, _lock: lock })
    }

    /// Keeps new connections away, and removes virtual services without connections. The caller repeats this
    /// until none is left.
    pub fn go_on(&mut self) -> Result<Left, OpenError> {
        let state = self.kernel.read()?;
        let servers: BTreeSet<(Virtual, SocketAddr)> = state.servers.keys().copied().collect();
        let connections = self.kernel.connections(&servers).map_err(OpenError::ipvs)?;
        let Leaving { ops, left } = leaving(&state, &connections);
        for part in ops.chunk_by(Op::goes_with) {
            let part: Vec<&Op> = part.iter().collect();
            for failure in self.kernel.apply_all(&part).into_iter().filter_map(Result::err) {
                warn!(error = failure, "removing IPVS failed in part; tried again");
            }
        }
        Ok(left)
    }
}

/// The next operations, and the connections that remain after them.
#[derive(Debug, PartialEq, Eq)]
struct Leaving {
    ops: Vec<Op>,
    left: Left,
}

fn leaving(state: &State, connections: &BTreeMap<(Virtual, SocketAddr), Connections>) -> Leaving {
    let is_in_use = |place: &(Virtual, SocketAddr)| {
        // A server without a count may have connections.
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
