//! Tests of the order in which IPVS mode ends.

use std::net::IpAddr;

use super::*;
use crate::dataplane::ipvs::state::{Element, Scheduling};

fn virtual_service(protocol: Protocol, port: u16) -> Virtual {
    Virtual::Address { protocol, address: SocketAddr::from(([10, 96, 0, 1], port)) }
}

fn server(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 244, 0, last], 8080))
}

/// The addresses, weights and connections of servers.
type Servers<'a> = &'a [(SocketAddr, u32, u32)];

fn world(services: &[(Virtual, Servers<'_>)]) -> (State, BTreeMap<(Virtual, SocketAddr), Connections>) {
    let (mut state, mut connections) = (State::default(), BTreeMap::new());
    for (service, servers) in services {
        let scheduling = Scheduling { scheduler: "rr".to_owned(), flags: 0, timeout: 0, netmask: u32::MAX };
        state.services.insert(*service, scheduling);
        for (place, weight, inactive) in *servers {
            state.servers.insert((*service, *place), Server { weight: *weight, method: 2 });
            let had = Connections { active: 0, inactive: *inactive };
            connections.insert((*service, *place), had);
        }
    }
    (state, connections)
}

#[test]
fn servers_with_connections_get_no_new_ones_and_all_others_are_removed() {
    let (web, idle) = (virtual_service(Protocol::Tcp, 80), virtual_service(Protocol::Tcp, 81));
    let (state, connections) = world(&[
        (web, &[(server(1), 1, 3), (server(2), 1, 0), (server(3), 0, 1)]),
        (idle, &[(server(1), 1, 0)]),
    ]);
    let Leaving { ops, left } = leaving(&state, &connections);
    assert_eq!(
        ops,
        [
            Op::PutServer(web, server(1), Server { weight: 0, method: 2 }),
            Op::DeleteServer(web, server(2)),
            Op::DeleteService(idle),
        ]
    );
    assert_eq!(left, Left { services: 1, takes_encapsulated: false });
    assert!(!left.is_nothing());
}

#[test]
fn udp_does_not_delay_the_end_and_sctp_does() {
    let (udp, sctp) = (virtual_service(Protocol::Udp, 53), virtual_service(Protocol::Sctp, 53));
    let (state, connections) = world(&[(udp, &[(server(1), 1, 9)]), (sctp, &[(server(1), 0, 9)])]);
    let Leaving { ops, left } = leaving(&state, &connections);
    assert_eq!((ops, left.services), (vec![], 1));
}

#[test]
fn a_server_without_a_count_stays() {
    let web = virtual_service(Protocol::Tcp, 80);
    let (state, _) = world(&[(web, &[(server(1), 1, 0)])]);
    assert_eq!(leaving(&state, &BTreeMap::new()).left.services, 1);
}

#[test]
fn endpoints_for_which_other_nodes_encapsulate_are_in_use() {
    let mut state = State::default();
    assert!(leaving(&state, &BTreeMap::new()).left.is_nothing());
    let pod = Element::Address(IpAddr::from([10, 244, 0, 1]));
    state.members.insert((Set::Encapsulated, pod), Some(7));
    assert!(!leaving(&state, &BTreeMap::new()).left.is_nothing());
}
