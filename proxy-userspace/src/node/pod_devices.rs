//! The networks behind the devices of pods: the addresses at the other end of each veth pair.
//!
//! The kernel numbers the network namespaces that this one has links to, and answers questions about them. So the agent
//! needs no help of the CNI, and no right to enter a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;

use futures_util::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use tokio::task::JoinHandle;

use super::state::{DeviceKind, Update};
use super::{NodeError, decode};

/// The other end of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FarEnd {
    /// This namespace's number for the other one.
    pub namespace: i32,
    /// The addresses there, without link-local ones.
    pub addresses: BTreeSet<IpAddr>,
}

/// A socket for questions about the devices of pods.
#[derive(Debug)]
pub struct PodDevices {
    handle: Handle,
    connection: JoinHandle<()>,
}

/// The other end of a device, by its index in its own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    namespace: i32,
    index: u32,
}

impl PodDevices {
    /// Opens the socket. Without strict checks, the kernel would ignore the namespace in a question, and answer for
    /// this one.
    pub fn open() -> Result<Self, NodeError> {
        let (connection, handle, _) =
            rtnetlink::new_connection_with_strict_check().map_err(NodeError::Open)?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    /// Returns the other end of each of these devices. A device without another end in another namespace is left out.
    pub async fn look(&self, devices: &BTreeSet<u32>) -> Result<BTreeMap<u32, FarEnd>, NodeError> {
        let mut places: BTreeMap<u32, Place> = BTreeMap::new();
        let mut links = pin!(self.handle.link().get().execute());
        while let Some(link) = links.try_next().await? {
            if let Some(place) = far_end(&link).filter(|_| devices.contains(&link.header.index)) {
                places.insert(link.header.index, place);
            }
        }
        let mut ends = BTreeMap::new();
        for (device, place) in places {
            let addresses = match self.addresses(place).await {
                // The pod ended meanwhile, and its namespace with it.
                Err(NodeError::Request(rtnetlink::Error::NetlinkError(_))) => continue,
                addresses => addresses?,
            };
            ends.insert(device, FarEnd { namespace: place.namespace, addresses });
        }
        Ok(ends)
    }

    /// Returns the names of all veth devices of this namespace, by index.
    pub async fn veths(&self) -> Result<BTreeMap<u32, String>, NodeError> {
        let mut veths = BTreeMap::new();
        let mut links = pin!(self.handle.link().get().execute());
        while let Some(link) = links.try_next().await? {
            if let Some(Update::Device(index, device)) = decode::device(&link)
                && device.kind == DeviceKind::Veth
            {
                veths.insert(index, device.name);
            }
        }
        Ok(veths)
    }

    /// Returns this namespace's own link-local IPv6 addresses.
    pub async fn link_local(&self) -> Result<BTreeSet<IpAddr>, NodeError> {
        let mut own = BTreeSet::new();
        let mut question = self.handle.address().get();
        question.message_mut().header.family = AddressFamily::Inet6;
        let mut answers = pin!(question.execute());
        while let Some(answer) = answers.try_next().await? {
            let addresses = answer.attributes.iter().filter_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            own.extend(addresses.filter(|_| answer.header.scope == AddressScope::Link));
        }
        Ok(own)
    }

    async fn addresses(&self, place: Place) -> Result<BTreeSet<IpAddr>, NodeError> {
        let mut addresses = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut question = self.handle.address().get();
            let message: &mut AddressMessage = question.message_mut();
            message.header.family = family;
            message.attributes.push(AddressAttribute::TargetNetNsId(place.namespace));
            let mut answers = pin!(question.execute());
            while let Some(answer) = answers.try_next().await? {
                if answer.header.index == place.index {
                    addresses.extend(decode::address(&answer));
                }
            }
        }
        Ok(addresses)
    }
}

impl Drop for PodDevices {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn far_end(link: &LinkMessage) -> Option<Place> {
    let (mut namespace, mut index) = (None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::LinkNetNsId(number) => namespace = Some(*number),
            LinkAttribute::Link(number) => index = Some(*number),
            _ => {}
        }
    }
    // Below 0: the kernel could not number the namespace.
    namespace.filter(|number| *number >= 0).zip(index).map(|(namespace, index)| Place { namespace, index })
}
