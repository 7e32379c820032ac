//! Incidents of operators, and the command that names the cause of each. The others stand beside what they concern:
//! `explain` in the tests of the data plane, firewalls, rp_filter and the MTU in `check.rs`, and SNAT ports in
//! `snat_ports.rs`.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use millrace_lab::agent::Proxy;
use millrace_lab::net::Netlink;
use millrace_lab::topology::vip;
use millrace_lab::traffic::{Protocol, ask};

use crate::fixture::own;

/// Returns the first row of a view, as its cells.
fn first_row(proxy: &Proxy, arguments: &[&str]) -> Result<Vec<String>> {
    let output = proxy.command(&[arguments, &["--no-headers"]].concat())?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().next().unwrap_or_default().split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_backend_that_refuses_is_named() -> Result<()> {
    let cluster = own(1, 1)?;
    // Nobody listens at the pod's port 9.
    let service = cluster.service("shown", 1, &["pod-1a"])?.port(81, 9).load_balancer(vip(1));
    cluster.manifests().put_service(&service)?;
    let proxy = cluster.proxy(1)?;
    let is_there = || Ok(proxy.command(&["services", "default/shown"])?.status.success());
    proxy.wait_until("the Service is there", is_there)?;
    assert!(ask(cluster.bed().client(), Protocol::Tcp, SocketAddr::new(vip(1).v4.into(), 81)).is_err());
    let [address, node, state, opened, refused, services] =
        first_row(proxy, &["backends", "--sort-by", "-refused"])?.try_into().expect("six cells");
    assert_eq!((address.as_str(), node.as_str(), state.as_str()), ("10.244.1.10:9", "here", "ready"));
    assert_eq!((opened.as_str(), refused.as_str()), ("1", "1"));
    assert_eq!(services, "default/shown:tcp-81,default/shown:udp-81");
    Ok(())
}

/// The pod's answers go to an address that nobody has, so no program sees them.
#[test]
fn a_connection_whose_answers_take_another_way_is_named() -> Result<()> {
    let cluster = own(1, 1)?;
    let service = cluster.service("shown", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    let target = SocketAddr::new(vip(1).v4.into(), 80);
    let client = ask(cluster.bed().client(), Protocol::Tcp, target)?.client.ip();
    let elsewhere: IpAddr = [10, 244, 1, 99].into();
    let lead = async move || Netlink::open()?.set_route(client.into(), elsewhere).await;
    cluster.bed().pod("pod-1a")?.namespace().run(lead)?;
    assert!(ask(cluster.bed().client(), Protocol::Tcp, target).is_err());
    let row = first_row(cluster.proxy(1)?, &["flows", "--state", "syn", "default/shown"])?;
    let [protocol, from, frontend, backend, state, path, _idle, service] =
        row.try_into().expect("eight cells");
    assert!(protocol == "TCP" && from.starts_with(&client.to_string()), "{from}");
    assert_eq!((frontend.as_str(), backend.as_str()), ("203.0.113.1:80", "10.244.1.10:8080"));
    assert_eq!((state.as_str(), path.as_str(), service.as_str()), ("syn", "direct", "default/shown:tcp-80"));
    Ok(())
}
