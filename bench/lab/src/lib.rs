//! The test bed: a cluster of network namespaces, agents in it, traffic through it, and captures as
//! proof.
//!
//! - [`net`]: namespaces, links, offloads; all through system calls and rtnetlink, never a shell.
//! - [`topology`]: the bed itself: a client, a router, nodes and their pods.
//! - [`capture`]: the frames that crossed the wires.
//! - [`manifests`] and [`agent`]: the cluster's objects, and the proxies that serve them.
//! - [`apiserver`]: a real kube-apiserver with a real etcd, instead of a directory of manifests.
//! - [`kubernetes`]: a real cluster: kubelets, container runtimes and pods.
//! - [`traffic`]: servers in pods that report their clients, and clients that ask them.
//! - [`patience`]: the factor of all waits on slow machines.
//! - [`walk`]: requests to a Service, with answers and captures compared to the expected ones.
//! - [`container`]: the rights of a process in a container that is not privileged.
//! - [`cluster`]: a bed with a server in every pod and an agent on every node.
//! - [`pool`]: clusters that the tests of one process share.
//! - [`routing`]: routing daemons, on nodes and on the router.
//! - [`demo`]: all of it together, for people to watch.
//! - [`drill`]: faults on running traffic, and what each costs.
//! - [`soak`]: hours of traffic and changes, and what the agents hold.
//! - [`frame`]: frames to send and to expect, parsed, printed, compared.
//! - [`program`]: the real programs, run on frames without any device.

pub mod agent;
pub mod announced;
pub mod apiserver;
mod authority;
pub mod capture;
pub mod cluster;
pub mod container;
pub mod demo;
pub mod drill;
mod etcd;
pub mod frame;
pub mod kube_proxy;
pub mod kubernetes;
pub mod manifests;
mod map_calls;
pub mod net;
pub mod patience;
pub mod pool;
pub mod process;
pub mod program;
pub mod routing;
pub mod soak;
pub mod topology;
pub mod trace;
pub mod traffic;
pub mod walk;
