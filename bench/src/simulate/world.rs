//! One run: a scenario, under the rules of one kind.

use std::collections::BTreeMap;
use std::rc::Rc;

use proxy_common::Addr4;
use proxy_common::flow::FlowKey;
use proxy_common::hash::{flow_hash, mix};
use proxy_common::rules::Role;

use super::balancer::{Balancer, Fate, Packet};
use super::ecmp::{Ecmp, Hashing};
use super::endpoints::{Condition, Endpoint, Node, Snapshot};
use super::random::Random;
use super::scenario::{Course, Event, GRACE, Scenario};

/// Seconds in which the connections of the start are opened.
const OPENING: u32 = 8;
/// Seconds for which an endpoint exists after the last EndpointSlice dropped it. The plan has the
/// same time.
const LINGER: u32 = millrace::dataplane::ebpf::plan::GRACE.as_secs() as u32;
/// Seconds between two rounds of a node's collector.
const COLLECT: u32 = 10;
/// The mean duration of a short connection, in seconds. Every other connection stays open.
const SHORT: usize = 30;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes. Each is a director.
    pub nodes: usize,
    /// Connections that are open at any time.
    pub connections: usize,
    /// Slots of a Maglev table.
    pub slots: u32,
    /// The longest time until a node's agent sees a change, in seconds.
    pub lag: usize,
    /// The seed of everything random.
    pub seed: u64,
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Connections that were opened.
    pub connections: usize,
    /// Those whose packets came to another director at least once.
    pub moved: usize,
    /// Those cut while their endpoint lived.
    pub cut: usize,
    /// Those cut without a move to another director.
    pub cut_unmoved: usize,
    /// Those that ended with their pod.
    pub ended_with_pod: usize,
    /// The most flow entries at a time on nodes other than the endpoint's.
    pub director_entries: usize,
}

struct Connection {
    hash: u32,
    router_hash: u32,
    director: Option<Node>,
    backend: Option<Endpoint>,
    ends: u32,
    is_moved: bool,
    is_over: bool,
}

struct World<'a> {
    size: Size,
    balancer: &'a mut dyn Balancer,
    random: Random,
    now: u32,
    router: Ecmp,
    members: BTreeMap<Endpoint, Condition>,
    homes: Vec<Node>,
    alive: Vec<bool>,
    /// Pods that end, and endpoints that linger, by second.
    ends: BTreeMap<u32, Vec<Endpoint>>,
    lingers: BTreeMap<u32, Vec<Endpoint>>,
    snapshots: Vec<(u32, Rc<Snapshot>)>,
    /// The number of snapshots that each node has seen.
    seen: Vec<usize>,
    connections: Vec<Connection>,
    open: Vec<usize>,
    outcome: Outcome,
}

/// Runs a scenario to its end.
pub fn run(scenario: Scenario, hashing: Hashing, size: Size, balancer: &mut dyn Balancer) -> Outcome {
    let course = scenario.course(size.nodes, &mut Random::new(size.seed));
    let mut world = World::new(&course, hashing, size, balancer);
    for now in 0..=course.end {
        world.now = now;
        world.step(course.events.get(&now).map_or(&[], Vec::as_slice));
    }
    world.outcome
}

impl<'a> World<'a> {
    fn new(course: &Course, hashing: Hashing, size: Size, balancer: &'a mut dyn Balancer) -> Self {
        let mut world = Self {
            size,
            balancer,
            random: Random::new(size.seed.wrapping_add(1)),
            now: 0,
            router: Ecmp::new(hashing, course.directors.clone()),
            members: BTreeMap::new(),
            homes: Vec::new(),
            alive: Vec::new(),
            ends: BTreeMap::new(),
            lingers: BTreeMap::new(),
            snapshots: Vec::new(),
            seen: vec![0; size.nodes],
            connections: Vec::new(),
            open: Vec::new(),
            outcome: Outcome::default(),
        };
        for (endpoint, node) in &course.endpoints {
            world.add_pod(*endpoint, *node);
        }
        world.publish();
        (0..size.nodes).for_each(|node| world.reset(node));
        world
    }

    fn step(&mut self, events: &[Event]) {
        let before = self.members.clone();
        for endpoint in self.ends.remove(&self.now).unwrap_or_default() {
            self.end_pod(endpoint);
        }
        for endpoint in self.lingers.remove(&self.now).unwrap_or_default() {
            self.members.remove(&endpoint);
        }
        for event in events {
            self.take(*event);
        }
        if self.members != before {
            self.publish();
        }
        self.see();
        self.open_connections();
        self.talk();
        if self.now.is_multiple_of(COLLECT) {
            self.balancer.collect();
            let entries = self.balancer.entries(&self.homes);
            self.outcome.director_entries = self.outcome.director_entries.max(entries);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Ready(endpoint, node) => self.add_pod(endpoint, node),
            Event::Terminate(endpoint) => {
                self.members.insert(endpoint, Condition::Terminating);
                self.ends.entry(self.now + GRACE).or_default().push(endpoint);
            }
            Event::Withdraw(node) => self.move_after(|router| router.remove(node)),
            Event::Lose(node) => {
                self.move_after(|router| router.remove(node));
                self.reset(node);
            }
            Event::Join(node) => {
                self.reset(node);
                self.move_after(|router| router.add(node));
            }
        }
    }

    fn add_pod(&mut self, endpoint: Endpoint, node: Node) {
        let wanted = endpoint as usize + 1;
        self.homes.resize(self.homes.len().max(wanted), 0);
        self.alive.resize(self.alive.len().max(wanted), false);
        if let (Some(home), Some(alive)) =
            (self.homes.get_mut(endpoint as usize), self.alive.get_mut(endpoint as usize))
        {
            (*home, *alive) = (node, true);
        }
        self.members.insert(endpoint, Condition::Ready);
    }

    /// The pod is gone, and its connections with it.
    fn end_pod(&mut self, endpoint: Endpoint) {
        if let Some(alive) = self.alive.get_mut(endpoint as usize) {
            *alive = false;
        }
        self.lingers.entry(self.now + LINGER).or_default().push(endpoint);
        for number in &self.open {
            let Some(connection) = self.connections.get_mut(*number) else { continue };
            if connection.backend == Some(endpoint) {
                connection.is_over = true;
                self.outcome.ended_with_pod += 1;
                self.balancer.forget(*number);
            }
        }
        self.close();
    }

    fn publish(&mut self) {
        self.snapshots.push((self.now, Snapshot::new(self.members.clone(), self.size.slots)));
    }

    fn reset(&mut self, node: Node) {
        let Some((_, last)) = self.snapshots.last() else { return };
        self.balancer.reset(node, last);
        if let Some(seen) = self.seen.get_mut(node) {
            *seen = self.snapshots.len();
        }
    }

    /// Each node sees the last state that is older than its lag.
    fn see(&mut self) {
        for (node, seen) in self.seen.iter_mut().enumerate().filter(|(_, seen)| **seen < self.snapshots.len())
        {
            // Four of five nodes see a change at once.
            let is_late = self.random.below(5) == 0;
            let lag = if is_late { self.random.below(self.size.lag + 1) as u32 } else { 0 };
            let is_heard = |(made, _): &&(u32, _)| made + lag <= self.now;
            let heard = self.snapshots.iter().take_while(is_heard).count();
            if heard > *seen
                && let Some((_, snapshot)) = self.snapshots.get(heard - 1)
            {
                self.balancer.see(node, snapshot);
                *seen = heard;
            }
        }
    }

    /// Changes the router's group, and notes the connections that move.
    fn move_after(&mut self, change: impl FnOnce(&mut Ecmp)) {
        change(&mut self.router);
        for number in &self.open {
            let Some(connection) = self.connections.get_mut(*number) else { continue };
            let director = self.router.director(connection.router_hash);
            if connection.director != director {
                connection.director = director;
                self.outcome.moved += usize::from(!connection.is_moved && connection.backend.is_some());
                connection.is_moved |= connection.backend.is_some();
            }
        }
    }

    fn open_connections(&mut self) {
        let wanted = self.size.connections * (self.now + 1).min(OPENING) as usize / OPENING as usize;
        while self.open.len() < wanted {
            let number = self.connections.len() as u32;
            let tuple = FlowKey {
                source: Addr4([u32::to_be(0xc612_0000 + number)]),
                destination: Addr4([u32::to_be(0xcb00_7101)]),
                source_port: (self.random.number() as u16 | 1024).to_be(),
                destination_port: 80_u16.to_be(),
                protocol: 6,
                ..FlowKey::default()
            };
            let router_hash = mix(u64::from(number) ^ self.size.seed) as u32;
            let is_short = self.random.below(2) == 0;
            let stays = if is_short { self.random.below(2 * SHORT) as u32 } else { u32::MAX / 2 };
            self.open.push(self.connections.len());
            self.connections.push(Connection {
                hash: flow_hash(&tuple),
                router_hash,
                director: self.router.director(router_hash),
                backend: None,
                ends: self.now + stays,
                is_moved: false,
                is_over: false,
            });
        }
    }

    /// Each open connection sends a packet, and ends if it is time.
    fn talk(&mut self) {
        for number in &self.open {
            let Some(connection) = self.connections.get_mut(*number) else { continue };
            let Some(director) = connection.director else { continue };
            let role = if connection.backend.is_none() { Role::Opening } else { Role::Midstream };
            let packet = Packet { connection: *number, hash: connection.hash, role };
            let fate = self.balancer.deliver(director, packet, &self.homes);
            match (fate, connection.backend) {
                (Fate::Served(endpoint), None) if self.alive.get(endpoint as usize) == Some(&true) => {
                    connection.backend = Some(endpoint);
                    self.outcome.connections += 1;
                }
                // The client tries again.
                (_, None) => {}
                (Fate::Served(endpoint), Some(own)) if endpoint == own => {}
                (Fate::Served(_) | Fate::Strange(_) | Fate::Lost, Some(_)) => {
                    connection.is_over = true;
                    self.outcome.cut += 1;
                    self.outcome.cut_unmoved += usize::from(!connection.is_moved);
                }
            }
            connection.is_over |= connection.ends <= self.now;
            if connection.is_over {
                self.balancer.forget(*number);
            }
        }
        self.close();
    }

    fn close(&mut self) {
        let connections = &self.connections;
        self.open.retain(|number| connections.get(*number).is_some_and(|connection| !connection.is_over));
    }
}
