//! The client's location: whether it may use a frontend, and which list it gets.

use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::addr::Address;
use proxy_common::frontend::{
    FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP, FRONTEND_KIND_NODE_PORT, FRONTEND_LISTENER,
    FRONTEND_LOCAL, FRONTEND_SOURCE_RANGES, Frontend,
};
use proxy_common::source_range::{CLUSTER, NEAR, SERVICE_BITS, SourceRange};
use proxy_common::verdict::Reason;
use proxy_common::way::PEER_NODE;

use crate::maps::family::{Family, KeyOf};
use crate::maps::peers;
use crate::verdict::{UNTOUCHED, Verdict};

/// Flags of a frontend that only some clients may use.
const RESTRICTED: u32 = FRONTEND_SOURCE_RANGES | FRONTEND_INSIDE_ONLY;

/// The frontend as this client sees it.
///
/// - A client outside the source ranges does not get it.
/// - A frontend for clients inside the cluster is closed to clients outside.
/// - This node gets the Cluster list, whatever externalTrafficPolicy says. Other nodes and their pods get
///   what clients outside get.
/// - A cluster IP has internalTrafficPolicy's list for all clients.
/// - The stack has the packets of a listener.
#[inline(always)]
pub fn admit<F: Family>(frontend: Frontend, key: &KeyOf<F>) -> Result<Frontend, Verdict> {
    // Only load balancers' addresses, which are for clients outside, have source ranges.
    let of = if frontend.flags & FRONTEND_INSIDE_ONLY != 0 { CLUSTER } else { frontend.service };
    if frontend.flags & RESTRICTED != 0 && !is_inside::<F>(of, &key.source) {
        // Another node has judged its client, and sends to the backend from its own address.
        let is_judged = frontend.flags & FRONTEND_LISTENER != 0 && peers::is_other_node::<F>(&key.source);
        if !is_judged {
            return Err(Verdict::Drop(Reason::SourceRefused));
        }
    }
    if frontend.flags & FRONTEND_LISTENER != 0 {
        return Err(UNTOUCHED);
    }
    let mut frontend = frontend;
    if frontend.may_have_dsr() && frontend.kind() == FRONTEND_KIND_NODE_PORT && !is_direct_return::<F>(key) {
        frontend = frontend.without_dsr();
    }
    let has_other_list = frontend.flags & FRONTEND_LOCAL != 0 && frontend.cluster_service != frontend.service;
    if has_other_list && frontend.kind() != FRONTEND_KIND_CLUSTER_IP && is_inside::<F>(NEAR, &key.source) {
        let flags = frontend.flags & !FRONTEND_LOCAL;
        return Ok(Frontend { service: frontend.cluster_service, flags, ..frontend });
    }
    Ok(frontend)
}

/// Checks a client as [`admit`] does, for a packet that needs no other list.
///
/// A pod of this node asks for a frontend of scope internal. For an encapsulated packet the sending node
/// chose the list.
#[inline(always)]
pub fn check_ranges<F: Family>(frontend: Frontend, key: &KeyOf<F>) -> Result<Frontend, Verdict> {
    if frontend.flags & FRONTEND_SOURCE_RANGES != 0 && !is_inside::<F>(frontend.service, &key.source) {
        return Err(Verdict::Drop(Reason::SourceRefused));
    }
    Ok(frontend)
}

/// Whether the reply to a packet for a NodePort may come from another node, which must know the frontend.
///
/// A node knows NodePorts of the nodes' own addresses only. A client inside the cluster may be on that node,
/// whose stack refuses packets from its own addresses off a wire.
#[inline(never)]
fn is_direct_return<F: Family>(key: &KeyOf<F>) -> bool {
    peers::peer::<F>(&key.destination) & PEER_NODE != 0 && !is_inside::<F>(CLUSTER, &key.source)
}

/// Whether an address is inside a prefix of a Service, or of the cluster itself.
///
/// Not inlined: the key would stay on the walk's stack.
#[inline(never)]
pub fn is_inside<F: Family>(service: u32, client: &F::Address) -> bool {
    let prefix_length = SERVICE_BITS + F::Address::WORDS as u32 * u32::BITS;
    F::is_in_source_range(&Key::new(prefix_length, SourceRange { service, address: *client }))
}
