//! What there is to see, agent or not.

use serde::Serialize;

use super::cleanup::found;
use super::netlink::Ipvs;
use super::{OpenError, lock};

/// What `millrace status` shows where IPVS serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusView {
    /// Always `ipvs`.
    pub mode: &'static str,
    /// Whether an agent runs.
    pub agent_alive: bool,
    /// Virtual services of ours, those keyed by a mark included.
    pub virtual_services: usize,
    /// Their real servers.
    pub servers: usize,
    /// Those of them that get no new connections.
    pub draining: usize,
    /// Established connections of all of them.
    pub connections: u64,
    /// Addresses of services.
    pub addresses: usize,
}

/// Looks into the kernel; `None` where no agent ever served this network namespace by IPVS.
pub fn status() -> Result<Option<StatusView>, OpenError> {
    let Some((state, _)) = found()? else { return Ok(None) };
    let mut view = StatusView {
        mode: "ipvs",
        agent_alive: matches!(lock(), Err(OpenError::InUse)),
        virtual_services: 0,
        servers: 0,
        draining: 0,
        connections: 0,
        addresses: state.addresses.len(),
    };
    let mut ipvs = Ipvs::open().map_err(OpenError::ipvs)?;
    for (service, _) in ipvs.services().map_err(OpenError::ipvs)? {
        if !state.owns(&service) {
            continue;
        }
        view.virtual_services += 1;
        for (_, server, connections) in ipvs.servers(&service).map_err(OpenError::ipvs)? {
            view.servers += 1;
            view.draining += usize::from(server.weight == 0);
            view.connections += u64::from(connections.active);
        }
    }
    Ok(Some(view))
}
