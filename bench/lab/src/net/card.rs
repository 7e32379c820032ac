//! Network cards of the machine, as the bed's wires. QEMU joins them in pairs:
//! `cargo xtask vm -- drivers`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::runtime::Builder;

use super::{Namespace, Netlink};
use crate::frame::Mac;
use crate::patience::patience;

/// The longest time until the cards of a removed namespace are back.
const RETURN_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// An end of the wire between a node and the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardEnd {
    /// The node's uplink.
    Node = 0,
    /// The router's port.
    Router = 1,
}

/// Returns the address of a card. xtask gives the cards of its machines these addresses.
const fn mac(node: u8, end: CardEnd) -> Mac {
    [0x52, 0x54, 0x00, 0xd0, node, end as u8]
}

/// Moves a card of the machine into a namespace, and names it. It is down afterwards.
///
/// The calling thread must be in the machine's own namespace. The kernel puts the card back there when
/// its namespace ends.
pub fn take_card(node: u8, end: CardEnd, namespace: &Namespace, name: &str) -> Result<()> {
    let (mac, file, name) = (mac(node, end), namespace.file()?, name.to_owned());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let netlink = Netlink::open()?;
        let limit = Instant::now() + patience(RETURN_LIMIT);
        let index = loop {
            match netlink.index_of_mac(mac).await? {
                Some(index) => break index,
                None if Instant::now() > limit => bail!("this machine has no network card {}", text(mac)),
                None => tokio::time::sleep(POLL).await,
            }
        };
        netlink.move_link(index, &file).await
    })?;
    namespace.run(async move || {
        let netlink = Netlink::open()?;
        let index = netlink.index_of_mac(mac).await?;
        let index = index.with_context(|| format!("the network card {} is lost", text(mac)))?;
        netlink.rename(index, &name).await
    })
}

fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
