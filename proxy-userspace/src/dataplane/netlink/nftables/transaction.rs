//! Changes of nftables' tables, carried out all or not at all.

use std::io;
use std::ops::RangeInclusive;

use netlink_packet_core::{DefaultNla, NLM_F_APPEND, NLM_F_CREATE};

use super::super::Channel;
use super::super::attribute::{be32, bytes, nested, text};
use super::super::nfnetlink::{Message, NFTABLES};
use super::Table;

/// `NFPROTO_INET`: packets that are routed.
pub const INET: u8 = 1;
/// `NFPROTO_BRIDGE`: frames on bridges.
pub const BRIDGE: u8 = 7;

// Requests of `enum nf_tables_msg_types`.
const NEW_TABLE: u16 = NFTABLES;
const DELETE_TABLE: u16 = NFTABLES | 2;
const NEW_CHAIN: u16 = NFTABLES | 3;
const NEW_RULE: u16 = NFTABLES | 6;
const NEW_SET: u16 = NFTABLES | 9;
const NEW_ELEMENTS: u16 = NFTABLES | 0x0c;
const DELETE_ELEMENTS: u16 = NFTABLES | 0x0e;

/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;
/// `NFT_REG_1`, of 16 bytes.
const REGISTER: u32 = 1;
/// Elements in one message. The length of an attribute has 16 bits.
const ELEMENTS: usize = 1_000;

/// A list of changes.
#[derive(Debug, Default)]
pub struct Transaction(Vec<(Message, u16)>);

/// A match or a verdict of a rule that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// The first bytes of a fact about the packet, `NFT_META_*`, are these.
    Meta(u32, Vec<u8>),
    /// A byte behind the beginning of the network header, from the first value to the last one.
    Byte(u32, RangeInclusive<u8>),
    /// A fact about the packet is in a set.
    MetaIn(u32, String),
    /// Counts packets.
    Counter,
    /// `NF_DROP` or `NF_ACCEPT`.
    Verdict(u32),
}

impl Transaction {
    /// Makes a table anew, and empty.
    pub fn replace_table(&mut self, table: &Table) {
        // It can't be deleted if it does not exist.
        self.table(table);
        self.delete_table(table);
        self.table(table);
    }

    /// Deletes a table, which must exist.
    pub fn delete_table(&mut self, table: &Table) {
        self.push(DELETE_TABLE, table, &[], 0);
    }

    /// Makes a set of keys of 32 bits in the machine's byte order.
    pub fn set(&mut self, table: &Table, name: &str, key_type: u32) {
        const ID: u16 = 10;
        self.push(
            NEW_SET,
            table,
            &[text(2, name), be32(3, 0), be32(4, key_type), be32(5, 4), be32(ID, 1)],
            NLM_F_CREATE,
        );
    }

    /// Adds elements to a set.
    pub fn add(&mut self, table: &Table, set: &str, keys: &[u32]) {
        self.elements(NEW_ELEMENTS, table, set, keys, NLM_F_CREATE);
    }

    /// Removes elements from a set, which must have them.
    pub fn remove(&mut self, table: &Table, set: &str, keys: &[u32]) {
        self.elements(DELETE_ELEMENTS, table, set, keys, 0);
    }

    /// Makes a base chain of the type filter at a hook, `NF_INET_*` or `NF_BR_*`.
    pub fn chain(&mut self, table: &Table, name: &str, hook: u32, priority: i32) {
        let hook = nested(4, &[be32(1, hook), be32(2, priority.cast_unsigned())]);
        self.push(NEW_CHAIN, table, &[text(3, name), hook, text(7, "filter")], NLM_F_CREATE);
    }

    /// Appends a rule to a chain.
    pub fn rule(&mut self, table: &Table, chain: &str, terms: &[Term]) {
        let expressions: Vec<DefaultNla> = terms.iter().flat_map(Term::expressions).collect();
        self.push(NEW_RULE, table, &[text(2, chain), nested(4, &expressions)], NLM_F_CREATE | NLM_F_APPEND);
    }

    /// Carries the changes out. Fails without CAP_NET_ADMIN, if the kernel has no nftables or not this family, and if a table
    /// or an element that is to go does not exist.
    pub fn commit(self, channel: &mut Channel) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        channel.transact(Message::frame(), self.0)
    }

    fn table(&mut self, table: &Table) {
        self.push(NEW_TABLE, table, &[], NLM_F_CREATE);
    }

    fn elements(&mut self, kind: u16, table: &Table, set: &str, keys: &[u32], flags: u16) {
        for keys in keys.chunks(ELEMENTS) {
            let key = |key: &u32| nested(ELEMENT, &[nested(1, &[bytes(1, &key.to_ne_bytes())])]);
            let list: Vec<DefaultNla> = keys.iter().map(key).collect();
            self.push(kind, table, &[text(2, set), nested(3, &list)], flags);
        }
    }

    fn push(&mut self, kind: u16, table: &Table, attributes: &[DefaultNla], flags: u16) {
        let all: Vec<DefaultNla> =
            std::iter::once(text(1, &table.name)).chain(attributes.iter().cloned()).collect();
        self.0.push((Message::new(kind, table.family, &all), flags));
    }
}

impl Term {
    fn expressions(&self) -> Vec<DefaultNla> {
        // NFT_CMP_*
        const EQUAL: u32 = 0;
        const AT_MOST: u32 = 3;
        const AT_LEAST: u32 = 5;
        const NETWORK: u32 = 1;
        let load = |key: u32| expression("meta", &[be32(1, REGISTER), be32(2, key)]);
        let compare = |operation: u32, value: &[u8]| {
            expression("cmp", &[be32(1, REGISTER), be32(2, operation), nested(3, &[bytes(1, value)])])
        };
        match self {
            Self::Meta(key, value) => vec![load(*key), compare(EQUAL, value)],
            Self::Byte(offset, values) => {
                let place = [be32(1, REGISTER), be32(2, NETWORK), be32(3, *offset), be32(4, 1)];
                let (first, last) =
                    (compare(AT_LEAST, &[*values.start()]), compare(AT_MOST, &[*values.end()]));
                vec![expression("payload", &place), first, last]
            }
            Self::MetaIn(key, set) => {
                vec![load(*key), expression("lookup", &[text(1, set), be32(2, REGISTER)])]
            }
            Self::Counter => vec![expression("counter", &[])],
            Self::Verdict(code) => {
                // Register 0 is that of the verdict.
                vec![expression("immediate", &[be32(1, 0), nested(2, &[nested(2, &[be32(1, *code)])])])]
            }
        }
    }
}

fn expression(name: &str, data: &[DefaultNla]) -> DefaultNla {
    nested(ELEMENT, &[text(1, name), nested(2, data)])
}
