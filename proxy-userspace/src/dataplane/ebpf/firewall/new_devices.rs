//! Rules of nftables that close the devices of pods that no agent has looked at yet.
//!
//! An agent attaches the programs to a device. Before it does, and while no agent runs, nothing else would judge a new pod.
//! The rules know devices by their kind, veth, and by their names. Those that the agent is done with are in a set of
//! indices: the kernel gives each device a new one. Packets that programs hand from device to device do not pass here.

use std::collections::BTreeSet;
use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use tracing::{debug, warn};

use crate::dataplane::netlink::Channel;
use crate::dataplane::netlink::nftables::{BRIDGE, INET, Table, Term, Transaction, elements};
use crate::node::{DevicePattern, device_name};

const NAME: &str = "millrace-firewall";
const SET: &str = "known-devices";
/// What nft takes the keys of the set for when it lists them: indices of devices.
const IFINDEX: u32 = 20;
/// Before connection tracking, and before anything that a person may have written.
const FIRST: i32 = -400;
/// Behind everything else.
const LAST: i32 = 400;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// A side of a device: the name of the chain, its hook in both families, and its priority.
struct Side {
    chain: &'static str,
    hook: u32,
    priority: i32,
    /// `NFT_META_*` of the device's index, kind and name.
    metas: [u32; 3],
}

const SIDES: [Side; 2] = [
    Side { chain: "from-device", hook: 0, priority: FIRST, metas: [4, 26, 6] },
    Side { chain: "to-device", hook: 4, priority: LAST, metas: [5, 27, 7] },
];

/// The rules, one table for packets of bridges and one for those that are routed.
#[derive(Debug)]
pub struct NewDevices {
    channel: Channel,
    /// The beginnings of names, as the rules compare them.
    names: Vec<Vec<u8>>,
    tables: [Rules; 2],
}

/// A table.
#[derive(Debug)]
struct Rules {
    table: Table,
    /// The devices in its set; `None` if there is no table, or none of this agent.
    held: Option<BTreeSet<u32>>,
    /// Why the kernel can't have it.
    refused: Option<String>,
}

impl NewDevices {
    /// Opens the socket. Nothing changes yet: rules of an earlier agent stay in force.
    pub fn open(patterns: &[DevicePattern]) -> io::Result<Self> {
        let mut names = Vec::new();
        for pattern in patterns {
            if let Some(name) = pattern.beginning() {
                names.push(name);
                continue;
            }
            warn!(
                %pattern,
                "new devices with such a name are open until they have their programs: nftables takes a * only at the end"
            );
        }
        let rules = |family| Rules { table: table(family), held: None, refused: None };
        Ok(Self { channel: Channel::open(NETLINK_NETFILTER)?, names, tables: [BRIDGE, INET].map(rules) })
    }

    /// Lets a device pass, where new ones are closed.
    pub fn pass(&mut self, devices: &BTreeSet<u32>) {
        for rules in &mut self.tables {
            let held = rules.held.clone().or_else(|| read(&mut self.channel, &rules.table).ok().flatten());
            let Some(held) = held else { continue };
            let new: Vec<u32> = devices.difference(&held).copied().collect();
            let mut transaction = Transaction::default();
            transaction.add(&rules.table, SET, &new);
            // The next call of `close` mends a failure.
            if transaction.commit(&mut self.channel).is_ok()
                && let Some(held) = &mut rules.held
            {
                held.extend(new);
            }
        }
    }

    /// Closes all devices of pods but these. Returns failures.
    pub fn close(&mut self, devices: &BTreeSet<u32>) -> Vec<String> {
        let mut failures = Vec::new();
        for rules in self.tables.iter_mut().filter(|rules| rules.refused.is_none()) {
            let closed = rules.close(&mut self.channel, &self.names, devices);
            match closed {
                Ok(()) => {}
                Err(error) if is_unknown(&error) => {
                    let words = rules.table.words();
                    warn!(%error, table = words, "new devices are open until they have their programs: the kernel can't have this table");
                    rules.refused = Some(error.to_string());
                }
                Err(error) => {
                    failures.push(format!("table {} can't be written: {error}", rules.table.words()));
                }
            }
        }
        failures
    }

    /// Closes no device any more. Returns failures.
    pub fn open_all(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        for rules in self.tables.iter_mut().filter(|rules| rules.refused.is_none()) {
            if let Err(error) = delete(&mut self.channel, &rules.table) {
                failures.push(format!("table {} can't be deleted: {error}", rules.table.words()));
            }
            rules.held = None;
        }
        failures
    }
}

impl Rules {
    fn close(&mut self, channel: &mut Channel, names: &[Vec<u8>], devices: &BTreeSet<u32>) -> io::Result<()> {
        let mut wanted = devices.clone();
        let found = read(channel, &self.table)?;
        let mut transaction = Transaction::default();
        match (&self.held, found) {
            (Some(held), Some(found)) if found == *held => {
                // A device that is down is none of the topology's, and must not lose its connections.
                wanted.extend(held.iter().filter(|device| device_name(**device).is_some()));
                let list = |devices: &BTreeSet<u32>, without: &BTreeSet<u32>| -> Vec<u32> {
                    devices.difference(without).copied().collect()
                };
                transaction.remove(&self.table, SET, &list(held, &wanted));
                transaction.add(&self.table, SET, &list(&wanted, held));
            }
            // Of an earlier agent, or somebody has changed it.
            _ => {
                write(&mut transaction, &self.table, names);
                transaction.add(&self.table, SET, &wanted.iter().copied().collect::<Vec<u32>>());
                debug!(table = self.table.words(), "made the rules for new devices");
            }
        }
        self.held = None;
        transaction.commit(channel)?;
        self.held = Some(wanted);
        Ok(())
    }
}

/// Deletes the rules.
pub fn remove() -> io::Result<()> {
    let mut channel = Channel::open(NETLINK_NETFILTER)?;
    [BRIDGE, INET].into_iter().try_for_each(|family| delete(&mut channel, &table(family)))
}

fn table(family: u8) -> Table {
    Table { family, name: NAME.to_owned() }
}

fn delete(channel: &mut Channel, table: &Table) -> io::Result<()> {
    let mut transaction = Transaction::default();
    transaction.delete_table(table);
    match transaction.commit(channel) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_unknown(&error) => Ok(()),
        deleted => deleted,
    }
}

fn read(channel: &mut Channel, table: &Table) -> io::Result<Option<BTreeSet<u32>>> {
    let number = |key: Vec<u8>| Some(u32::from_ne_bytes(key.get(..4)?.try_into().ok()?));
    let elements = match elements(channel, table, SET) {
        Err(error) if is_unknown(&error) => None,
        elements => elements?,
    };
    Ok(elements.map(|all| all.into_iter().filter_map(|element| number(element.key)).collect()))
}

/// Whether the kernel has no nftables, or not for this family.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT))
}

/// Returns what ARP and neighbour discovery match. A new pod tells by them that an address is its own now: without that, others
/// send to the pod that had it before.
fn of_neighbours() -> [Vec<Term>; 2] {
    const PROTOCOL: u32 = 1;
    const NEXT_HEADER: u32 = 6;
    const ICMP_TYPE: u32 = 40;
    let protocol = |number: u16| Term::Meta(PROTOCOL, number.to_be_bytes().to_vec());
    // Router solicitation to redirect.
    let discovery = Term::Byte(ICMP_TYPE, 133..=137);
    [vec![protocol(0x0806)], vec![protocol(0x86dd), Term::Byte(NEXT_HEADER, 58..=58), discovery]]
}

fn write(transaction: &mut Transaction, table: &Table, names: &[Vec<u8>]) {
    transaction.replace_table(table);
    transaction.set(table, SET, IFINDEX);
    for Side { chain, hook, priority, metas: [index, kind, name] } in SIDES {
        transaction.chain(table, chain, hook, priority);
        // Most packets end here.
        transaction.rule(table, chain, &[Term::MetaIn(index, SET.to_owned()), Term::Verdict(ACCEPT)]);
        for terms in of_neighbours() {
            transaction.rule(table, chain, &[terms, vec![Term::Verdict(ACCEPT)]].concat());
        }
        for beginning in names {
            let is_veth = Term::Meta(kind, b"veth\0".to_vec());
            let has_name = (!beginning.is_empty()).then(|| Term::Meta(name, beginning.clone()));
            let terms: Vec<Term> = [Some(is_veth), has_name, Some(Term::Counter), Some(Term::Verdict(DROP))]
                .into_iter()
                .flatten()
                .collect();
            transaction.rule(table, chain, &terms);
        }
    }
}
