//! Short connections with one request each.

use std::net::SocketAddr;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::{ticks, wrong_place};
use crate::drill::fault::Loss;
use crate::drill::ledger::Page;
use crate::traffic::{Protocol, ask_here};

/// The most connections under way, so that a stalled machine is not flooded afterwards.
const UNDER_WAY: usize = 60;

/// Opens so many connections a second. Runs until it is dropped.
pub(super) async fn ask(target: SocketAddr, page: &Page, per_second: u32) {
    let mut clock = ticks(per_second);
    let mut asked = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = clock.tick(), if asked.len() < UNDER_WAY => asked.push(ask_once(target, page)),
            Some(()) = asked.next() => {}
        }
    }
}

async fn ask_once(target: SocketAddr, page: &Page) {
    let exchange = page.begin();
    match ask_here(Protocol::Tcp, target).await {
        Ok(answer) => {
            let backend = &answer.sighting.backend;
            if let Some(problem) = wrong_place(page, &answer) {
                page.record(Some(Loss::Wrong), Some(backend), exchange.began(), problem);
            }
            exchange.succeed(backend);
        }
        Err(error) => page.record(Some(Loss::Failed), None, exchange.began(), format!("{error:#}")),
    }
}
