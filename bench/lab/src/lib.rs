//! The test bed: a cluster of network namespaces, agents in it, traffic through it, and proof of what happened.
//!
//! - [`net`]: namespaces, links, offloads; all through system calls and rtnetlink, never a shell.
//! - [`topology`]: the bed itself: a client, a router, nodes and their pods.
//! - [`capture`]: what crossed the wires.
//! - [`manifests`] and [`agent`]: the cluster's objects, and the proxies that serve them.
//! - [`apiserver`]: a real kube-apiserver with a real etcd, in the place of a directory of manifests.
//! - [`traffic`]: servers in pods that say whom they see, and clients that ask them.
//! - [`patience`]: how long is waited.
//! - [`walk`]: requests to a service, with answers and captures compared to what has to be.
//! - [`cluster`]: a bed with a server in every pod and an agent on every node.
//! - [`demo`]: all of it together, for people to watch.
//! - [`frame`]: frames to send and to expect, parsed, printed, compared.
//! - [`program`]: the real programs, run on frames without any device.

pub mod agent;
pub mod apiserver;
pub mod capture;
pub mod cluster;
pub mod demo;
pub mod frame;
pub mod kube_proxy;
pub mod manifests;
pub mod net;
pub mod patience;
pub mod process;
pub mod program;
pub mod topology;
pub mod traffic;
pub mod walk;
