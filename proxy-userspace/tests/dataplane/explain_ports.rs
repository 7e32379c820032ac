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

const OWN: Addr4 = address([172, 16, 0, 1]);
const BACKEND: Addr4 = address([10, 0, 1, 2]);

fn now() -> Result<u32> {
    Ok(u32::try_from(clock_gettime(ClockId::CLOCK_MONOTONIC)?.tv_sec())?)
}

/// Writes the hop to the backend, for which the kernel was asked at a second. There is no route.
fn set_hop(scratch: &Scratch, asked: u32) -> Result<u32> {
    let views = PinnedMaps::open(&scratch.path)?.backends()?;
    let view = views.iter().find(|view| view.address.to_string() == "10.0.1.2:8080").context("a backend")?;
    let pin = MapData::from_pin(scratch.root().join("maps/HOPS4"))?;
    let mut hops: Array<_, Hop<Addr4>> = Map::from_map_data(pin)?.try_into()?;
    let device = nix::net::if_::if_nametoindex("eth0")?;
    let reference = BackendRef::new(view.id, view.generation).0;
    let hop = Hop { source: OWN, backend: reference, asked, device, mtu: 1500, ..Hop::default() };
    hops.set(view.id, hop, 0)?;
    Ok(reference)
}

/// Makes a connection of each port to the backend.
fn take_ports(scratch: &Scratch, reference: u32) -> Result<()> {
    let pin = MapData::from_pin(scratch.root().join("maps/FLOWS4"))?;
    let mut flows: HashMap<_, FlowKey<Addr4>, Flow<Addr4>> = Map::from_map_data(pin)?.try_into()?;
    let flow = Flow {
        source: address([192, 0, 2, 1]),
        source_port: 80_u16.to_be(),
        destination: address([198, 51, 100, 9]),
        destination_port: 40000_u16.to_be(),
        backend: reference,
        last_seen: now()?,
        state: FLOW_ESTABLISHED,
        flags: FLOW_REPLY,
        ..Flow::default()
    };
    for port in PORTS {
        let reply = FlowKey {
            source: BACKEND,
            source_port: 8080_u16.to_be(),
            destination: OWN,
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
        // A time ahead of the programs' counts as now, so no route is asked.
        let reference = set_hop(&scratch, now()? + 3600)?;
        take_ports(&scratch, reference)?;
        assert_lines(
            &explain(&scratch, "198.51.100.7:40000 192.0.2.1:80"),
            0,
            &[
                "verdict     DROP snat_ports: all 20000 ports of --snat-ports towards 10.0.1.2:8080 are in use",
                "checked     programs agree (tc_ingress)",
            ],
        );
        // Now the programs ask for the route, and the walk does not.
        set_hop(&scratch, 0)?;
        let (status, text, errors) = explain(&scratch, "198.51.100.7:40000 192.0.2.1:80");
        assert_eq!((status, errors.as_str()), (0, ""), "{text}");
        assert!(text.contains("no_way"), "{text}");
        Ok(())
    })
}
