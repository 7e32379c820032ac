//! A real cluster: kubelets, container runtimes, and Millrace installed from its manifests.
//!
//! `MILLRACE_CLUSTER_PROXY=kube-proxy` runs the tests of Services against kube-proxy, as the control.

mod clients;
mod fixture;
mod install;
mod load;
mod objects;
mod scale;
mod services;
mod updates;
