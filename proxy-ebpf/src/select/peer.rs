//! Whether a tunnel packet is for this node, and whether its sender may send it.

use proxy_common::verdict::Reason;
use proxy_common::way::FOU_PORT;

use crate::header::{ETHERNET, protocol};
use crate::maps::config;
use crate::maps::family::{Family, KeyOf};
use crate::maps::peers::{self, is_own, may_send};
use crate::packet::Packet;
use crate::packet::ip::Header;
use crate::verdict::{UNTOUCHED, Verdict};

/// Whether a packet is for the FoU port on an address of this node, while FoU is in use.
///
/// No Service has that port then, so that none can take other nodes' packets.
#[inline(always)]
pub fn is_fou<F: Family>(key: &KeyOf<F>) -> bool {
    config::takes_fou()
        && key.destination_port == FOU_PORT.to_be()
        && key.protocol == protocol::UDP
        && peers::is_own::<F>(&key.destination)
}

/// Checks that an encapsulated packet for our frontend comes from a node and is for this one.
#[inline(always)]
pub fn check_peers<P: Packet, O: Header>(packet: &P) -> Result<(), Verdict> {
    let (source, destination) = O::read_addresses(packet, ETHERNET).ok_or(UNTOUCHED)?;
    if is_for_node::<O>(&source, &destination)? { Ok(()) } else { Err(UNTOUCHED) }
}

/// Whether an outer header names this node, sent by an allowed sender.
///
/// The programs don't check which node uses a source in `--dsr-outer-source`: the network must keep all
/// others from using them.
#[inline(always)]
pub fn is_for_node<O: Family>(source: &O::Address, destination: &O::Address) -> Result<bool, Verdict> {
    if !is_own::<O>(destination) {
        return Ok(false);
    }
    if may_send::<O>(source) { Ok(true) } else { Err(Verdict::Drop(Reason::NotPeer)) }
}
