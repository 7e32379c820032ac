//! `millrace explain` with a wide range of `--snat-ports`.

use std::ops::RangeInclusive;

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, Map, MapData};
use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::read::PinnedMaps;
use millrace::dataplane::ebpf::{EbpfDataplane, Settings, Sizes};
use millrace::node::Hook;
use nix::time::{ClockId, clock_gettime};
use proxy_common::Addr4;
use proxy_common::flow::{FLOW_ESTABLISHED, FLOW_REPLY, Flow, FlowKey};
use proxy_common::hop::Hop;
use proxy_common::selection::BackendRef;

use crate::attach::in_namespace;
use crate::explain::{assert_lines, explain, topology};
use crate::support::{Scratch, all, desired, key, port};

/// More ports than a dry run has room for connections at least.
const PORTS: RangeInclusive<u16> = 40000..=59999;

const fn address(address: [u8; 4]) -> Addr4 {
    Addr4([u32::from_ne_bytes(address)])
}

/// Makes a connection of each port to the backend, and a hop there, so that no route is asked.
fn take_ports(scratch: &Scratch) -> Result<()> {
    let now = u32::try_from(clock_gettime(ClockId::CLOCK_MONOTONIC)?.tv_sec())?;
    let (own, backend) = (address([172, 16, 0, 1]), address([10, 0, 1, 2]));
    let views = PinnedMaps::open(&scratch.path)?.backends()?;
    let view = views.iter().find(|view| view.address.to_string() == "10.0.1.2:8080").context("a backend")?;
    let pin = |name: &str| MapData::from_pin(scratch.root().join("maps").join(name));
    let mut hops: Array<_, Hop<Addr4>> = Map::from_map_data(pin("HOPS4")?)?.try_into()?;
    let device = nix::net::if_::if_nametoindex("eth0")?;
    let reference = BackendRef::new(view.id, view.generation).0;
    // The programs ask for a route after a second, and there is none. A time ahead of theirs counts as now.
    let asked = now + 3600;
    let hop = Hop { source: own, backend: reference, asked, device, mtu: 1500, ..Hop::default() };
    hops.set(view.id, hop, 0)?;
    let mut flows: HashMap<_, FlowKey<Addr4>, Flow<Addr4>> =
        Map::from_map_data(pin("FLOWS4")?)?.try_into()?;
    let flow = Flow {
        source: address([192, 0, 2, 1]),
        source_port: 80_u16.to_be(),
        destination: address([198, 51, 100, 9]),
        destination_port: 40000_u16.to_be(),
        backend: reference,
        last_seen: now,
        state: FLOW_ESTABLISHED,
        flags: FLOW_REPLY,
        ..Flow::default()
    };
    for port in PORTS {
        let reply = FlowKey {
            source: backend,
            source_port: 8080_u16.to_be(),
            destination: own,
            destination_port: port.to_be(),
            protocol: 6,
            ..FlowKey::default()
        };
        flows.insert(reply, flow, 0)?;
    }
    Ok(())
}

#[test]
fn a_wide_range_without_a_port_is_judged_alike_by_walk_and_programs() -> Result<()> {
    in_namespace("explain-ports", async || {
        let scratch = Scratch::new();
        let settings = scratch.settings();
        let sizes = Sizes { flows: 1 << 16, ..settings.sizes };
        let mut dataplane = EbpfDataplane::open(Settings { snat_ports: PORTS, sizes, ..settings })?;
        let mut far = port(1, 2);
        far.endpoints.retain(|_, endpoint| !endpoint.local);
        far.cluster = Some(far.endpoints.keys().copied().collect());
        let state = desired([(key("far"), far)]);
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        assert!(dataplane.set_topology(&topology(&[Hook::TcIngress])).is_complete());
        take_ports(&scratch)?;
        assert_lines(
            &explain(&scratch, "198.51.100.7:40000 192.0.2.1:80"),
            0,
            &[
                "verdict     DROP snat_ports: all 20000 ports of --snat-ports towards 10.0.1.2:8080 are in use",
                "checked     programs agree (tc_ingress)",
            ],
        );
        Ok(())
    })
}
