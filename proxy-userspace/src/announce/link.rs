//! One link: the addresses that this node competes for there, and what it does about them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy_common::addr::mapped;
use proxy_common::hash::mix;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::claim::{Act, Claim, Heard, Mac, Why};
use super::figures::{Change, Figures};
use super::frame::{self, Host};
use super::groups::Groups;
use super::rank::{Ranks, Wanted};
use super::socket::PacketSocket;
use crate::dataplane::ebpf::Announced;
use crate::node::mac_text;

/// What a host said on the link with this interface index.
pub type Said = (u32, IpAddr, Heard);

/// What all links share.
pub struct Shared {
    /// The addresses that the programs answer for.
    pub map: Announced,
    pub figures: Figures,
    /// The moment that all times are since.
    pub start: Instant,
}

impl Shared {
    /// Returns the time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A link.
pub struct Link {
    index: u32,
    name: String,
    host: Host,
    socket: Arc<PacketSocket>,
    reader: JoinHandle<()>,
    claims: BTreeMap<IpAddr, Claim>,
    groups: Groups,
}

impl Link {
    /// Opens a socket on a device, whose frames are read from now on.
    pub fn open(
        index: u32,
        name: &str,
        mac: Mac,
        said: mpsc::Sender<Said>,
        wanted: watch::Receiver<Option<Wanted>>,
    ) -> io::Result<Self> {
        let socket = Arc::new(PacketSocket::open(index)?);
        let reader = tokio::spawn(read(Arc::clone(&socket), (index, mac), said, wanted));
        Ok(Self {
            index,
            name: name.to_owned(),
            host: Host { mac, address: own_address(index) },
            socket,
            reader,
            claims: BTreeMap::new(),
            groups: Groups::of(index),
        })
    }

    /// Returns whether the device still has this name and MAC address.
    pub fn is(&self, name: &str, mac: Mac) -> bool {
        self.name == name && self.host.mac == mac
    }

    /// Gives up all addresses but the wanted ones. While not all objects could be read, it keeps those of an earlier agent.
    pub fn release_others(&mut self, wanted: &Wanted, shared: &mut Shared) {
        let is_gone = |address: &IpAddr, claim: &Claim| {
            wanted.is_over(*address) || !wanted.ranks.contains_key(address) && !claim.is_held()
        };
        let gone = self.claims.iter().filter(|(address, claim)| is_gone(address, claim));
        let gone: Vec<IpAddr> = gone.map(|(address, _)| *address).collect();
        for address in gone {
            if self.claims.remove(&address).is_some_and(|claim| claim.is_held()) {
                self.silence(address, shared);
                shared.figures.count(Change::Released);
                info!(%address, device = self.name, "no longer announced by this node");
            }
        }
    }

    /// Competes for these addresses, too. `answered` are those that the programs answer for already, with the MAC
    /// address in their answers.
    pub fn set_ranks(&mut self, ranks: &Ranks, answered: &BTreeMap<(IpAddr, u32), Mac>, shared: &mut Shared) {
        let now = shared.now();
        for (address, place) in ranks {
            if let Some(claim) = self.claims.get_mut(address) {
                claim.set_place(*place, now);
                continue;
            }
            let claim = match answered.get(&(*address, self.index)) {
                Some(mac) if self.answer(*address, shared) => {
                    debug!(%address, device = self.name, "announced by this node already");
                    self.join(*address);
                    if *mac != self.host.mac {
                        self.announce(*address, None);
                    }
                    Claim::adopted(*place, now, phase(*address))
                }
                _ => Claim::new(*place, now, phase(*address)),
            };
            self.claims.insert(*address, claim);
        }
    }

    /// Returns whether this node competes for an address here that another host has.
    pub fn waits_for(&self, address: IpAddr) -> bool {
        self.claims.get(&address).is_some_and(|claim| !claim.is_held())
    }

    /// Returns the time of the next [`tick`](Self::tick).
    pub fn due(&self) -> Option<Duration> {
        self.claims.values().map(Claim::due).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, shared: &mut Shared) {
        let now = shared.now();
        if self.host.address.is_none() && self.claims.keys().any(IpAddr::is_ipv6) {
            self.host.address = own_address(self.index);
        }
        let due = self.claims.iter_mut().filter(|(_, claim)| claim.due() <= now);
        let acts: Vec<(IpAddr, Vec<Act>)> = due.map(|(address, claim)| (*address, claim.tick(now))).collect();
        for (address, acts) in acts {
            self.act(address, acts, shared);
        }
    }

    /// Takes what another host said about an address.
    pub fn hear(&mut self, address: IpAddr, said: Heard, shared: &mut Shared) {
        let now = shared.now();
        if let Some(claim) = self.claims.get_mut(&address) {
            let acts = claim.hear(said, now);
            self.act(address, acts, shared);
        }
    }

    fn act(&mut self, address: IpAddr, acts: Vec<Act>, shared: &mut Shared) {
        for act in acts {
            match act {
                Act::Answer if self.answer(address, shared) => {
                    shared.figures.count(Change::Claimed);
                    info!(%address, device = self.name, "announced by this node");
                }
                Act::Answer => {
                    let now = shared.now();
                    if let Some(claim) = self.claims.get_mut(&address) {
                        claim.fail(now);
                    }
                    return;
                }
                Act::Silence(why) => {
                    self.silence(address, shared);
                    shared.figures.count(Change::Yielded);
                    self.tell(address, why);
                }
                Act::Announce(to) => self.announce(address, to),
                Act::Ask(to) => self.send(&frame::question(self.host, address, to)),
            }
        }
    }

    fn tell(&self, address: IpAddr, why: Why) {
        match why {
            Why::Yielded => info!(%address, device = self.name, "left to another node"),
            Why::StillHeld(mac) => {
                let host = mac_text(mac);
                warn!(
                    %address, device = self.name, host,
                    "another host answers for the address and does not let it go: a node without an agent, or a \
                     host with the same address; left to it until it is silent"
                );
            }
        }
    }

    /// Makes the programs answer. Returns whether they do.
    fn answer(&mut self, address: IpAddr, shared: &mut Shared) -> bool {
        if let Err(error) = shared.map.set(address, self.index, self.host.mac) {
            warn!(%address, device = self.name, %error, "can't be announced by this node");
            return false;
        }
        shared.figures.hold(address, &self.name);
        true
    }

    fn silence(&mut self, address: IpAddr, shared: &mut Shared) {
        if let Err(error) = shared.map.remove(address, self.index) {
            warn!(%address, device = self.name, %error, "still announced");
        }
        if let IpAddr::V6(address) = address
            && let Err(error) = self.groups.leave(address)
        {
            debug!(%address, device = self.name, %error, "can't leave the group in which hosts ask for the address");
        }
        shared.figures.release(address, &self.name);
    }

    /// Joins the group in which IPv6 hosts ask. What failed is tried again with each announcement.
    fn join(&mut self, address: IpAddr) {
        if let IpAddr::V6(address) = address
            && let Err(error) = self.groups.join(address)
        {
            warn!(%address, device = self.name, %error, "can't join the group in which hosts ask for the address");
        }
    }

    fn announce(&mut self, address: IpAddr, to: Option<Mac>) {
        self.join(address);
        for frame in frame::announcements(self.host, address, to) {
            self.send(&frame);
        }
    }

    /// A frame that can't be sent is lost, as on a link that is down: the next one is sent in its time.
    fn send(&self, frame: &[u8]) {
        if let Err(error) = self.socket.send(frame) {
            debug!(device = self.name, %error, "a frame is lost");
        }
    }

    /// Forgets the link. The programs go on answering, until the map says otherwise.
    pub fn forget(self, figures: &Figures) {
        for address in self.claims.keys() {
            figures.release(*address, &self.name);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Returns the time by which the questions for an address are late, so that those for many are not sent at once.
fn phase(address: IpAddr) -> Duration {
    const STEPS: u64 = 64;
    const STEP: Duration = Duration::from_millis(7);
    let [.., a, b] = mapped(address);
    let step = mix(u64::from(a) << 32 | u64::from(b)) % STEPS;
    STEP * u32::try_from(step).unwrap_or_default()
}

async fn read(
    socket: Arc<PacketSocket>,
    (index, mac): (u32, Mac),
    said: mpsc::Sender<Said>,
    wanted: watch::Receiver<Option<Wanted>>,
) {
    let is_wanted =
        |address: IpAddr| wanted.borrow().as_ref().is_some_and(|wanted| wanted.ranks.contains_key(&address));
    loop {
        match socket.receive().await {
            // A full channel loses a frame, as the network may.
            Ok(frame) => {
                if let Some((address, heard)) =
                    frame::read(&frame, mac).filter(|(address, _)| is_wanted(*address))
                {
                    let _ = said.try_send((index, address, heard));
                }
            }
            // A device that goes down says so once. One that is gone is taken from the topology.
            Err(error) => {
                debug!(index, %error, "a packet socket");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Returns the source of questions over IPv6: the link-local address of a device, or else another one.
fn own_address(index: u32) -> Option<Ipv6Addr> {
    let lines = fs::read_to_string("/proc/net/if_inet6").ok()?;
    let addresses: Vec<Ipv6Addr> = lines.lines().filter_map(|line| read_address(line, index)).collect();
    addresses.iter().find(|address| address.is_unicast_link_local()).or(addresses.first()).copied()
}

/// Reads a line of /proc/net/if_inet6: address, interface index, length of the prefix, scope and flags, hexadecimal.
fn read_address(line: &str, index: u32) -> Option<Ipv6Addr> {
    /// `IFA_F_TENTATIVE` and `IFA_F_DADFAILED` (linux/if_addr.h): another host may have the address.
    const UNUSABLE: u8 = 0x40 | 0x08;
    let mut words = line.split_whitespace();
    let address = Ipv6Addr::from(u128::from_str_radix(words.next()?, 16).ok()?);
    let device = u32::from_str_radix(words.next()?, 16).ok()?;
    let flags = u8::from_str_radix(words.nth(2)?, 16).ok()?;
    (device == index && flags & UNUSABLE == 0).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usable_addresses_of_a_device_are_read() {
        let lines = [
            "00000000000000000000000000000001 01 80 10 80       lo",
            "20010db8000000000000000000000007 0b 40 00 80     eth0",
            "fe80000000000000000000fffe000009 0b 40 20 c0     eth0",
            "fe80000000000000000000fffe000001 0b 40 20 80     eth0",
            "nonsense",
        ];
        let of = |index| lines.iter().filter_map(|line| read_address(line, index)).collect::<Vec<_>>();
        let expected = ["2001:db8::7", "fe80::ff:fe00:1"].map(|text| text.parse::<Ipv6Addr>().unwrap());
        assert_eq!(of(11), expected);
        assert!(of(12).is_empty());
    }
}
