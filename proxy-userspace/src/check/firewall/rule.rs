//! Whether a rule applies to a packet: the expressions of nftables, over bytes of which some are unknown.

use std::cmp::Ordering;

use super::packet::{Bytes, Packet, put};
use crate::dataplane::netlink::nftables::{Element, Expression, Rule, Set, Verdict};

/// The length of the register file in bytes.
const REGISTERS: usize = 80;

/// Whether something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// It does not.
    No,
    /// That depends on what is not known.
    Maybe,
    /// It does.
    Yes,
}

impl Truth {
    const fn of(known: Option<bool>) -> Self {
        match known {
            Some(true) => Self::Yes,
            Some(false) => Self::No,
            None => Self::Maybe,
        }
    }

    const fn inverted_if(self, is_inverted: bool) -> Self {
        match self {
            Self::Yes if is_inverted => Self::No,
            Self::No if is_inverted => Self::Yes,
            truth => truth,
        }
    }
}

/// Returns whether a rule applies, and the verdicts that it may end with. `set` finds a set of the rule's table.
pub fn apply<'a>(
    rule: &'a Rule,
    packet: &mut Packet,
    set: impl Fn(&str) -> Option<&'a Set>,
) -> (Truth, Vec<&'a Verdict>) {
    let mut registers: Bytes = vec![None; REGISTERS];
    let mut truth = Truth::Yes;
    let mut verdicts = Vec::new();
    for expression in &rule.expressions {
        let holds = match expression {
            Expression::Verdict(verdict) => {
                verdicts.push(verdict);
                Truth::Yes
            }
            Expression::Lookup { set: name, register, target, is_inverted } => {
                let (holds, found) = look_up(set(name), &registers, *register);
                if let Some(target) = *target {
                    verdicts.extend(found.iter().filter_map(|element| element.verdict.as_ref()));
                    load(&mut registers, target, one_value(holds, &found));
                }
                holds.inverted_if(*is_inverted)
            }
            Expression::Mark => {
                packet.mark = None;
                Truth::Yes
            }
            other => step(other, packet, &mut registers),
        };
        truth = truth.min(holds);
        if truth == Truth::No {
            return (truth, Vec::new());
        }
    }
    (truth, verdicts)
}

/// Returns whether an expression that needs no set holds.
fn step(expression: &Expression, packet: &Packet, registers: &mut Bytes) -> Truth {
    match expression {
        Expression::Payload { register, base, offset, length } => {
            let header = match base {
                1 => packet.network(),
                2 => packet.transport(),
                _ => Bytes::new(),
            };
            let bytes = (*offset..offset + length).map(|at| header.get(at).copied().flatten());
            load(registers, *register, bytes.collect());
        }
        Expression::Meta { register, key } => load(registers, *register, meta(packet, *key)),
        Expression::Connection { register, key } => load(registers, *register, connection(packet, *key)),
        Expression::Constant { register, value } => {
            load(registers, *register, value.iter().copied().map(Some).collect());
        }
        Expression::Bitwise { source, register, mask, xor } => {
            let bytes = read(registers, *source, mask.len()).into_iter().zip(mask).zip(xor);
            let masked = bytes.map(|((byte, mask), xor)| match (byte, mask) {
                (_, 0) => Some(*xor),
                (byte, mask) => byte.map(|byte| byte & mask ^ xor),
            });
            load(registers, *register, masked.collect());
        }
        Expression::Compare { register, operation, value } => {
            return compare(&read(registers, *register, value.len()), *operation, value);
        }
        Expression::Range { register, is_inverted, first, last } => {
            let bytes: Option<Vec<u8>> = read(registers, *register, first.len()).into_iter().collect();
            return Truth::of(bytes.map(|bytes| *first <= bytes && bytes <= *last)).inverted_if(*is_inverted);
        }
        Expression::Match { name, info } => return of_iptables(name, info, packet),
        Expression::Opaque => return Truth::Maybe,
        Expression::Lookup { .. } | Expression::Verdict(_) | Expression::Mark | Expression::Inert => {}
    }
    Truth::Yes
}

fn load(registers: &mut Bytes, at: usize, bytes: Bytes) {
    for (target, byte) in registers.iter_mut().skip(at).zip(bytes) {
        *target = byte;
    }
}

fn read(registers: &Bytes, at: usize, length: usize) -> Bytes {
    (at..at + length).map(|at| registers.get(at).copied().flatten()).collect()
}

/// Returns the bytes of a fact: `NFT_META_*`. Those that are not known here are unknown.
fn meta(packet: &Packet, key: u32) -> Bytes {
    /// IFNAMSIZ
    const NAME: usize = 16;
    let known = |bytes: Vec<u8>| bytes.into_iter().map(Some).collect();
    let device = |name: &Option<String>| {
        let Some(name) = name else { return vec![None; NAME] };
        let mut bytes = vec![Some(0); NAME];
        put(&mut bytes, 0, name.as_bytes());
        bytes
    };
    match key {
        1 => known(if packet.is_v6 { vec![0x86, 0xdd] } else { vec![0x08, 0x00] }),
        3 => packet.mark.map_or_else(|| vec![None; 4], |mark| known(mark.to_ne_bytes().to_vec())),
        6 => device(&packet.input),
        7 => device(&packet.output),
        15 => known(vec![if packet.is_v6 { 10 } else { 2 }]),
        16 => known(vec![packet.protocol]),
        _ => vec![None; NAME],
    }
}

/// Returns the bytes of a fact of connection tracking: `NFT_CT_*`, of which 0 is the state.
fn connection(packet: &Packet, key: u32) -> Bytes {
    match key {
        0 => (packet.state as u32).to_ne_bytes().map(Some).to_vec(),
        _ => vec![None; 16],
    }
}

fn compare(bytes: &Bytes, operation: u32, value: &[u8]) -> Truth {
    if operation < 2 {
        // One byte that differs decides, whatever the others are.
        let differs = bytes.iter().zip(value).any(|(byte, value)| byte.is_some_and(|byte| byte != *value));
        let is_known = bytes.iter().all(Option::is_some);
        let equal = if differs { Some(false) } else { is_known.then_some(true) };
        return Truth::of(equal).inverted_if(operation == 1);
    }
    let known: Option<Vec<u8>> = bytes.iter().copied().collect();
    Truth::of(known.map(|known| {
        matches!(
            (operation, known.as_slice().cmp(value)),
            (2, Ordering::Less)
                | (3, Ordering::Less | Ordering::Equal)
                | (4, Ordering::Greater)
                | (5, Ordering::Greater | Ordering::Equal)
        )
    }))
}

/// Returns whether a set has the bytes at a register, and the elements that may be meant.
fn look_up<'a>(set: Option<&'a Set>, registers: &Bytes, register: usize) -> (Truth, Vec<&'a Element>) {
    let Some(set) = set else { return (Truth::Maybe, Vec::new()) };
    let all = || set.elements.iter().filter(|element| !element.is_end).collect();
    let length = set.elements.first().map_or(0, |element| element.key.len());
    let bytes = read(registers, register, length);
    if set.has_ranges && set.has_parts {
        return (Truth::Maybe, all());
    }
    if set.has_ranges {
        let Some(key) = bytes.into_iter().collect::<Option<Vec<u8>>>() else { return (Truth::Maybe, all()) };
        // Starts and ends are elements of their own. The one below or at the key says on which side it is.
        let below = set.elements.iter().filter(|element| element.key <= key);
        let found = below.max_by(|a, b| a.key.cmp(&b.key).then(b.is_end.cmp(&a.is_end)));
        return match found.filter(|element| !element.is_end) {
            Some(element) => (Truth::Yes, vec![element]),
            None => (Truth::No, Vec::new()),
        };
    }
    let holds = |element: &&Element| compare(&bytes, 0, &element.key);
    let found: Vec<&Element> = set.elements.iter().filter(|element| holds(element) > Truth::No).collect();
    (found.iter().map(holds).max().unwrap_or(Truth::No), found)
}

/// Returns the bytes of a map's value, if only one can be meant.
fn one_value(holds: Truth, found: &[&Element]) -> Bytes {
    match (holds, found) {
        (Truth::Yes, [element]) => element.value.iter().flatten().copied().map(Some).collect(),
        _ => vec![None; 16],
    }
}

/// Returns whether a match of iptables holds: `struct xt_*` of the kernel, in the machine's byte order.
fn of_iptables(name: &str, info: &[u8], packet: &Packet) -> Truth {
    let short = |at: usize| info.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
    let word = |at: usize| info.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let known = match name {
        "comment" => Some(true),
        "tcp" | "udp" => return ports(info, packet),
        // struct xt_mark_mtinfo1: mark, mask, invert.
        "mark" => packet.mark.and_then(|mark| {
            let is_inverted = *info.get(8)? != 0;
            Some((mark & word(4)? == word(0)?) != is_inverted)
        }),
        // struct xt_conntrack_mtinfo3: eight addresses and masks, times and ports, then what is asked for. Only
        // the state alone is known.
        "conntrack" => short(146).filter(|asked| *asked == 1).and_then(|_| {
            let is_inverted = short(148)? & 1 != 0;
            Some((u32::from(short(150)?) & packet.state as u32 != 0) != is_inverted)
        }),
        _ => None,
    };
    Truth::of(known)
}

/// Returns whether a match of ports holds: `struct xt_tcp` and `struct xt_udp` begin alike.
fn ports(info: &[u8], packet: &Packet) -> Truth {
    let short = |at: usize| info.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
    let is_tcp = info.len() > 10;
    let inverted = info.get(if is_tcp { 11 } else { 8 }).copied().unwrap_or_default();
    let mut truth = Truth::Yes;
    for (at, address, bit) in [(0, packet.source, 1), (4, packet.destination, 2)] {
        let (Some(first), Some(last)) = (short(at), short(at + 2)) else { return Truth::Maybe };
        if (first, last) == (0, u16::MAX) {
            continue;
        }
        let within = address.map(|address| first <= address.port() && address.port() <= last);
        truth = truth.min(Truth::of(within).inverted_if(inverted & bit != 0));
    }
    // Flags and options of TCP: the mask of the flags, and an option's number.
    let asks_more = is_tcp
        && (info.get(8).is_some_and(|option| *option != 0) || info.get(9).is_some_and(|mask| *mask != 0));
    if asks_more { truth.min(Truth::Maybe) } else { truth }
}
