//! The pod firewall on the bed: NetworkPolicies with real pods' devices and real sockets.

mod bench;
mod connections;
mod devices;
mod explain;
mod full;
mod services;
mod truth;
mod unattended;
mod views;
