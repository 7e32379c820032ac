//! The parser for our table in the output of `nft --json`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use serde_json::Value;

use super::forged;
use super::text::{LAYOUT, TABLE, set_of_name};
use crate::dataplane::ipvs::state::{Element, Member, Set};
use crate::model::{Family, Protocol};

/// A table in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The name of the chain that identifies its layout; empty = an unknown layout.
    pub layout: String,
    /// The number of its rules.
    pub rules: usize,
    /// The members of its sets.
    pub members: BTreeMap<Member, Option<u32>>,
}

/// The error for output of an unexpected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the output of nft is unexpected: {0}")]
pub struct NotOurs(String);

/// Reads the table without unknown sets and elements. The agent makes a table with such sets anew.
pub fn parse(json: &str) -> Result<Found, NotOurs> {
    let value: Value = serde_json::from_str(json).map_err(|error| NotOurs(error.to_string()))?;
    let objects = value.get("nftables").and_then(Value::as_array);
    let objects = objects.ok_or_else(|| NotOurs("no list of objects".to_owned()))?;
    let mut found = Found::default();
    for object in objects {
        found.rules += usize::from(object.get("rule").is_some());
        if let Some(name) = object.get("chain").and_then(name).filter(|name| name.starts_with(LAYOUT)) {
            name.clone_into(&mut found.layout);
        }
        let Some(set) = object.get("set").or_else(|| object.get("map")) else { continue };
        let Some((kind, family)) = name(set).and_then(set_of_name) else { continue };
        let elements = set.get("elem").and_then(Value::as_array).into_iter().flatten();
        found.members.extend(elements.filter_map(|value| {
            let (element, mark) = read(kind, family, value)?;
            Some(((kind, element), mark))
        }));
    }
    Ok(found)
}

/// Returns the family and name of a foreign table with a rule that puts connections into this conntrack zone.
pub fn user_of_zone(json: &str, zone: u16) -> Option<String> {
    let value: Value = serde_json::from_str(json).ok()?;
    let rules = value.get("nftables")?.as_array()?.iter().filter_map(|object| object.get("rule"));
    let users = rules.filter(|rule| rule.get("expr").is_some_and(|rule| sets_zone(rule, zone)));
    let mut tables = users.filter_map(|rule| {
        Some(format!("{} {}", rule.get("family")?.as_str()?, rule.get("table")?.as_str()?))
    });
    tables.find(|table| table != TABLE)
}

fn sets_zone(expressions: &Value, zone: u16) -> bool {
    expressions.as_array().into_iter().flatten().filter_map(|one| one.get("mangle")).any(|mangle| {
        let key = mangle.pointer("/key/ct/key").and_then(Value::as_str);
        key == Some("zone") && mangle.get("value").and_then(Value::as_u64) == Some(zone.into())
    })
}

fn name(object: &Value) -> Option<&str> {
    object.get("name")?.as_str()
}

fn read(set: Set, family: Option<Family>, value: &Value) -> Option<(Element, Option<u32>)> {
    let pair = value.as_array().filter(|_| set.is_map());
    let (key, data) = match pair {
        Some(pair) => (pair.first()?, Some(pair.get(1)?)),
        None => (value, None),
    };
    // nft wraps an element with properties of its own.
    let key = key.get("elem").and_then(|wrapped| wrapped.get("val")).unwrap_or(key);
    if let Set::Targets | Set::NodeTargets = set {
        return target(family?, parts(key), parts(data?));
    }
    let number = match data {
        Some(data) => Some(number(data)?),
        None => None,
    };
    let element = match (set, parts(key)) {
        (Set::Uplinks, [device]) => Element::Device(device.as_str()?.to_owned()),
        (Set::Segments, [device]) => Element::FamilyDevice(family?, device.as_str()?.to_owned()),
        (Set::Vips | Set::Refusing | Set::Nodes | Set::FouNodes | Set::Encapsulated, [address]) => {
            Element::Address(self::address(address)?)
        }
        (Set::InnerDestinations, [number]) => Element::Address(forged::read(family?, number)?),
        (Set::Cluster | Set::Near | Set::Inside, [range]) => Element::Net(net(range)?),
        (Set::Allowed(_), [address, port, range]) => {
            Element::Range(SocketAddr::new(self::address(address)?, self::port(port)?), net(range)?)
        }
        (Set::Loop, [_, address, protocol, port]) | (_, [address, protocol, port]) => {
            place(address, protocol, port)?
        }
        _ => return None,
    };
    Some((element, number))
}

/// Returns the destination of inner packets. `key` is number, address, protocol and port; a NodePort has no
/// address.
fn target(family: Family, key: &[Value], backend: &[Value]) -> Option<(Element, Option<u32>)> {
    let (numbered, frontend, port) = match key {
        [number, ip, protocol, port] => (number, address(ip)?, (protocol, port)),
        [number, protocol, port] => (number, unspecified(family), (protocol, port)),
        _ => return None,
    };
    let [ip, backend] = backend else { return None };
    let element = Element::Target {
        number: number(numbered)?,
        protocol: protocol(port.0)?,
        frontend: SocketAddr::new(frontend, self::port(port.1)?),
        backend: address(ip)?,
    };
    Some((element, Some(self::port(backend)?.into())))
}

const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

fn parts(value: &Value) -> &[Value] {
    value.get("concat").and_then(Value::as_array).map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn number(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn place(ip: &Value, protocol: &Value, port: &Value) -> Option<Element> {
    Some(Element::Port(self::protocol(protocol)?, SocketAddr::new(address(ip)?, self::port(port)?)))
}

fn protocol(value: &Value) -> Option<Protocol> {
    match value {
        Value::String(name) => match name.as_str() {
            "tcp" => Some(Protocol::Tcp),
            "udp" => Some(Protocol::Udp),
            "sctp" => Some(Protocol::Sctp),
            number => Protocol::of_number(number.parse().ok()?),
        },
        number => Protocol::of_number(u16::try_from(number.as_u64()?).ok()?),
    }
}

fn port(value: &Value) -> Option<u16> {
    u16::try_from(value.as_u64()?).ok()
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// Reads a single address, a prefix, or the first and last address of a prefix.
fn net(value: &Value) -> Option<IpNet> {
    if let Some(prefix) = value.get("prefix") {
        let length = u8::try_from(prefix.get("len")?.as_u64()?).ok()?;
        return IpNet::new(address(prefix.get("addr")?)?, length).ok();
    }
    if let Some(ends) = value.get("range").and_then(Value::as_array) {
        let (first, last) = (address(ends.first()?)?, address(ends.get(1)?)?);
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let nets = (0..=longest).filter_map(|length| IpNet::new(first, length).ok());
        return nets.into_iter().find(|net| net.network() == first && net.broadcast() == last);
    }
    address(value).map(IpNet::from)
}
