//! Connections through any sequence of changes (P10): a director cuts no connection that it has
//! seen while the backend lives.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proxy_common::Addr4;
use proxy_common::backend::BACKEND_SERVING;
use proxy_common::flow::FlowKey;
use proxy_common::rules::Role;

use super::node::{Endpoints, Fate, HOMES, Node, Packet, Shape, TIMEOUTS, home};
use crate::dataplane::ebpf::plan::REST;

/// Number of nodes; the last one has no endpoints.
pub(super) const NODES: u8 = HOMES + 1;
const ENDPOINTS: u8 = 6;
pub(super) const CLIENTS: u16 = 40;

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// One EndpointSlice update.
    Endpoint {
        number: u8,
        ready: Option<bool>,
    },
    /// An endpoint moves from one slice to another.
    Blink {
        number: u8,
    },
    /// A client opens a connection, or retries without an answer.
    Syn {
        client: u16,
        director: u8,
        is_answered: bool,
    },
    Data {
        client: u16,
    },
    Close {
        client: u16,
    },
    Datagram {
        client: u16,
        director: u8,
    },
    /// Another node gets the client's packets from now on.
    Move {
        client: u16,
        director: u8,
    },
    Restart {
        node: u8,
    },
    /// The agent of a node misses all changes.
    Stop {
        node: u8,
    },
    /// The agent returns and sees all changes at once.
    Start {
        node: u8,
    },
    /// The node without endpoints comes back with empty maps.
    Wipe,
    Collect {
        node: u8,
    },
    /// The Service is served in another way.
    Serve {
        shape: Shape,
    },
    Wait {
        seconds: u64,
    },
}

pub(super) struct Connection {
    director: u8,
    /// The endpoint that answered it.
    backend: Option<u8>,
    heard: Duration,
    /// Whether its director saw it begin or took it over correctly.
    is_home: bool,
    /// Whether the endpoint sees an address of the director.
    is_translated: bool,
}

/// What became of a packet.
struct Delivery {
    /// The endpoint that got it.
    endpoint: Option<u8>,
    /// Whether the receiving node chose another one than the director.
    was_strange: bool,
    is_translated: bool,
}

pub(super) struct World {
    pub(super) nodes: Vec<Node>,
    stopped: [bool; NODES as usize],
    endpoints: Endpoints,
    shape: Shape,
    pub(super) connections: BTreeMap<u16, Connection>,
    now: Duration,
    /// The number of packets that reached the promised endpoint.
    kept: usize,
}

impl World {
    pub(super) fn new() -> Self {
        let now = Duration::from_secs(1000);
        let endpoints: Endpoints = [(0, true), (1, true), (2, true)].into();
        let mut nodes: Vec<_> = (0..NODES).map(|number| Node::new(number, now)).collect();
        for node in &mut nodes {
            node.sync(&endpoints, Shape::default(), now);
        }
        Self {
            nodes,
            stopped: Default::default(),
            endpoints,
            shape: Shape::default(),
            connections: BTreeMap::new(),
            now,
            kept: 0,
        }
    }

    fn sync(&mut self) {
        for (node, _) in self.nodes.iter_mut().zip(self.stopped).filter(|(_, stopped)| !stopped) {
            node.sync(&self.endpoints, self.shape, self.now);
        }
    }

    pub(super) fn take(&mut self, step: &Step) {
        match *step {
            Step::Endpoint { number, ready } => self.set_endpoint(number, ready),
            Step::Blink { number } => {
                let Some(ready) = self.endpoints.remove(&number) else { return };
                self.sync();
                self.endpoints.insert(number, ready);
                self.sync();
            }
            Step::Syn { client, director, is_answered } => self.open(client, director, is_answered),
            Step::Data { client } => self.talk(client, false),
            Step::Close { client } => self.talk(client, true),
            Step::Datagram { client, director } => self.tell(client, director),
            Step::Move { client, director } => {
                if let Some(connection) = self.connections.get_mut(&client).filter(|it| it.backend.is_some())
                {
                    connection.is_home &= connection.director == director;
                    connection.director = director;
                }
            }
            Step::Restart { node } => {
                self.nodes[usize::from(node)].restart(self.now);
                self.sync();
            }
            Step::Stop { node } => self.stopped[usize::from(node)] = true,
            Step::Start { node } => {
                if std::mem::take(&mut self.stopped[usize::from(node)]) {
                    self.nodes[usize::from(node)].restart(self.now);
                    self.sync();
                }
            }
            Step::Wipe => {
                self.nodes[usize::from(HOMES)] = Node::new(HOMES, self.now);
                self.connections
                    .values_mut()
                    .filter(|it| it.director == HOMES)
                    .for_each(|it| it.is_home = false);
                self.sync();
            }
            Step::Serve { shape } => {
                // The slots of the change before have rested: the fake kernel has few.
                self.now += REST;
                self.sync();
                self.shape = shape;
                self.sync();
            }
            Step::Collect { node } => self.nodes[usize::from(node)].collect(self.now),
            Step::Wait { seconds } => {
                self.now += Duration::from_secs(seconds);
                self.sync();
            }
        }
    }

    fn set_endpoint(&mut self, number: u8, ready: Option<bool>) {
        if let Some(ready) = ready {
            self.endpoints.insert(number, ready);
        } else {
            self.endpoints.remove(&number);
            self.connections.retain(|_, connection| connection.backend != Some(number));
        }
        self.sync();
    }

    fn open(&mut self, client: u16, director: u8, is_answered: bool) {
        let fresh =
            Connection { director, backend: None, heard: self.now, is_home: true, is_translated: false };
        let opening = self.connections.entry(client).or_insert(fresh);
        if opening.backend.is_some() {
            return;
        }
        let director = opening.director;
        let Delivery { endpoint, was_strange, is_translated } =
            self.send(director, packet(client, Role::Opening));
        let Some(backend) = endpoint.filter(|_| is_answered) else { return };
        // A node without knowledge of the chosen endpoint gives the connection to another endpoint.
        if was_strange || !self.endpoints.contains_key(&backend) {
            self.connections.remove(&client);
            return;
        }
        let opened =
            Connection { director, backend: Some(backend), heard: self.now, is_home: true, is_translated };
        self.connections.insert(client, opened);
        self.talk(client, false);
    }

    fn talk(&mut self, client: u16, is_last: bool) {
        let Some(connection) = self.connections.get(&client) else { return };
        let Connection { director, backend: Some(backend), heard, is_home, is_translated } = *connection
        else {
            return;
        };
        let packet = packet(client, Role::Midstream);
        let node = &self.nodes[usize::from(director)];
        // A remembered connection of the same port can't be told from this one.
        let leads_elsewhere = |node: &Node| node.leads_elsewhere(&packet, backend, self.now);
        let is_owned =
            || node.owners(&packet.key).contains(&backend) && !self.nodes.iter().any(leads_elsewhere);
        let is_promised = is_home || is_owned();
        let is_silent = self.now.saturating_sub(heard) >= Duration::from_secs(TIMEOUTS.established.into());
        let delivery = self.send(director, Packet { fin: is_last || is_silent, ..packet });
        let served = delivery.endpoint.filter(|_| delivery.is_translated == is_translated);
        if is_promised && !is_silent {
            assert_eq!(served, Some(backend), "client {client} by way of {director}");
            self.kept += 1;
        }
        // There is no promise after a silence as long as the time-out.
        if is_last || is_silent || served != Some(backend) {
            self.connections.remove(&client);
        } else if let Some(connection) = self.connections.get_mut(&client) {
            connection.heard = self.now;
        }
    }

    /// Sends a datagram. It never goes to an endpoint that no longer serves, if the director knows
    /// that and another endpoint serves.
    fn tell(&mut self, client: u16, director: u8) {
        let node = &mut self.nodes[usize::from(director)];
        let (Fate::Served(endpoint) | Fate::Translated(endpoint) | Fate::Sent { endpoint, .. }) =
            node.direct(&packet(client, Role::Datagram), self.now)
        else {
            return;
        };
        assert_ne!(node.flags(endpoint) & BACKEND_SERVING, 0, "a datagram for {endpoint}");
        self.send(director, packet(client, Role::Datagram));
    }

    /// Sends a packet to a director.
    fn send(&mut self, director: u8, packet: Packet) -> Delivery {
        let mut fate = self.nodes[usize::from(director)].direct(&packet, self.now);
        let (mut was_strange, mut sent_on) = (false, false);
        loop {
            let delivered = |endpoint, is_translated| Delivery { endpoint, was_strange, is_translated };
            let (endpoint, hint) = match fate {
                Fate::Served(endpoint) => return delivered(Some(endpoint), false),
                Fate::Translated(endpoint) => return delivered(Some(endpoint), true),
                Fate::Lost => return delivered(None, false),
                Fate::Sent { endpoint, hint } | Fate::Onward { endpoint, hint } => (endpoint, hint),
            };
            fate = self.nodes[usize::from(home(endpoint))].receive(&packet, hint, sent_on, self.now);
            was_strange |= packet.role == Role::Opening && fate != Fate::Served(endpoint);
            sent_on = true;
        }
    }
}

fn packet(client: u16, role: Role) -> Packet {
    let key = FlowKey {
        source: Addr4([1]),
        destination: Addr4([2]),
        source_port: client,
        destination_port: 80,
        protocol: if role == Role::Datagram { 17 } else { 6 },
        ..FlowKey::default()
    };
    Packet { key, role, fin: false }
}

/// Steps on directors that see every change.
fn seen() -> impl Strategy<Value = Step> {
    let (client, director, node) = (0..CLIENTS, 0..NODES, 0..NODES);
    let ready = prop_oneof![3 => Just(Some(true)), 2 => Just(Some(false)), 1 => Just(None)];
    prop_oneof![
        6 => (0..ENDPOINTS, ready).prop_map(|(number, ready)| Step::Endpoint { number, ready }),
        1 => (0..ENDPOINTS).prop_map(|number| Step::Blink { number }),
        12 => (client.clone(), director.clone(), prop::bool::weighted(0.7))
            .prop_map(|(client, director, is_answered)| Step::Syn { client, director, is_answered }),
        12 => client.clone().prop_map(|client| Step::Data { client }),
        2 => client.clone().prop_map(|client| Step::Close { client }),
        3 => (client, director).prop_map(|(client, director)| Step::Datagram { client, director }),
        2 => node.clone().prop_map(|node| Step::Restart { node }),
        8 => node.prop_map(|node| Step::Collect { node }),
        4 => (0_u64..8).prop_map(|seconds| Step::Wait { seconds }),
        1 => (0_u64..130).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// The same steps, with agents that are away for a while.
pub(super) fn seen_late() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => seen(),
        1 => (0..NODES).prop_map(|node| Step::Stop { node }),
        2 => (0..NODES).prop_map(|node| Step::Start { node }),
    ]
}

/// Steps with packets that move to other directors.
fn moving() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => seen(),
        3 => (0..CLIENTS, 0..NODES).prop_map(|(client, director)| Step::Move { client, director }),
        1 => Just(Step::Wipe),
    ]
}

pub(super) fn run(steps: &[Step]) -> World {
    let mut world = World::new();
    for step in steps {
        world.take(step);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_connection_is_cut_whose_backend_lives(steps in proptest::collection::vec(seen_late(), 1..200)) {
        run(&steps);
    }

    #[test]
    fn a_connection_that_moves_is_kept_by_an_owner_of_its_slot(steps in proptest::collection::vec(moving(), 1..200)) {
        run(&steps);
    }

    /// After a long quiet time no slot is unsettled, and directors need no entries.
    #[test]
    fn every_slot_settles_in_the_end(steps in proptest::collection::vec(seen(), 1..100)) {
        let mut world = run(&steps);
        for _ in 0..3 {
            world.take(&Step::Wait { seconds: 110 });
            // The rest of the running round, and a complete one.
            for (_, node) in (0..6).flat_map(|_| (0..NODES).enumerate()) {
                world.take(&Step::Collect { node });
            }
        }
        for node in &world.nodes {
            prop_assert_eq!(node.unsettled(), 0);
        }
    }
}

/// For three seconds the director takes the removed endpoint for the slot's settled owner. The
/// endpoint's node does not.
#[test]
fn a_director_that_starts_fresh_and_loses_an_endpoint_at_once_cuts_nothing() {
    let (client, director) = (23, HOMES);
    let world = run(&[
        Step::Endpoint { number: 4, ready: Some(true) },
        Step::Syn { client, director, is_answered: true },
        Step::Endpoint { number: 3, ready: Some(true) },
        Step::Endpoint { number: 1, ready: Some(false) },
        Step::Wipe,
        Step::Endpoint { number: 3, ready: None },
        Step::Data { client },
    ]);
    assert_eq!(world.kept, 2, "the first data of the connection, and the last");
}

/// Scales 3 -> 30 -> 3 repeatedly on directors that see every change. It shows that the tests above
/// do check connections.
#[test]
fn scaling_cuts_nothing_and_is_talked_through() {
    let mut world = World::new();
    for client in 0..CLIENTS {
        world.take(&Step::Syn { client, director: (client % 3) as u8, is_answered: true });
    }
    for round in 0..30 {
        for number in [3, 4, 5] {
            world.take(&Step::Endpoint { number, ready: (round % 2 == 0).then_some(true) });
            world.take(&Step::Wait { seconds: 1 });
            for client in 0..CLIENTS {
                world.take(&Step::Data { client });
            }
            (0..NODES).for_each(|node| world.take(&Step::Collect { node }));
            world.take(&Step::Restart { node: round % NODES });
        }
    }
    assert_eq!(world.connections.len(), usize::from(CLIENTS));
    assert!(world.kept > 90 * usize::from(CLIENTS), "{}", world.kept);
}

/// The node has seen the endpoint leave its EndpointSlice, the director has not. The endpoint
/// returns at once.
#[test]
fn an_endpoint_that_is_away_for_a_moment_keeps_what_its_director_sends_it_meanwhile() {
    let mut world = World::new();
    let without = world.endpoints.iter().filter(|(number, _)| **number != 1).map(|(n, ready)| (*n, *ready));
    let without: Endpoints = without.collect();
    world.nodes[usize::from(home(1))].sync(&without, world.shape, world.now);
    for client in 0..CLIENTS {
        world.take(&Step::Syn { client, director: HOMES, is_answered: true });
    }
    world.sync();
    for client in 0..CLIENTS {
        world.take(&Step::Data { client });
    }
    assert!(world.connections.values().any(|connection| connection.backend == Some(1)));
    assert_eq!(world.connections.len(), usize::from(CLIENTS));
}
