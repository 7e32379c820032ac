//! Long connections, which ask all the time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use tokio::time::sleep;

use super::wrong_place;
use crate::drill::fault::Loss;
use crate::drill::ledger::Page;
use crate::patience::patience;
use crate::traffic::{Answer, Connection};

/// The pause between two requests of a connection.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause between two attempts to replace a cut connection.
const RETRY: Duration = Duration::from_secs(1);
/// The time after which a silent connection counts as cut. TCP repeats a segment several times
/// before that.
const HANG_LIMIT: Duration = Duration::from_mins(2);

/// An open connection, and its first answer.
pub(super) struct Open {
    connection: Connection,
    first: Answer,
}

/// Opens connections for [`hold_all`].
pub(super) async fn open_all(target: SocketAddr, page: &Page, number: usize) -> Result<Vec<Open>> {
    let mut opened = Vec::new();
    for _ in 0..number {
        let open = open(target).await?;
        if let Some(problem) = wrong_place(page, &open.first) {
            anyhow::bail!("{problem}");
        }
        opened.push(open);
    }
    Ok(opened)
}

/// Asks over all connections, and replaces each cut one. Runs until it is dropped.
pub(super) async fn hold_all(opened: Vec<Open>, target: SocketAddr, page: &Page) {
    let number = u32::try_from(opened.len()).unwrap_or(1).max(1);
    let held = opened.into_iter().zip(0..).map(|(open, place)| async move {
        // The requests of all connections are spread over the pause.
        sleep(PAUSE * place / number).await;
        let mut open = open;
        loop {
            let (loss, what) = hold(&mut open, page).await;
            let backend = open.first.sighting.backend;
            page.record(Some(loss), Some(&backend), Instant::now(), what);
            open = replace(target, page).await;
        }
    });
    join_all(held).await;
}

async fn open(target: SocketAddr) -> Result<Open> {
    let mut connection = Connection::open(target).await?;
    let first = connection.request().await?;
    Ok(Open { connection: connection.with_limit(patience(HANG_LIMIT)), first })
}

/// Asks until something is wrong. Returns what.
async fn hold(open: &mut Open, page: &Page) -> (Loss, String) {
    loop {
        let exchange = page.begin();
        match open.connection.request().await {
            Ok(answer) if answer == open.first => exchange.succeed(&answer.sighting.backend),
            Ok(answer) => {
                return (Loss::Wrong, format!("a connection of {:?} was answered by {answer:?}", open.first));
            }
            Err(error) => return (Loss::Cut, format!("a connection from {}: {error:#}", open.first.client)),
        }
        sleep(PAUSE).await;
    }
}

/// Opens another connection. A failure is a trouble, but no further loss.
async fn replace(target: SocketAddr, page: &Page) -> Open {
    loop {
        let exchange = page.begin();
        match open(target).await {
            Ok(open) => return open,
            Err(error) => page.record(None, None, exchange.began(), format!("reconnecting: {error:#}")),
        }
        drop(exchange);
        sleep(RETRY).await;
    }
}
