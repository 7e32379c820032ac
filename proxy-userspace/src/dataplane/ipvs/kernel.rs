//! The access to the kernel: it carries operations out, and reads the state back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use tracing::{info, warn};

use super::error::OpenError;
use super::netlink::{Device, Ipvs, Kind};
use super::nft::{self, Extent, Layout, NftError};
use super::plan::{self, Op};
use super::state::{Connections, Member, State, Virtual};
use super::tunnel::{Tunnel, tunnels};
use super::{DEVICE, Settings, Timeouts};
use crate::dataplane::ipvs::state::{Scheduling, Server};
use crate::dataplane::netlink::Generation;
use crate::model::{Family, Protocol, Scheduler};

/// The place of the probe. It is a documentation address (RFC 5737), which no Service has.
const PROBE: SocketAddr =
    SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(198, 51, 100, 0), 20_000));

/// IPVS, the dummy device and our table in this network namespace.
#[derive(Debug)]
pub struct Kernel {
    ipvs: Ipvs,
    dummy: Device,
    /// The decapsulating devices.
    tunnels: [Tunnel; 2],
    layout: Layout,
    /// The bare table, for kernels that refuse the whole one.
    bare: Layout,
    /// The reason for the bare table in one line; `None` with the whole table.
    refusal: Option<String>,
    excluded: Vec<IpNet>,
    generation: Generation,
    /// The generation of nftables at the last check that found our rules intact.
    seen: Option<u32>,
    /// Whether the state must be read back, because the kernel did not act as expected.
    is_in_doubt: bool,
}

impl Kernel {
    /// Connects to the kernel after a probe of IPVS. Leaves nothing behind.
    pub fn open(settings: &Settings) -> Result<Self, OpenError> {
        let mut ipvs = Ipvs::open().map_err(OpenError::ipvs)?;
        probe(&mut ipvs, settings.rules.scheduler)?;
        let dummy = Device::open(Kind::Dummy).map_err(OpenError::dummy)?;
        let tunnels = tunnels()?;
        let generation = Generation::open().map_err(NftError::Run)?;
        Ok(Self {
            ipvs,
            dummy,
            tunnels,
            layout: Layout::new(settings.mark, &settings.kept_ports, Extent::Whole),
            bare: Layout::new(settings.mark, &settings.kept_ports, Extent::Bare),
            refusal: None,
            excluded: settings.rules.excluded.clone(),
            generation,
            seen: None,
            is_in_doubt: false,
        })
    }

    /// Sets the given time-outs.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), OpenError> {
        if timeouts == Timeouts::default() {
            return Ok(());
        }
        self.ipvs.set_timeouts(timeouts).map_err(OpenError::ipvs)
    }

    /// Whether the last state may be outdated; resets the answer.
    pub fn take_doubt(&mut self) -> bool {
        std::mem::take(&mut self.is_in_doubt)
    }

    /// Whether the device and the table with our rules exist.
    pub fn check(&mut self) -> Result<(), String> {
        if !self.dummy.exists().map_err(|error| format!("{DEVICE}: {error}"))? {
            return Err(format!("the device {DEVICE} is gone"));
        }
        self.tunnels.iter_mut().try_for_each(Tunnel::check)?;
        // Listing the rules takes a process. An unchanged generation saves it.
        let now = self.generation.read().ok();
        if now.is_some() && now == self.seen {
            return Ok(());
        }
        match nft::rules() {
            Ok(Some(found)) if self.is_whole(&found) => {
                self.seen = now;
                Ok(())
            }
            Ok(Some(_)) => Err(format!("another process changed the rules of table {}", nft::TABLE)),
            Ok(None) => Err(format!("the table {} is gone", nft::TABLE)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn is_whole(&self, found: &nft::Found) -> bool {
        let layout = if self.refusal.is_some() { &self.bare } else { &self.layout };
        found.layout == layout.name && found.rules == layout.rules
    }

    fn write_table(&mut self, members: &BTreeMap<Member, Option<u32>>) -> Result<(), NftError> {
        let write = |layout: &Layout| nft::replace(layout, members);
        self.refusal = if let Some(table) = nft::other_user_of_zone() {
            write(&self.bare)?;
            Some(nft::zone_is_taken(&table))
        } else {
            nft::write_largest(&self.layout, &self.bare, write)?.map(|why| without_direct_return(&why))
        };
        if let Some(why) = &self.refusal {
            warn!("{why}");
        }
        info!("table {} written", nft::TABLE);
        Ok(())
    }

    fn raise_tunnel(&mut self, family: Family) -> Result<(), String> {
        match &self.refusal {
            Some(why) => Err(why.clone()),
            None => self.tunnel(family).map_or(Ok(()), Tunnel::raise),
        }
    }

    /// Returns our state in the kernel. Makes the device and the table if they are missing.
    pub fn read(&mut self) -> Result<State, OpenError> {
        let found = nft::read()?;
        let members = found.as_ref().map(|found| found.members.clone()).unwrap_or_default();
        if !found.as_ref().is_some_and(|found| self.is_whole(found)) {
            self.write_table(&members)?;
        }
        self.dummy.ensure().map_err(OpenError::dummy)?;
        let addresses = self.dummy.addresses().map_err(OpenError::dummy)?;
        let addresses = addresses.into_iter().filter(|address| !self.is_excluded(*address)).collect();
        let mut state = State { addresses, members, ..State::default() };
        for tunnel in &mut self.tunnels {
            // The devices are useless without the rules. `raise_tunnel` then reports the refusal.
            if tunnel.find().map_err(OpenError::dummy)? && self.refusal.is_none() {
                state.tunnels.insert(tunnel.family());
            }
        }
        self.read_services(&mut state).map_err(OpenError::ipvs)?;
        Ok(state)
    }

    fn read_services(&mut self, state: &mut State) -> io::Result<()> {
        for (service, scheduling) in self.ipvs.services()? {
            if !self.is_ours(&service, state) {
                continue;
            }
            for (address, server, _) in self.ipvs.servers(&service)? {
                state.servers.insert((service, address), server);
            }
            state.services.insert(service, scheduling);
        }
        Ok(())
    }

    fn is_ours(&self, service: &Virtual, state: &State) -> bool {
        let is_excluded = match service {
            Virtual::Mark { .. } => false,
            Virtual::Address { address, .. } => self.is_excluded(address.ip()),
        };
        !is_excluded && state.owns(service)
    }

    fn is_excluded(&self, address: IpAddr) -> bool {
        self.excluded.iter().any(|range| range.contains(&address))
    }

    fn put_services(&mut self, ops: &[&Op]) -> Vec<Result<(), String>> {
        let put = ops.iter().filter_map(|op| match op {
            Op::PutService(service, scheduling) => Some((service, scheduling)),
            _ => None,
        });
        let all: Vec<_> = put.collect();
        let done = self.ipvs.put_services(&all);
        let outcomes = all.iter().zip(done);
        outcomes
            .map(|((service, scheduling), done)| done.map_err(|error| refused(service, scheduling, &error)))
            .collect()
    }

    fn put_servers(&mut self, ops: &[&Op]) -> Vec<Result<(), String>> {
        let put = ops.iter().filter_map(|op| match op {
            Op::PutServer(service, address, server) => Some((service, *address, *server)),
            _ => None,
        });
        let all: Vec<_> = put.collect();
        let done = self.ipvs.put_servers(&all);
        self.is_in_doubt |= done.iter().any(Result::is_err);
        let outcomes = all.iter().zip(done).map(|((service, address, _), done)| {
            done.map_err(|error| {
                format!("writing server {address} of virtual service {service} failed: {error}")
            })
        });
        outcomes.collect()
    }

    fn add_addresses(&mut self, ops: &[&Op]) -> Vec<Result<(), String>> {
        let added = ops.iter().filter_map(|op| match op {
            Op::AddAddress(address) => Some(*address),
            _ => None,
        });
        let all: Vec<_> = added.collect();
        let done = self.dummy.add(&all);
        self.is_in_doubt |= done.iter().any(Result::is_err);
        let outcomes = all.iter().zip(done);
        outcomes
            .map(|(address, done)| {
                done.map_err(|error| format!("adding {address} to device {DEVICE} failed: {error}"))
            })
            .collect()
    }

    fn tunnel(&mut self, family: Family) -> Option<&mut Tunnel> {
        self.tunnels.iter_mut().find(|tunnel| tunnel.family() == family)
    }

    /// Returns the connections of these servers, without missing servers.
    pub fn connections(
        &mut self,
        servers: &BTreeSet<(Virtual, SocketAddr)>,
    ) -> io::Result<BTreeMap<(Virtual, SocketAddr), Connections>> {
        let services: BTreeSet<&Virtual> = servers.iter().map(|(service, _)| service).collect();
        let mut all = BTreeMap::new();
        for service in services {
            let of_service = self.ipvs.servers(service)?.into_iter();
            let asked = of_service.filter(|(address, ..)| servers.contains(&(*service, *address)));
            all.extend(asked.map(|(address, _, connections)| ((*service, address), connections)));
        }
        Ok(all)
    }
}

impl plan::Kernel for Kernel {
    fn apply(&mut self, op: &Op) -> Result<(), String> {
        let of_service = |service: &Virtual, done: io::Result<()>| {
            done.map_err(|error| format!("changing virtual service {service} failed: {error}"))
        };
        match op {
            Op::PutService(..) | Op::PutServer(..) | Op::AddAddress(_) => {
                self.apply_all(&[op]).pop().unwrap_or(Ok(()))
            }
            Op::DeleteService(service) => of_service(service, self.ipvs.delete_service(service)),
            Op::DeleteServer(service, address) => {
                of_service(service, self.ipvs.delete_server(service, *address))
            }
            Op::ChangeMembers { add, delete } => {
                let done = nft::change(add, delete);
                self.is_in_doubt |= done.is_err();
                done.map_err(|error: NftError| error.to_string())
            }
            Op::AddTunnel(family) => self.raise_tunnel(*family),
            Op::DeleteTunnel(family) => self.tunnel(*family).map_or(Ok(()), Tunnel::lower),
            Op::DeleteAddress(address) => {
                let gone = self.dummy.take(*address);
                gone.map_err(|error| format!("removing {address} from device {DEVICE} failed: {error}"))
            }
        }
    }

    fn apply_all(&mut self, ops: &[&Op]) -> Vec<Result<(), String>> {
        match ops.first() {
            Some(Op::PutService(..)) => self.put_services(ops),
            Some(Op::PutServer(..)) => self.put_servers(ops),
            Some(Op::AddAddress(_)) => self.add_addresses(ops),
            _ => ops.iter().map(|op| self.apply(op)).collect(),
        }
    }
}

fn refused(service: &Virtual, scheduling: &Scheduling, error: &io::Error) -> String {
    let scheduler = &scheduling.scheduler;
    match error.raw_os_error() {
        Some(libc::ENOENT) => format!(
            "the kernel has no IPVS scheduler {scheduler}: module ip_vs_{scheduler} is missing; virtual service {service} is not served"
        ),
        _ => format!("writing virtual service {service} failed: {error}"),
    }
}

fn without_direct_return(why: &str) -> String {
    format!(
        "the kernel refuses the rules of Direct Server Return: {why}; they need the module nft_nat and CONFIG_NF_CONNTRACK_ZONES; packets that other nodes encapsulate for backends here are lost until the agent starts with both"
    )
}

/// Adds a virtual service with a server, and removes it again.
fn probe(ipvs: &mut Ipvs, scheduler: Scheduler) -> Result<(), OpenError> {
    let service = Virtual::Address { protocol: Protocol::Tcp, address: PROBE };
    let scheduling =
        Scheduling { scheduler: scheduler.name().to_owned(), flags: 0, timeout: 0, netmask: u32::MAX };
    let server = Server { weight: 1, method: 0 };
    let made: io::Result<()> = ipvs.put_services(&[(&service, &scheduling)]).into_iter().collect();
    let made = made.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => OpenError::Scheduler(scheduler.name()),
        _ => OpenError::ipvs(error),
    });
    let answer = made.and_then(|()| {
        let put: io::Result<()> = ipvs.put_servers(&[(&service, PROBE, server)]).into_iter().collect();
        put.map_err(OpenError::ipvs)
    });
    let gone = ipvs.delete_service(&service).map_err(OpenError::ipvs);
    answer.and(gone)
}
