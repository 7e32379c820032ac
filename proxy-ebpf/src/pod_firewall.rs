//! The pod firewall: carries out NetworkPolicies on the packets of this node's pods.
//!
//! An object of its own, with maps of its own ([`proxy_common::policy`]): a node without the firewall runs none of
//! this. Both programs see the addresses that the pod's own network sees.
#![no_std]
#![no_main]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "a map key passed by value is one more copy on a stack of 512 bytes"
)]
#![expect(
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "the macros of aya-ebpf want it so, and drop the docs"
)]

#[expect(dead_code, reason = "it has the headers of all programs")]
mod header;
mod policy;
mod required;

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

use crate::policy::skb::Skb;
use crate::policy::{scene, walk};

/// Packets from a pod: ingress of the pod's device on the node, behind `tc_pod_in`.
#[classifier]
pub fn policy_from_pod(context: TcContext) -> i32 {
    walk::run::<{ scene::FROM_POD }>(Skb::new(&context))
}

/// Packets to a pod: egress of the pod's device on the node, in front of `tc_pod_out`.
#[classifier]
pub fn policy_to_pod(context: TcContext) -> i32 {
    walk::run::<{ scene::TO_POD }>(Skb::new(&context))
}
