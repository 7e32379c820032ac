//! All rules of nftables in this network namespace, those of iptables-nft included. No program is run.

mod expression;
mod transaction;

use std::collections::BTreeMap;
use std::io;

use netlink_packet_core::DecodeError;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Channel;
use super::attribute::{self, Attributes};
use super::nfnetlink::{GET_CHAIN, Message, NFTABLES};
use expression::data;

pub use expression::{Expression, Verdict};
pub use transaction::{BRIDGE, INET, Term, Transaction};

// Requests of `enum nf_tables_msg_types`.
const GET_RULE: u16 = NFTABLES | 7;
const GET_SET: u16 = NFTABLES | 0x0a;
const GET_SET_ELEMENTS: u16 = NFTABLES | 0x0d;

/// The rules of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// The chains.
    pub chains: Vec<Chain>,
    /// The sets that a rule looks something up in.
    pub sets: BTreeMap<(Table, String), Set>,
}

/// A table by its family, `NFPROTO_*`, and its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Table {
    /// The family.
    pub family: u8,
    /// The name.
    pub name: String,
}

/// A chain with its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// Where packets come from; none for a chain that only other chains jump to.
    pub base: Option<Base>,
    /// Its rules, in their order.
    pub rules: Vec<Rule>,
}

/// The hook of a base chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// `NF_INET_*`, or `NF_NETDEV_*` in a table of the family netdev.
    pub hook: u32,
    /// Chains with a lower number see a packet first.
    pub priority: i32,
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// What no rule decides is dropped.
    pub drops: bool,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its number, for `nft delete rule`.
    pub handle: u64,
    /// Its expressions, in their order.
    pub expressions: Vec<Expression>,
}

/// The elements of a set or a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// The keys are starts and ends of ranges.
    pub has_ranges: bool,
    /// The keys are of several parts.
    pub has_parts: bool,
    /// The elements.
    pub elements: Vec<Element>,
}

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its key.
    pub key: Vec<u8>,
    /// It ends the range before it.
    pub is_end: bool,
    /// The verdict of a verdict map.
    pub verdict: Option<Verdict>,
    /// The value of another map.
    pub value: Option<Vec<u8>>,
}

impl Table {
    /// Returns the words by which nft knows the table, such as `inet filter`.
    #[must_use]
    pub fn words(&self) -> String {
        let family = match self.family {
            1 => "inet",
            2 => "ip",
            3 => "arp",
            5 => "netdev",
            7 => "bridge",
            10 => "ip6",
            _ => "?",
        };
        format!("{family} {}", self.name)
    }
}

/// Reads all rules. Fails without CAP_NET_ADMIN, and if the kernel has no nftables.
pub fn ruleset() -> io::Result<Ruleset> {
    let mut channel = Channel::open(NETLINK_NETFILTER)?;
    let mut ruleset = Ruleset::default();
    for answer in channel.dump(Message::new(GET_CHAIN, 0, &[]))? {
        ruleset.chains.extend(answer.chain().map_err(|error| malformed(&error))?);
    }
    for answer in channel.dump(Message::new(GET_RULE, 0, &[]))? {
        let Some((table, name, rule)) = answer.rule().map_err(|error| malformed(&error))? else { continue };
        let mut chains = ruleset.chains.iter_mut();
        if let Some(chain) = chains.find(|chain| chain.table == table && chain.name == name) {
            chain.rules.push(rule);
        }
    }
    for answer in channel.dump(Message::new(GET_SET, 0, &[]))? {
        let Some((table, name, mut set)) = answer.set().map_err(|error| malformed(&error))? else { continue };
        // A large set is a list of sources or ports that no check asks for one by one.
        let names = [attribute::text(1, &table.name), attribute::text(2, &name)];
        for answer in channel.dump(Message::new(GET_SET_ELEMENTS, table.family, &names))? {
            set.elements.extend(answer.elements().map_err(|error| malformed(&error))?);
        }
        ruleset.sets.insert((table, name), set);
    }
    Ok(ruleset)
}

/// Reads the rules of one table, each with the name of its chain.
pub fn rules(channel: &mut Channel, table: &Table) -> io::Result<Vec<(String, Rule)>> {
    let mut rules = Vec::new();
    for answer in channel.dump(Message::new(GET_RULE, table.family, &[attribute::text(1, &table.name)]))? {
        let rule = answer.rule().map_err(|error| malformed(&error))?;
        rules.extend(rule.map(|(_, chain, rule)| (chain, rule)));
    }
    Ok(rules)
}

/// Returns the number of rules in a table.
pub fn count_rules(channel: &mut Channel, table: &Table) -> io::Result<usize> {
    channel
        .dump(Message::new(GET_RULE, table.family, &[attribute::text(1, &table.name)]))
        .map(|all| all.len())
}

/// Reads the elements of one set; `None` if it does not exist.
pub fn elements(channel: &mut Channel, table: &Table, set: &str) -> io::Result<Option<Vec<Element>>> {
    let names = [attribute::text(1, &table.name), attribute::text(2, set)];
    let answers = match channel.dump(Message::new(GET_SET_ELEMENTS, table.family, &names)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        answers => answers?,
    };
    let mut elements = Vec::new();
    for answer in answers {
        elements.extend(answer.elements().map_err(|error| malformed(&error))?);
    }
    Ok(Some(elements))
}

impl Message {
    /// Returns the table that attribute 1 names, as in chains, rules and sets.
    fn table(&self, attributes: &Attributes<'_>) -> Option<Table> {
        Some(Table { family: self.family(), name: attributes.text(1)? })
    }

    fn chain(&self) -> Result<Option<Chain>, DecodeError> {
        let attributes = self.attributes()?;
        let (Some(table), Some(name)) = (self.table(&attributes), attributes.text(3)) else {
            return Ok(None);
        };
        let hook = attributes.inside(4)?;
        let base = hook.be32(1).map(|number| Base {
            hook: number,
            priority: hook.be32(2).unwrap_or_default().cast_signed(),
            kind: attributes.text(7).unwrap_or_default(),
            drops: attributes.be32(5) == Some(0),
        });
        Ok(Some(Chain { table, name, base, rules: Vec::new() }))
    }

    fn rule(&self) -> Result<Option<(Table, String, Rule)>, DecodeError> {
        let attributes = self.attributes()?;
        let (Some(table), Some(chain)) = (self.table(&attributes), attributes.text(2)) else {
            return Ok(None);
        };
        let mut expressions = Vec::new();
        for element in attributes.inside(4)?.all(1) {
            let element = Attributes::parse(element)?;
            let name = element.text(1).unwrap_or_default();
            expressions.push(Expression::of(&name, &element.inside(2)?)?);
        }
        let handle = attributes.u64(3).map(u64::from_be).unwrap_or_default();
        Ok(Some((table, chain, Rule { handle, expressions })))
    }

    fn set(&self) -> Result<Option<(Table, String, Set)>, DecodeError> {
        const INTERVAL: u32 = 0x4;
        const CONCAT: u32 = 0x80;
        let attributes = self.attributes()?;
        let (Some(table), Some(name)) = (self.table(&attributes), attributes.text(2)) else {
            return Ok(None);
        };
        let flags = attributes.be32(3).unwrap_or_default();
        let set =
            Set { has_ranges: flags & INTERVAL != 0, has_parts: flags & CONCAT != 0, elements: Vec::new() };
        Ok(Some((table, name, set)))
    }

    fn elements(&self) -> Result<Vec<Element>, DecodeError> {
        const END: u32 = 1;
        let attributes = self.attributes()?;
        let list = attributes.inside(3)?;
        let read = |bytes| {
            let element = Attributes::parse(bytes)?;
            let (value, verdict) = data(&element, 2)?;
            Ok(Element {
                key: data(&element, 1)?.0.unwrap_or_default(),
                is_end: element.be32(3).unwrap_or_default() & END != 0,
                verdict,
                value,
            })
        };
        list.all(1).map(read).collect()
    }
}

fn malformed(error: &DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
