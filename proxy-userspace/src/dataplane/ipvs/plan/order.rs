//! The order of a sync.
//!
//! Entries for marked packets are added before the marks and removed after them. Refusals are added before
//! admissions and removed after the last of them. The set of served ports is correct at any time, because a
//! later agent identifies its virtual services by it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Plan;
use super::delta::Difference;
use super::op::Op;
use crate::dataplane::ipvs::state::{Element, Member, Server, Set, Virtual};
use crate::model::Protocol;

/// The operations of a sync, by step.
#[derive(Debug, Default)]
struct Turns {
    marked: Vec<Op>,
    gate: (Vec<super::Entry>, Vec<super::Entry>),
    services: Vec<Op>,
    servers: Vec<Op>,
    gone: Vec<Op>,
    bind: Vec<Op>,
    unbind: Vec<Op>,
    deleted: Vec<Op>,
    late: Vec<super::Entry>,
    unmarked: Vec<Op>,
}

/// Returns the servers of a service.
pub fn servers_of<'a>(
    servers: &'a BTreeMap<(Virtual, SocketAddr), Server>,
    service: &'a Virtual,
) -> impl Iterator<Item = (&'a SocketAddr, &'a Server)> {
    let first = (*service, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
    let from = servers.range(first..).take_while(move |((of, _), _)| of == service);
    from.map(|((_, address), server)| (address, server))
}

impl Plan {
    /// Returns the operations, in order.
    pub(super) fn operations(&mut self) -> Vec<Op> {
        let mut turns = Turns::default();
        self.order_services(&mut turns);
        self.order_servers(&mut turns);
        self.order_members(&mut turns);
        for (address, difference) in self.bound.differences() {
            match difference {
                Difference::Extra(()) if self.incomplete && self.bound.is_unclaimed(&address) => {}
                Difference::Extra(()) => turns.unbind.push(Op::DeleteAddress(address)),
                _ => turns.bind.push(Op::AddAddress(address)),
            }
        }
        turns.into_operations()
    }

    fn order_services(&mut self, turns: &mut Turns) {
        for (service, difference) in self.services.differences() {
            match difference {
                Difference::Missing(wanted) | Difference::Other(wanted, _) => {
                    turns.of(&service).push(Op::PutService(service, wanted));
                }
                Difference::Extra(_) if self.incomplete && self.services.is_unclaimed(&service) => {}
                Difference::Extra(_) => match service {
                    Virtual::Mark { .. } => turns.unmarked.push(Op::DeleteService(service)),
                    Virtual::Address { .. } => turns.deleted.push(Op::DeleteService(service)),
                },
            }
        }
    }

    fn order_servers(&mut self, turns: &mut Turns) {
        for (key, difference) in self.servers.differences() {
            let (service, address) = key;
            let op = match difference {
                Difference::Missing(wanted) | Difference::Other(wanted, _) => {
                    let op = Op::PutServer(service, address, wanted);
                    match service {
                        Virtual::Mark { .. } => turns.marked.push(op),
                        Virtual::Address { .. } => turns.servers.push(op),
                    }
                    continue;
                }
                Difference::Extra(_) if self.incomplete && self.servers.is_unclaimed(&key) => continue,
                // The kernel removes the server with its virtual service.
                Difference::Extra(_) if !self.services.is_wanted(&service) => continue,
                Difference::Extra(_)
                    if service.protocol() != Protocol::Tcp || self.drained.contains(&key) =>
                {
                    Op::DeleteServer(service, address)
                }
                Difference::Extra(server) if server.weight > 0 => {
                    Op::PutServer(service, address, Server { weight: 0, ..server })
                }
                Difference::Extra(_) => {
                    self.draining.insert(key);
                    continue;
                }
            };
            turns.gone.push(op);
        }
    }

    fn order_members(&mut self, turns: &mut Turns) {
        for (member, difference) in self.members.differences() {
            let (add, delete) = &mut turns.gate;
            match difference {
                Difference::Missing(_) if self.must_wait(&member) => {}
                Difference::Missing(mark) => add.push((member, mark)),
                Difference::Other(wanted, actual) => {
                    delete.push((member.clone(), actual));
                    add.push((member, wanted));
                }
                Difference::Extra(_) if self.incomplete && self.members.is_unclaimed(&member) => {}
                Difference::Extra(mark) if self.is_late(&member) => turns.late.push((member, mark)),
                Difference::Extra(mark) => delete.push((member, mark)),
            }
        }
    }

    /// Whether a member must stay until its virtual service is removed.
    fn is_late(&self, (set, element): &Member) -> bool {
        match (set, element) {
            (_, Element::Port(protocol, address)) | (Set::Allowed(protocol), Element::Range(address, _)) => {
                !self.members.is_wanted(&(Set::Services, Element::Port(*protocol, *address)))
            }
            // The number may belong to another backend by now.
            (_, Element::Address(_)) => !matches!(set, Set::Encapsulated | Set::Nodes | Set::FouNodes),
            // Overlapping ranges can't exist at the same time.
            (
                _,
                Element::Net(_)
                | Element::Range(..)
                | Element::Device(_)
                | Element::FamilyDevice(..)
                | Element::Target { .. },
            ) => false,
        }
    }

    /// Records that `op` was carried out.
    pub(super) fn done(&mut self, op: &Op) {
        match op {
            Op::PutService(service, scheduling) => {
                self.services.set_actual(service, Some(scheduling.clone()));
            }
            Op::DeleteService(service) => {
                self.services.set_actual(service, None);
                let servers: Vec<_> = servers_of(self.servers.actual(), service)
                    .map(|(address, _)| (*service, *address))
                    .collect();
                for key in servers {
                    self.forget_server(&key);
                }
            }
            Op::PutServer(service, address, server) => {
                let key = (*service, *address);
                self.servers.set_actual(&key, Some(*server));
                self.drained.remove(&key);
                if server.weight > 0 {
                    self.draining.remove(&key);
                } else {
                    self.draining.insert(key);
                }
            }
            Op::DeleteServer(service, address) => self.forget_server(&(*service, *address)),
            Op::ChangeMembers { add, delete } => {
                for (member, _) in delete {
                    self.members.set_actual(member, None);
                }
                for (member, mark) in add {
                    self.members.set_actual(member, Some(*mark));
                }
            }
            Op::AddAddress(address) => self.bound.set_actual(address, Some(())),
            Op::DeleteAddress(address) => self.bound.set_actual(address, None),
            Op::AddTunnel(family) => self.tunnels.set_actual(family, Some(())),
            Op::DeleteTunnel(family) => self.tunnels.set_actual(family, None),
        }
    }

    fn forget_server(&mut self, key: &(Virtual, SocketAddr)) {
        self.servers.set_actual(key, None);
        self.draining.remove(key);
        self.drained.remove(key);
    }
}

impl Turns {
    fn of(&mut self, service: &Virtual) -> &mut Vec<Op> {
        match service {
            Virtual::Mark { .. } => &mut self.marked,
            Virtual::Address { .. } => &mut self.services,
        }
    }

    fn into_operations(self) -> Vec<Op> {
        let (add, delete) = self.gate;
        let change = |add: Vec<_>, delete: Vec<_>| {
            (!add.is_empty() || !delete.is_empty()).then_some(Op::ChangeMembers { add, delete })
        };
        let mut operations = self.marked;
        operations.extend(change(add, delete));
        for turn in [self.services, self.servers, self.gone, self.bind, self.unbind, self.deleted] {
            operations.extend(turn);
        }
        operations.extend(change(Vec::new(), self.late));
        operations.extend(self.unmarked);
        operations
    }
}
