//! Short connections with one request each, and datagrams from a socket each.

use std::net::SocketAddr;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::{ticks, wrong_place};
use crate::drill::fault::Loss;
use crate::drill::ledger::Page;
use crate::traffic::{Protocol, ask_here};

/// The most connections under way, so that a stalled machine is not flooded afterwards.
const CONNECTIONS: usize = 60;
/// The most datagrams under way. A burst after a stall would overflow a queue.
pub(super) const DATAGRAMS: usize = 100;

/// Asks so many times a second, each time from a socket of its own. Runs until it is dropped.
pub(super) async fn ask(target: SocketAddr, page: &Page, per_second: u32, protocol: Protocol) {
    let most = if protocol == Protocol::Udp { DATAGRAMS } else { CONNECTIONS };
    let mut clock = ticks(per_second);
    let mut asked = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = clock.tick(), if asked.len() < most => asked.push(ask_once(target, page, protocol)),
            Some(()) = asked.next() => {}
        }
    }
}

async fn ask_once(target: SocketAddr, page: &Page, protocol: Protocol) {
    let exchange = page.begin();
    match ask_here(protocol, target).await {
        Ok(answer) => {
            let backend = &answer.sighting.backend;
            if let Some(problem) = wrong_place(page, &answer) {
                page.record(Some(Loss::Wrong), Some(backend), exchange.began(), problem);
            }
            exchange.succeed(backend);
        }
        Err(error) => {
            let loss = if protocol == Protocol::Udp { Loss::Lost } else { Loss::Failed };
            page.record(Some(loss), None, exchange.began(), format!("{error:#}"));
        }
    }
}
