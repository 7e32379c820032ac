//! Our table, as `nft --json` prints it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde_json::Value;

use super::text::{LAYOUT, set_of_name};
use crate::dataplane::ipvs::state::{Element, Member, Set};
use crate::model::Protocol;

/// A table that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Name of the chain that says which layout it has; empty = an unknown one.
    pub layout: String,
    /// Number of its rules.
    pub rules: usize,
    /// What is in its sets.
    pub members: BTreeMap<Member, Option<u32>>,
}

/// What was printed has another form than was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("can't be read: {0}")]
pub struct NotOurs(String);

/// Sets and elements that are not of ours are passed over: the table is made anew then.
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
        let Some((kind, _)) = name(set).and_then(set_of_name) else { continue };
        let elements = set.get("elem").and_then(Value::as_array).into_iter().flatten();
        found.members.extend(elements.filter_map(|value| {
            let (element, mark) = read(kind, value)?;
            Some(((kind, element), mark))
        }));
    }
    Ok(found)
}

fn name(object: &Value) -> Option<&str> {
    object.get("name")?.as_str()
}

fn read(set: Set, value: &Value) -> Option<(Element, Option<u32>)> {
    let pair = value.as_array().filter(|_| set == Set::Marks);
    let (key, mark) = match pair {
        Some(pair) => (pair.first()?, Some(u32::try_from(pair.get(1)?.as_u64()?).ok()?)),
        None => (value, None),
    };
    // An element with a property of its own is wrapped.
    let key = key.get("elem").and_then(|wrapped| wrapped.get("val")).unwrap_or(key);
    let parts = key.get("concat").and_then(Value::as_array).map_or(std::slice::from_ref(key), Vec::as_slice);
    let element = match (set, parts) {
        (Set::Uplinks, [device]) => Element::Device(device.as_str()?.to_owned()),
        (Set::Vips | Set::Refusing, [address]) => Element::Address(self::address(address)?),
        (Set::Cluster | Set::Inside, [range]) => Element::Net(net(range)?),
        (Set::Allowed, [address, protocol, port, range]) => match place(address, protocol, port)? {
            Element::Port(protocol, address) => Element::Range(protocol, address, net(range)?),
            _ => return None,
        },
        (Set::Loop, [_, address, protocol, port]) | (_, [address, protocol, port]) => {
            place(address, protocol, port)?
        }
        _ => return None,
    };
    Some((element, mark))
}

fn place(ip: &Value, protocol: &Value, port: &Value) -> Option<Element> {
    let protocol = match protocol {
        Value::String(name) => match name.as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            number => Protocol::of_number(number.parse().ok()?)?,
        },
        number => Protocol::of_number(u16::try_from(number.as_u64()?).ok()?)?,
    };
    let port = u16::try_from(port.as_u64()?).ok()?;
    Some(Element::Port(protocol, SocketAddr::new(address(ip)?, port)))
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// A single address, a prefix, or the first and last address of one.
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
