//! A node runs out of SNAT ports towards one backend. With `MILLRACE_LONG=1` the whole range of
//! `--snat-ports` is used up.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Shape, vip};

use crate::faces::get_until;
use crate::fixture::{is_long, xdp};

/// Returns an answered connection, or `None`.
fn connect(target: SocketAddr) -> Option<TcpStream> {
    let limit = Duration::from_millis(1500);
    let mut stream = TcpStream::connect_timeout(&target, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.write_all(b"GET /bytes/1 HTTP/1.1\r\nHost: bed\r\n\r\n").ok()?;
    stream.read(&mut [0; 512]).ok().filter(|read| *read > 0)?;
    Some(stream)
}

#[test]
fn a_shortage_of_ports_is_seen_before_all_are_taken() -> Result<()> {
    const FIRST: usize = 61000;
    let all = if is_long() { 65536 - FIRST } else { 64 };
    let crowded = (all * 80).div_ceil(100);
    let range = format!("{FIRST}-{}", FIRST + all - 1);
    let shape = Shape { nodes: 2, pods: 1, ..Shape::default() };
    let cluster = Cluster::start_with(shape, &xdp(), &["--snat-ports", &range])?;
    cluster.apply(&cluster.service("busy", 1, &["pod-2a"])?.load_balancer(vip(1)), &[1])?;
    let target = SocketAddr::new(vip(1).of(Family::V4), 80);
    let open = async move |enough: usize| Ok((0..enough).map_while(|_| connect(target)).collect::<Vec<_>>());
    let metrics: SocketAddr = ([127, 0, 0, 1], 10249).into();
    let node = cluster.bed().node(1)?;
    let shows = |line: &str| get_until(node.namespace(), metrics, "/metrics", &format!("\n{line}\n"));

    let few = cluster.bed().client().run(async move || open(10).await)?;
    assert_eq!(few.len(), 10);
    shows("millrace_snat_ports_used 10")?;
    let page = shows("millrace_snat_crowded_backends 0")?;
    assert!(page.contains(&format!("\nmillrace_snat_ports_limit {all}\n")), "{page}");

    let many = cluster.bed().client().run(async move || open(crowded - 10).await)?;
    shows(&format!("millrace_snat_ports_used {crowded}"))?;
    shows("millrace_snat_crowded_backends 1")?;
    let backend = cluster.bed().pod("pod-2a")?.addresses().v4;
    let said = cluster.proxy(1)?.log();
    let warned =
        said.lines().find(|line| line.contains("most ports of --snat-ports are in use towards a backend"));
    let warned = warned.unwrap_or_else(|| panic!("no warning in {said}"));
    for word in [format!("used={crowded}"), format!("size={all}"), format!("{backend}:8080")] {
        assert!(warned.contains(&word), "{word} is not in {warned}");
    }

    // Each free port is found. Then there is none left.
    let last = cluster.bed().client().run(async move || open(all - crowded).await)?;
    assert_eq!(last.len(), all - crowded);
    shows(&format!("millrace_snat_ports_used {all}"))?;
    let refused = cluster.bed().client().run(async move || Ok(connect(target).is_none()))?;
    assert!(refused, "there were {all} ports");
    let proxy = cluster.proxy(1)?;
    // Below the kernel's client ports: a port of an open connection would be explained as that connection.
    let output = proxy.command(&["explain", "198.51.100.10:1024", &target.to_string()])?;
    let verdict = format!(
        "\nverdict     DROP snat_ports: all {all} ports of --snat-ports towards {backend}:8080 are in use\n"
    );
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success() && text.contains(&verdict), "{text}");
    assert!(text.contains("\nchecked     programs agree ("), "{text}");

    // An ended connection holds no port.
    drop((few, many, last));
    shows("millrace_snat_ports_used 0")?;
    shows("millrace_snat_crowded_backends 0")?;
    Ok(())
}
