//! The requests to the kernel: dumps and route look-ups.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;

use futures_util::{Stream, TryStreamExt};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::NodeError;
use super::decode;
use super::state::{NodeState, Route};

/// Reads the whole state, except for the answers to route look-ups.
pub async fn dump(handle: &Handle) -> Result<NodeState, NodeError> {
    let mut state = NodeState::default();
    take(&mut state, handle.link().get().execute(), RouteNetlinkMessage::NewLink).await?;
    take(&mut state, handle.address().get().execute(), RouteNetlinkMessage::NewAddress).await?;
    for message in
        [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
    {
        take(&mut state, handle.route().get(message).execute(), RouteNetlinkMessage::NewRoute).await?;
    }
    take(&mut state, handle.neighbours().get().execute(), RouteNetlinkMessage::NewNeighbour).await?;
    Ok(state)
}

/// Reads the addresses of all devices, and nothing else.
pub async fn dump_addresses(handle: &Handle) -> Result<NodeState, NodeError> {
    let mut state = NodeState::default();
    take(&mut state, handle.address().get().execute(), RouteNetlinkMessage::NewAddress).await?;
    Ok(state)
}

/// Returns the kernel's route to each target, by its policy rules.
pub async fn routes(
    handle: &Handle,
    targets: impl Iterator<Item = IpAddr>,
) -> Result<BTreeMap<IpAddr, Route>, NodeError> {
    let mut routes = BTreeMap::new();
    for target in targets {
        if let Some(route) = lookup(handle, target).await? {
            routes.insert(target, route);
        }
    }
    Ok(routes)
}

async fn lookup(handle: &Handle, target: IpAddr) -> Result<Option<Route>, NodeError> {
    let mut message: RouteMessage = match target {
        IpAddr::V4(target) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(target, 32).build(),
        IpAddr::V6(target) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(target, 128).build(),
    };
    // A socket with strict checks refuses a question that has more than the destination.
    message.header.table = RouteHeader::RT_TABLE_UNSPEC;
    message.header.protocol = RouteProtocol::Unspec;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unspec;
    let mut answer = pin!(handle.route().get(message).execute());
    match answer.try_next().await {
        Ok(message) => Ok(message.as_ref().and_then(decode::route)),
        // Unreachable, prohibited or blackholed: the kernel's answers for no route.
        Err(rtnetlink::Error::NetlinkError(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn take<M>(
    state: &mut NodeState,
    dump: impl Stream<Item = Result<M, rtnetlink::Error>>,
    wrap: impl Fn(M) -> RouteNetlinkMessage,
) -> Result<(), NodeError> {
    let mut dump = pin!(dump);
    while let Some(message) = dump.try_next().await? {
        for update in decode::updates(&wrap(message)) {
            state.apply(update);
        }
    }
    Ok(())
}
