//! The programs of all software on a device, in their order.

use aya::programs::{SchedClassifier, TcAttachType};
use tracing::debug;

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

/// Returns the chains of a device of this network namespace; none if they can't be listed, as before Linux 6.6.
#[must_use]
pub fn chains(device: &str) -> Vec<Chain> {
    let sides = [(Side::Ingress, TcAttachType::Ingress), (Side::Egress, TcAttachType::Egress)];
    let chain = |(side, kind)| match SchedClassifier::query_tcx(device, kind) {
        Ok((_, programs)) => {
            let programs =
                programs.iter().map(|info| (info.id(), info.name_as_str().unwrap_or_default().to_owned()));
            Some(Chain { device: device.to_owned(), side, programs: programs.collect() })
        }
        Err(error) => {
            debug!(%device, %error, "listing the programs of the device failed");
            None
        }
    };
    sides.into_iter().filter_map(chain).collect()
}
