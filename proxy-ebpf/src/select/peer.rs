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

/// Whether a packet is for the port of FoU on an address of this node, where that is in use. No Service has it then, so that none
/// can take what other nodes send.
#[inline(always)]
pub fn is_fou<F: Family>(key: &KeyOf<F>) -> bool {
    config::takes_fou()
        && key.destination_port == FOU_PORT.to_be()
        && key.protocol == protocol::UDP
        && peers::is_own::<F>(&key.destination)
}

/// A packet for a frontend of ours is encapsulated from node to node, this one the last.
#[inline(always)]
pub fn check_peers<P: Packet, O: Header>(packet: &P) -> Result<(), Verdict> {
    let (source, destination) = O::read_addresses(packet, ETHERNET).ok_or(UNTOUCHED)?;
    if is_for_node::<O>(&source, &destination)? { Ok(()) } else { Err(UNTOUCHED) }
}

/// Whether an outer header names this node, from somebody who may. Whose the sources in `--dsr-outer-source` are is not asked: the
/// network must let nobody else use them.
#[inline(always)]
pub fn is_for_node<O: Family>(source: &O::Address, destination: &O::Address) -> Result<bool, Verdict> {
    if !is_own::<O>(destination) {
        return Ok(false);
    }
    if may_send::<O>(source) { Ok(true) } else { Err(Verdict::Drop(Reason::NotPeer)) }
}
