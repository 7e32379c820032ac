//! IPVS over generic netlink.

use std::io;
use std::net::SocketAddr;

use netlink_packet_core::DecodeError;
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::message::{Command, Message};
use crate::dataplane::ipvs::Timeouts;
use crate::dataplane::ipvs::state::{Connections, Scheduling, Server, Traffic, Virtual};
use crate::dataplane::netlink::Channel;

/// The IPVS of this network namespace.
#[derive(Debug)]
pub struct Ipvs {
    channel: Channel,
    family: u16,
}

impl Ipvs {
    /// Opens a socket. Fails with `ENOENT` if the kernel has no IPVS and can't load it.
    pub fn open() -> io::Result<Self> {
        let mut channel = Channel::open(NETLINK_GENERIC)?;
        let name = GenlCtrlAttrs::FamilyName(Message::family_name().to_owned());
        let request = GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas: vec![name] };
        let answer = channel.get(GenlMessage::from_payload(request))?;
        let family = answer.and_then(|answer| id_of(&answer.payload));
        let family = family.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(Self { channel, family })
    }

    /// Opens a socket without loading IPVS; `None` if the module is not loaded.
    ///
    /// It lists all families, because a request for one by its name would make the kernel load the module.
    pub fn find() -> io::Result<Option<Self>> {
        let mut channel = Channel::open(NETLINK_GENERIC)?;
        let request = GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas: Vec::new() };
        let answers: Vec<GenlMessage<GenlCtrl>> = channel.dump(GenlMessage::from_payload(request))?;
        let name = GenlCtrlAttrs::FamilyName(Message::family_name().to_owned());
        let found = answers.iter().find(|answer| answer.payload.nlas.contains(&name));
        Ok(found.and_then(|answer| id_of(&answer.payload)).map(|family| Self { channel, family }))
    }

    /// Returns every virtual service, including those of other software.
    pub fn services(&mut self) -> io::Result<Vec<(Virtual, Scheduling)>> {
        let answers = self.dump(Message::new(Command::GetService))?;
        let services = answers.iter().filter_map(|answer| answer.service().transpose());
        services.collect::<Result<_, _>>().map_err(|error| malformed(&error))
    }

    /// Returns every virtual service with the traffic of its clients.
    pub fn counted_services(&mut self) -> io::Result<Vec<(Virtual, Scheduling, Traffic)>> {
        let answers = self.dump(Message::new(Command::GetService))?;
        let services = answers.iter().filter_map(|answer| {
            let counted = |(service, scheduling)| Ok((service, scheduling, answer.traffic()?));
            answer.service().transpose().map(|told| told.and_then(counted))
        });
        services.collect::<Result<_, _>>().map_err(|error| malformed(&error))
    }

    /// Returns the real servers of a service; none if the service does not exist.
    pub fn servers(&mut self, service: &Virtual) -> io::Result<Vec<(SocketAddr, Server, Connections)>> {
        let answers = self.dump(Message::of(Command::GetServer, service))?;
        let servers = answers.iter().map(|answer| answer.told_server(service.family()));
        servers.collect::<Result<_, _>>().map_err(|error| malformed(&error))
    }

    /// Makes services, or changes the scheduling of existing ones. Each succeeds or fails independently.
    pub fn put_services(&mut self, services: &[(&Virtual, &Scheduling)]) -> Vec<io::Result<()>> {
        let described = |command| {
            move |(service, scheduling): &(&Virtual, &Scheduling)| {
                Message::describe(command, service, scheduling)
            }
        };
        self.put(services, described(Command::NewService), described(Command::SetService))
    }

    /// Removes a service and all its servers.
    pub fn delete_service(&mut self, service: &Virtual) -> io::Result<()> {
        let gone = self.act(Message::of(Command::DeleteService, service));
        match errno(&gone) {
            Some(libc::ESRCH) => Ok(()),
            _ => gone,
        }
    }

    /// Adds servers, or changes existing ones. Each succeeds or fails independently.
    pub fn put_servers(&mut self, servers: &[(&Virtual, SocketAddr, Server)]) -> Vec<io::Result<()>> {
        let described = |command| {
            move |(service, address, server): &(&Virtual, SocketAddr, Server)| {
                Message::of(command, service).described_server(*address, *server)
            }
        };
        self.put(servers, described(Command::NewServer), described(Command::SetServer))
    }

    /// Removes a server. Its connections end.
    pub fn delete_server(&mut self, service: &Virtual, address: SocketAddr) -> io::Result<()> {
        let gone = self.act(Message::of(Command::DeleteServer, service).server(address));
        match errno(&gone) {
            // The service (ESRCH) or the server (ENOENT) does not exist.
            Some(libc::ESRCH | libc::ENOENT) => Ok(()),
            _ => gone,
        }
    }

    /// Sets the time-outs other than 0.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> io::Result<()> {
        self.act(Message::timeouts(timeouts))
    }

    /// Makes each, or changes it if it exists.
    fn put<T>(
        &mut self,
        all: &[T],
        make: impl Fn(&T) -> Message,
        change: impl Fn(&T) -> Message,
    ) -> Vec<io::Result<()>> {
        let messages = all.iter().map(|one| self.address(make(one))).collect();
        let outcomes = self.channel.act_all(messages, 0);
        let changed = all.iter().zip(outcomes).map(|(one, made)| match errno(&made) {
            Some(libc::EEXIST) => self.act(change(one)),
            _ => made,
        });
        changed.collect()
    }

    fn act(&mut self, message: Message) -> io::Result<()> {
        let message = self.address(message);
        self.channel.act(message, 0)
    }

    fn dump(&mut self, message: Message) -> io::Result<Vec<Message>> {
        let message = self.address(message);
        let answers = self.channel.dump(message)?;
        Ok(answers.into_iter().map(|answer: GenlMessage<Message>| answer.payload).collect())
    }

    fn address(&self, message: Message) -> GenlMessage<Message> {
        let mut message = GenlMessage::from_payload(message);
        message.set_resolved_family_id(self.family);
        message
    }
}

fn id_of(family: &GenlCtrl) -> Option<u16> {
    family.nlas.iter().find_map(|attribute| match attribute {
        GenlCtrlAttrs::FamilyId(id) => Some(*id),
        _ => None,
    })
}

fn errno(result: &io::Result<()>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

fn malformed(error: &DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
