//! Rules of nftables that close the devices of pods that no agent has looked at yet.
//!
//! An agent attaches the programs to a device. Before it does, and while no agent runs, nothing else would judge a new pod.
//! The rules know devices by their kind, veth, and by their names. Those that the agent is done with are in a set of
//! indices: the kernel gives each device a new one. Packets that programs hand from device to device do not pass here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;

use netlink_sys::protocols::NETLINK_NETFILTER;
use tracing::{debug, warn};

use crate::dataplane::netlink::Channel;
use crate::dataplane::netlink::nftables::{
    BRIDGE, Expression, INET, Rule, Table, Term, Transaction, Verdict, count_rules, elements, rules,
};
use crate::node::{DevicePattern, device_name};

/// The name of both tables.
pub const NAME: &str = "millrace-firewall";
const SET: &str = "known-devices";
/// The type of the keys when nft lists the set: indices of devices.
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
    /// The types of neighbour discovery that pass.
    neighbours: &'static [RangeInclusive<u8>],
}

const FROM_DEVICE: Side = Side {
    chain: "from-device",
    hook: 0,
    priority: FIRST,
    metas: [4, 26, 6],
    neighbours: &[133..=133, 135..=136],
};
const TO_DEVICE: Side =
    Side { chain: "to-device", hook: 4, priority: LAST, metas: [5, 27, 7], neighbours: &[133..=137] };

/// The rules, one table for packets of bridges and one for those that are routed.
#[derive(Debug)]
pub struct NewDevices {
    channel: Channel,
    /// The beginnings of names, as the rules compare them.
    names: Vec<Vec<u8>>,
    tables: [Rules; 2],
}

/// The rules as the kernel has them, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewDevicesView(Vec<Closing>);

/// A table that closes devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Closing {
    /// The beginnings of the names that it closes.
    names: Vec<Vec<u8>>,
    /// The devices that pass.
    passing: BTreeSet<u32>,
}

/// What has become of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There may be one.
    Possible,
    /// There is none: new devices are open.
    Deleted,
    /// The kernel can't have it.
    Refused,
}

/// A table.
#[derive(Debug)]
struct Rules {
    table: Table,
    /// The devices in its set; `None` if there is no table, or none of this agent.
    held: Option<BTreeSet<u32>>,
    /// The number of its rules.
    written: usize,
    state: State,
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
        let rules = |family| Rules { table: table(family), held: None, written: 0, state: State::Possible };
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
        for rules in self.tables.iter_mut().filter(|rules| rules.state != State::Refused) {
            rules.state = State::Possible;
            match rules.close(&mut self.channel, &self.names, devices) {
                Ok(()) => {}
                // The table was written anew, so it is no table of somebody else that is missing.
                Err(error) if is_unknown(&error) || is_absent(&error) => {
                    let words = rules.table.words();
                    warn!(%error, table = words, "new devices are open until they have their programs: the kernel can't have this table");
                    rules.state = State::Refused;
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
        for rules in self.tables.iter_mut().filter(|rules| rules.state == State::Possible) {
            match delete(&mut self.channel, &rules.table) {
                Ok(()) => rules.state = State::Deleted,
                Err(error) => {
                    failures.push(format!("table {} can't be deleted: {error}", rules.table.words()));
                }
            }
            rules.held = None;
        }
        failures
    }
}

impl NewDevicesView {
    /// Reads the rules. A kernel without nftables has none. Fails without CAP_NET_ADMIN.
    pub fn read() -> io::Result<Self> {
        let mut channel = match Channel::open(NETLINK_NETFILTER) {
            Err(error) if is_unknown(&error) => return Ok(Self::default()),
            channel => channel?,
        };
        let mut view = Self::default();
        for table in [BRIDGE, INET].map(table) {
            let Some(passing) = read(&mut channel, &table)? else { continue };
            let rules = rules(&mut channel, &table)?;
            // Both chains close the same devices.
            let of_one = rules.iter().filter(|(chain, _)| *chain == FROM_DEVICE.chain);
            view.0
                .push(Closing { names: of_one.filter_map(|(_, rule)| closed_name(rule)).collect(), passing });
        }
        Ok(view)
    }

    /// Returns those of some veth devices, with their names, that are closed.
    #[must_use]
    pub fn closed(&self, veths: BTreeMap<u32, String>) -> BTreeMap<u32, String> {
        let mut closed = veths;
        closed.retain(|device, name| self.0.iter().any(|table| table.closes(*device, name)));
        closed
    }
}

impl Closing {
    fn closes(&self, device: u32, name: &str) -> bool {
        let name = [name.as_bytes(), &[0]].concat();
        !self.passing.contains(&device) && self.names.iter().any(|beginning| name.starts_with(beginning))
    }
}

impl Rules {
    fn close(&mut self, channel: &mut Channel, names: &[Vec<u8>], devices: &BTreeSet<u32>) -> io::Result<()> {
        let found = read(channel, &self.table)?;
        let mut wanted = devices.clone();
        // What passed goes on to pass, also in the hands of a new agent. A device that is down is none of the topology's.
        let passed = self.held.iter().chain(&found).flatten().copied();
        wanted.extend(passed.filter(|device| device_name(*device).is_some()));
        let held = self.held.take();
        if let Some(found) = found.filter(|found| held.as_ref() == Some(found))
            && count_rules(channel, &self.table)? == self.written
            && self.change(channel, &found, &wanted).is_ok()
        {
            self.held = Some(wanted);
            return Ok(());
        }
        // Of an earlier agent, or somebody has changed it.
        let mut transaction = Transaction::default();
        self.written = write(&mut transaction, &self.table, names);
        transaction.add(&self.table, SET, &wanted.iter().copied().collect::<Vec<u32>>());
        transaction.commit(channel)?;
        debug!(table = self.table.words(), "made the rules for new devices");
        self.held = Some(wanted);
        Ok(())
    }

    /// Brings the set from these devices to those.
    fn change(&self, channel: &mut Channel, held: &BTreeSet<u32>, wanted: &BTreeSet<u32>) -> io::Result<()> {
        let list = |devices: &BTreeSet<u32>, without: &BTreeSet<u32>| -> Vec<u32> {
            devices.difference(without).copied().collect()
        };
        let mut transaction = Transaction::default();
        transaction.remove(&self.table, SET, &list(held, wanted));
        transaction.add(&self.table, SET, &list(wanted, held));
        transaction.commit(channel)
    }
}

/// Deletes the rules.
pub fn remove() -> io::Result<()> {
    let mut channel = match Channel::open(NETLINK_NETFILTER) {
        Err(error) if is_unknown(&error) => return Ok(()),
        channel => channel?,
    };
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
        // Without nftables, the kernel does not know the question.
        Err(error) if is_unknown(&error) || is_absent(&error) => None,
        elements => elements?,
    };
    Ok(elements.map(|all| all.into_iter().filter_map(|element| number(element.key)).collect()))
}

/// Whether the kernel has no nftables, or not for this family.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT))
}

/// Returns what ARP and neighbour discovery match. A new pod tells by them that an address is its own now: without that, others
/// send to the pod that had it before. No pod is a router, so none sends advertisements of one (134) or redirects (137).
fn of_neighbours(kinds: &[RangeInclusive<u8>]) -> Vec<Vec<Term>> {
    const PROTOCOL: u32 = 1;
    const NEXT_HEADER: u32 = 6;
    const HOP_LIMIT: u32 = 7;
    const ICMP_TYPE: u32 = 40;
    let protocol = |number: u16| Term::Meta(PROTOCOL, number.to_be_bytes().to_vec());
    let discovery = kinds.iter().map(|kinds| {
        let is_from_link = Term::Byte(HOP_LIMIT, 255..=255);
        vec![
            protocol(0x86dd),
            Term::Byte(NEXT_HEADER, 58..=58),
            is_from_link,
            Term::Byte(ICMP_TYPE, kinds.clone()),
        ]
    });
    std::iter::once(vec![protocol(0x0806)]).chain(discovery).collect()
}

/// Whether the kernel has not all that a table needs.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT))
}

/// Returns the beginning of the names that a rule closes; `None` if it closes nothing. The inverse of [`write()`].
fn closed_name(rule: &Rule) -> Option<Vec<u8>> {
    rule.expressions.iter().find(|one| **one == Expression::Verdict(Verdict::Drop))?;
    // The kind of the device comes first.
    let mut values = rule.expressions.iter().filter_map(|expression| match expression {
        Expression::Compare { value, .. } => Some(value),
        _ => None,
    });
    values.next().map(|_| values.next().cloned().unwrap_or_default())
}

/// Makes a table. Returns the number of its rules.
fn write(transaction: &mut Transaction, table: &Table, names: &[Vec<u8>]) -> usize {
    let mut rules = 0;
    let mut rule = |transaction: &mut Transaction, chain: &str, terms: &[Term]| {
        transaction.rule(table, chain, terms);
        rules += 1;
    };
    transaction.replace_table(table);
    transaction.set(table, SET, IFINDEX);
    for Side { chain, hook, priority, metas: [index, kind, name], neighbours } in [FROM_DEVICE, TO_DEVICE] {
        transaction.chain(table, chain, hook, priority);
        // Most packets end here.
        rule(transaction, chain, &[Term::MetaIn(index, SET.to_owned()), Term::Verdict(ACCEPT)]);
        for terms in of_neighbours(neighbours) {
            rule(transaction, chain, &[terms, vec![Term::Verdict(ACCEPT)]].concat());
        }
        for beginning in names {
            let is_veth = Term::Meta(kind, b"veth\0".to_vec());
            let has_name = (!beginning.is_empty()).then(|| Term::Meta(name, beginning.clone()));
            let terms: Vec<Term> = [Some(is_veth), has_name, Some(Term::Counter), Some(Term::Verdict(DROP))]
                .into_iter()
                .flatten()
                .collect();
            rule(transaction, chain, &terms);
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(values: &[&[u8]], verdict: Verdict) -> Rule {
        let load = |key| Expression::Meta { register: 16, key };
        let compare =
            |value: &&[u8]| Expression::Compare { register: 16, operation: 0, value: value.to_vec() };
        let mut expressions: Vec<Expression> =
            values.iter().flat_map(|value| [load(26), compare(value)]).collect();
        expressions.extend([Expression::Inert, Expression::Verdict(verdict)]);
        Rule { handle: 1, expressions }
    }

    #[test]
    fn the_names_of_a_rule_are_those_that_it_was_written_for() {
        assert_eq!(closed_name(&rule(&[b"veth\0", b"veth"], Verdict::Drop)), Some(b"veth".to_vec()));
        assert_eq!(closed_name(&rule(&[b"veth\0"], Verdict::Drop)), Some(Vec::new()), "all names");
        assert_eq!(closed_name(&rule(&[&[8, 6]], Verdict::Accept)), None, "ARP passes");
        assert_eq!(closed_name(&rule(&[], Verdict::Drop)), None, "a rule of somebody else");
    }

    #[test]
    fn devices_are_closed_by_their_names_unless_an_agent_is_done_with_them() {
        let table = |names: &[&str], passing: &[u32]| Closing {
            names: names.iter().map(|name| name.as_bytes().to_vec()).collect(),
            passing: passing.iter().copied().collect(),
        };
        let veths = || {
            let all = [(3, "veth1"), (4, "veth2"), (5, "eth9"), (6, "kube-bridge"), (7, "kube-bridge2")];
            all.map(|(device, name)| (device, name.to_owned())).into_iter().collect()
        };
        let closed = |tables: Vec<Closing>| -> Vec<u32> {
            NewDevicesView(tables).closed(veths()).into_keys().collect()
        };
        assert_eq!(closed(Vec::new()), [0; 0]);
        assert_eq!(closed(vec![table(&["veth", "kube-bridge\0"], &[3])]), [4, 6]);
        assert_eq!(
            closed(vec![table(&["veth"], &[3, 4]), table(&["veth"], &[3])]),
            [4],
            "one table is enough"
        );
        assert_eq!(closed(vec![table(&[""], &[3, 4, 5, 6])]), [7]);
    }
}
