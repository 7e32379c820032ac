//! ICMP messages that the programs send themselves.

use std::io;
use std::net::SocketAddr;

use anyhow::{Result, bail};
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask, path_mtu, ping};

use crate::fixture::{Way, shared};

#[test]
fn a_service_without_endpoints_refuses_at_once() -> Result<()> {
    const NUMBER: u8 = 7;
    let cluster = shared();
    let service = cluster.service("empty", NUMBER, &[])?.load_balancer(vip(NUMBER));
    cluster.apply(&service, &[1])?;
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let target = SocketAddr::new(vip(NUMBER).of(family), 80);
        let Err(error) = ask(cluster.bed().client(), protocol, target) else {
            bail!("{} {target} answers", protocol.name());
        };
        let refused = |cause: &io::Error| cause.kind() == io::ErrorKind::ConnectionRefused;
        let is_refused = error.chain().any(|cause| cause.downcast_ref().is_some_and(refused));
        assert!(is_refused, "{} {target}: {error:?}", protocol.name());
    }
    Ok(())
}

#[test]
fn a_load_balancer_address_answers_echo_requests() -> Result<()> {
    let cluster = shared();
    for (way, family) in Way::ALL.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
        ping(cluster.bed().client(), vip(way.number()).of(family), b"a card of the machine")?;
    }
    Ok(())
}

#[test]
fn a_sender_learns_the_size_of_a_packet_that_fits_the_tunnel() -> Result<()> {
    let cluster = shared();
    // IPIP adds 20 bytes, and IPv6 in IPv6 adds 40.
    for (family, largest) in [(Family::V4, 1480), (Family::V6, 1460)] {
        let target = SocketAddr::new(vip(Way::Dsr.number()).of(family), 80);
        assert_eq!(path_mtu(cluster.bed().client(), target, 1500)?, largest, "{family}");
    }
    Ok(())
}
