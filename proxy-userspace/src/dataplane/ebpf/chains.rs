//! The programs of all software on a device, in their order.

use std::io;

use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use nix::net::if_::if_nametoindex;
use tracing::debug;

use super::sys;

/// `enum bpf_attach_type`.
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
/// The name of a program that is not visible.
const UNNAMED: &str = "a program";

/// The tcx programs on one side of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The device.
    pub device: String,
    /// The side.
    pub side: Side,
    /// The kernel's ids and names, in the order in which they see packets.
    pub programs: Vec<(u32, String)>,
}

/// A side of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Packets that come in.
    Ingress,
    /// Packets that leave.
    Egress,
}

/// Returns the chains of a device of this network namespace; none if they can't be listed, as before Linux 6.6. Names of
/// programs take CAP_SYS_ADMIN.
#[must_use]
pub fn chains(device: &str) -> Vec<Chain> {
    let sides = [
        (Side::Ingress, TcAttachType::Ingress, BPF_TCX_INGRESS),
        (Side::Egress, TcAttachType::Egress, BPF_TCX_EGRESS),
    ];
    let chain = |(side, kind, number)| {
        let programs = SchedClassifier::query_tcx(device, kind).map(|(_, programs)| {
            let named = |info: &ProgramInfo| (info.id(), info.name_as_str().unwrap_or_default().to_owned());
            programs.iter().map(named).collect()
        });
        let programs = programs.or_else(|error| {
            debug!(%device, %error, "the programs of the device have no names");
            let ids = sys::tcx_programs(if_nametoindex(device)?, number)?;
            Ok::<_, io::Error>(ids.into_iter().map(|id| (id, UNNAMED.to_owned())).collect())
        });
        match programs {
            Ok(programs) => Some(Chain { device: device.to_owned(), side, programs }),
            Err(error) => {
                debug!(%device, %error, "listing the programs of the device failed");
                None
            }
        }
    };
    sides.into_iter().filter_map(chain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::Dataplane;
    use crate::dataplane::ebpf::scratch::{Scratch, in_namespace, loopback, without_sys_admin};

    #[test]
    fn the_order_of_programs_is_known_without_their_names() {
        in_namespace(|| {
            let scratch = Scratch::new("chains");
            let mut dataplane = scratch.open();
            assert!(dataplane.set_topology(&loopback()).is_complete());
            let ids = || -> Vec<u32> {
                let ingress = chains("lo").into_iter().filter(|chain| chain.side == Side::Ingress);
                ingress.flat_map(|chain| chain.programs).map(|(id, _)| id).collect()
            };
            let before = ids();
            without_sys_admin();
            assert_eq!((ids(), before.len()), (before, 1));
        });
    }
}
