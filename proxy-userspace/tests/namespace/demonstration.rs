//! The output of `millrace-lab run`, and its report of problems.

use anyhow::Result;
use millrace_lab::capture::{Capture, Trail};
use millrace_lab::demo::{self, Options};
use millrace_lab::topology::vip;
use millrace_lab::walk::Walk;

use crate::fixture::{shared, xdp};

#[test]
fn the_demonstration_finds_nothing_off() -> Result<()> {
    let mut hints = String::new();
    let problems = demo::run(&Options { xdp: xdp(), trace: false }, |text| text.clone_into(&mut hints))?;
    assert_eq!(problems, Vec::<String>::new());
    assert!(hints.contains("ip netns exec") && hints.contains("manifests"), "{hints}");
    Ok(())
}

#[test]
fn a_wrong_backend_and_a_wrong_way_are_off() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("off", 60, &["pod-1a"])?.external(vip(60));
    cluster.apply(&service, &[1])?;
    let way = Trail::direct_return("node1", "node2");
    let mut capture = Capture::start(cluster.bed().router(), &["node1", "node2"])?;
    let problems = Walk::to(service.name(), vip(60), 80, &["pod-1b"], way)
        .run(cluster.bed(), &mut capture)?
        .problems
        .join("\n");
    for expected in [
        "off IPv4 TCP: pod-1b answered none of",
        "off IPv6 UDP: pod-1a answered, which is no choice here",
        "off IPv4 UDP: went client > node1 > client instead of client > node1 =tunnel=> node2 > client",
    ] {
        assert!(problems.contains(expected), "{expected} is missing:\n{problems}");
    }
    Ok(())
}
