//! The short way: a packet of a connection that the present tables allow passes by one look-up.
//!
//! It reads plain headers alone, and leaves everything else to the [walk](super::walk). A change of a pod changes the
//! number of the tables, so nothing has to be known of the pod here. The walk has checked the source when it made the
//! entry.

use proxy_common::policy::{POLICY_GENERATION, PolicyFlowKey, guarded_place};

use crate::header::{ETHERNET, Ports, ether_type, protocol};
use crate::policy::family::{Family, V4, V6};
use crate::policy::icmp::set_ports;
use crate::policy::maps;
use crate::policy::scene::config;
use crate::policy::shape::TcpStart;
use crate::policy::skb::{Skb, Tag};

/// Whether a frame belongs to a connection that is allowed. If not, nothing is said yet.
#[inline(always)]
pub fn passes<const FROM_POD: bool>(skb: Skb) -> bool {
    let (word, bit) = guarded_place(skb.device());
    if maps::POLICY_GUARDED.get(word).copied().unwrap_or(0) & bit == 0 || skb.tag() != Tag::Absent {
        return false;
    }
    // SAFETY: `at` checked the bound.
    match skb.at::<u16>(ETHERNET - size_of::<u16>()).map_or(0, |place| unsafe { *place }) {
        ether_type::IPV4 => is_known::<V4, FROM_POD>(skb),
        ether_type::IPV6 => is_known::<V6, FROM_POD>(skb),
        _ => false,
    }
}

#[inline(always)]
fn is_known<F: Family, const FROM_POD: bool>(skb: Skb) -> bool {
    let plain = ETHERNET + size_of::<F::Header>();
    let Some(header) = skb.at::<F::Header>(ETHERNET) else { return false };
    // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
    let Some((source, destination, number, length)) = F::read_plain(unsafe { &*header }) else {
        return false;
    };
    let (pod, peer) = if FROM_POD { (source, destination) } else { (destination, source) };
    let mut key =
        PolicyFlowKey { pod, peer, pod_port: 0, peer_port: 0, protocol: number.into(), device: skb.device() };
    let (ports, needed) = match number {
        protocol::TCP => {
            let Some(start) = skb.at::<TcpStart>(plain) else { return false };
            // SAFETY: as above.
            let start = unsafe { *start };
            if start.opens() {
                return false;
            }
            (start.ports, size_of::<TcpStart>())
        }
        protocol::UDP => {
            let Some(ports) = skb.at::<Ports>(plain) else { return false };
            // SAFETY: as above.
            (unsafe { *ports }, size_of::<Ports>())
        }
        _ => return false,
    };
    // Bytes behind the packet's end are padding.
    let is_whole =
        length >= (size_of::<F::Header>() + needed) as u32 && ETHERNET as u32 + length <= skb.length();
    set_ports::<_, FROM_POD>(&mut key, ports);
    is_whole && has_entry::<F>(&key)
}

/// Whether the present tables allow the connection, and it is no exchange that may have ended.
#[inline(always)]
fn has_entry<F: Family>(key: &PolicyFlowKey<F::Address>) -> bool {
    let Some(entry) = F::flows().get_ptr_mut(key) else { return false };
    // SAFETY: the look-up found it; the fields are numbers.
    let flow = unsafe { *entry };
    let is_allowed = flow.generation == config(POLICY_GENERATION) && flow.is_allowed != 0;
    // An exchange of datagrams that was not seen in this second is the walk's.
    is_allowed && (key.protocol as u8 == protocol::TCP || flow.seen == super::clock::now())
}
