//! A real cluster: kubelets, container runtimes, and Millrace installed from its manifests.
//!
//! `MILLRACE_CLUSTER_PROXY=kube-proxy` runs the tests of Services against kube-proxy, as the control.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that can't go on must fail"
)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` makes values")]

mod addresses;
mod clients;
mod connectivity;
mod document;
mod fixture;
mod install;
mod load;
mod objects;
mod scale;
mod services;
mod storm;
mod trouble;
mod updates;
mod upgrade;
