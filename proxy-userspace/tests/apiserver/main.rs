//! Layer 6: a real kube-apiserver and etcd, real agents, real maps. It needs root and
//! KUBEBUILDER_ASSETS.
//!
//! `MILLRACE_XDP` is the agents' `--xdp`, with `native` as default.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that can't go on must fail"
)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` makes values")]

mod announced;
mod endpoints;
mod events;
mod failures;
mod fixture;
mod kube_proxy;
mod messages;
mod node;
mod ready;
mod scene;
mod server;
mod service_lb;
mod services;
mod traffic;
mod uninstall;
