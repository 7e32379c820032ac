//! The expressions of nftables' rules, as far as they decide whether a rule applies.

use netlink_packet_core::DecodeError;

use crate::dataplane::netlink::attribute::Attributes;

/// An expression. A register is the offset of its first byte in the register file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads bytes of a header.
    Payload {
        /// Where the bytes go.
        register: usize,
        /// `NFT_PAYLOAD_*`: 1 is the network header, 2 the transport header.
        base: u32,
        /// The offset in the header.
        offset: usize,
        /// The number of bytes.
        length: usize,
    },
    /// Loads a fact about the packet.
    Meta {
        /// Where it goes.
        register: usize,
        /// `NFT_META_*`.
        key: u32,
    },
    /// Loads a fact of connection tracking.
    Connection {
        /// Where it goes.
        register: usize,
        /// `NFT_CT_*`.
        key: u32,
    },
    /// Loads a constant.
    Constant {
        /// Where it goes.
        register: usize,
        /// The bytes.
        value: Vec<u8>,
    },
    /// Masks bytes, and inverts some.
    Bitwise {
        /// Where the bytes come from.
        source: usize,
        /// Where they go.
        register: usize,
        /// The bits that are kept.
        mask: Vec<u8>,
        /// The bits that are inverted.
        xor: Vec<u8>,
    },
    /// Compares bytes.
    Compare {
        /// Where the bytes are.
        register: usize,
        /// `NFT_CMP_*`: equal, unequal, less, at most, more, at least.
        operation: u32,
        /// The other side.
        value: Vec<u8>,
    },
    /// Compares bytes with the ends of a range.
    Range {
        /// Where the bytes are.
        register: usize,
        /// The rule applies outside the range.
        is_inverted: bool,
        /// The first value.
        first: Vec<u8>,
        /// The last value.
        last: Vec<u8>,
    },
    /// Looks bytes up in a set.
    Lookup {
        /// The name of the set.
        set: String,
        /// Where the bytes are.
        register: usize,
        /// Where the map's value goes; none for a set.
        target: Option<usize>,
        /// The rule applies if the set does not have the bytes.
        is_inverted: bool,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// A match of iptables.
    Match {
        /// Its name.
        name: String,
        /// Its parameters, as the kernel has them.
        info: Vec<u8>,
    },
    /// Changes the mark of the packet.
    Mark,
    /// Decides nothing: counters, logs.
    Inert,
    /// May decide, by what is not known here.
    Opaque,
}

/// The end of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet goes on to the next base chain.
    Accept,
    /// The packet ends.
    Drop,
    /// The next rule follows.
    Continue,
    /// The chain that jumped here goes on.
    Return,
    /// Another chain follows, then the next rule.
    Jump(String),
    /// Another chain follows in place of this one.
    Goto(String),
    /// Another program decides.
    Queue,
}

impl Expression {
    /// Reads an expression from its name and its attributes.
    pub(super) fn of(name: &str, of: &Attributes<'_>) -> Result<Self, DecodeError> {
        /// The registers of a verdict are this one.
        const VERDICT: u32 = 0;
        let number = |kind| of.be32(kind).unwrap_or_default();
        let size = |kind| number(kind) as usize;
        let value = |kind| Ok::<_, DecodeError>(data(of, kind)?.0.unwrap_or_default());
        Ok(match name {
            "payload" if of.be32(1).is_some() => Self::Payload {
                register: register(number(1)),
                base: number(2),
                offset: size(3),
                length: size(4),
            },
            "meta" if of.be32(1).is_some() => Self::Meta { register: register(number(1)), key: number(2) },
            // NFT_META_MARK
            "meta" if number(2) == 3 => Self::Mark,
            "ct" if of.be32(1).is_some() => {
                Self::Connection { register: register(number(1)), key: number(2) }
            }
            "immediate" if number(1) == VERDICT => Self::Verdict(data(of, 2)?.1.unwrap_or(Verdict::Continue)),
            "immediate" => Self::Constant { register: register(number(1)), value: value(2)? },
            // Operation 0 is the one with mask and xor; the others shift.
            "bitwise" if number(6) == 0 => Self::Bitwise {
                source: register(number(1)),
                register: register(number(2)),
                mask: value(4)?,
                xor: value(5)?,
            },
            "cmp" => Self::Compare { register: register(number(1)), operation: number(2), value: value(3)? },
            "range" => Self::Range {
                register: register(number(1)),
                is_inverted: number(2) == 1,
                first: value(3)?,
                last: value(4)?,
            },
            "lookup" => Self::Lookup {
                set: of.text(1).unwrap_or_default(),
                register: register(number(2)),
                target: of.be32(3).map(register),
                is_inverted: number(5) & 1 != 0,
            },
            "reject" => Self::Verdict(Verdict::Drop),
            "match" => Self::Match { name: of.text(1).unwrap_or_default(), info: of.bytes(3).to_vec() },
            "target" => match of.text(1).unwrap_or_default().as_str() {
                "REJECT" | "DROP" => Self::Verdict(Verdict::Drop),
                "MARK" | "CONNMARK" => Self::Mark,
                _ => Self::Inert,
            },
            "queue" => Self::Verdict(Verdict::Queue),
            "counter" | "log" | "payload" | "meta" | "ct" | "nat" | "masq" | "redir" | "notrack"
            | "objref" | "last" | "dup" | "flow_offload" | "tproxy" | "fwd" => Self::Inert,
            _ => Self::Opaque,
        })
    }
}

/// Returns the offset of a register: four of 16 bytes behind the verdict, or the same bytes as 16 of four.
pub(super) const fn register(number: u32) -> usize {
    const FIRST_SHORT: u32 = 8;
    let number = if number < FIRST_SHORT { number * 4 } else { number - FIRST_SHORT + 4 };
    number as usize * 4
}

/// Returns the value and the verdict of a nested attribute.
pub(super) fn data(
    of: &Attributes<'_>,
    kind: u16,
) -> Result<(Option<Vec<u8>>, Option<Verdict>), DecodeError> {
    let inside = of.inside(kind)?;
    let value = inside.has(1).then(|| inside.bytes(1).to_vec());
    let verdict = inside.inside(2)?;
    let chain = || verdict.text(2).unwrap_or_default();
    let verdict = verdict.be32(1).map(|code| match code.cast_signed() {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        -3 => Verdict::Jump(chain()),
        -4 => Verdict::Goto(chain()),
        -5 => Verdict::Return,
        // The low half of NF_QUEUE; the number of the queue is in the high one.
        code if code >= 0 && code & 0xff == 3 => Verdict::Queue,
        _ => Verdict::Continue,
    });
    Ok((value, verdict))
}
