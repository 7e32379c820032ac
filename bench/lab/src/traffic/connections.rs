//! Long connections: some send all the time, some are silent until the end.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{ANSWER_LIMIT, Connection};
use crate::net::{Namespace, Task};
use crate::patience::patience;

/// Pause between two requests, for each talking connection, and the least number of pauses. A busy
/// machine may wake all connections at once, and their packets must fit a device's queue. In an
/// emulated machine the requests would take all of its time, so pauses are longer there.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSES: u32 = 10;

/// A number of open connections to one target.
#[derive(Debug)]
pub struct LongConnections {
    stop: watch::Sender<bool>,
    task: Task<usize>,
}

impl LongConnections {
    /// Opens `talking` connections that send requests all the time, and `silent` ones that send
    /// their first request at the end. All are open on return.
    pub fn open(namespace: &Namespace, target: SocketAddr, talking: usize, silent: usize) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let (opened, all_open) = std::sync::mpsc::sync_channel(1);
        let task = namespace.spawn(async move || {
            let mut connections = JoinSet::new();
            let pause = patience(PAUSE * u32::try_from(talking)?.max(PAUSES));
            for number in 0..talking + silent {
                let connection = Connection::open(target).await?;
                connections.spawn(hold(connection, (number < talking).then_some(pause), stopped.clone()));
            }
            let _ = opened.send(());
            let mut kept = 0;
            while let Some(outcome) = connections.join_next().await {
                outcome.context("a connection's task failed")?.context("a connection was cut")?;
                kept += 1;
            }
            Ok(kept)
        });
        if all_open.recv().is_err() {
            task.join()?;
            bail!("no connection was opened");
        }
        Ok(Self { stop, task })
    }

    /// Sends a last request over each connection and returns the number of answers. Fails if a
    /// connection was cut or answered by another backend than before.
    pub fn stop(self) -> Result<usize> {
        let _ = self.stop.send(true);
        self.task.join_within(patience(ANSWER_LIMIT * 2))
    }
}

async fn hold(
    mut connection: Connection,
    pause: Option<Duration>,
    mut stopped: watch::Receiver<bool>,
) -> Result<()> {
    let mut first = None;
    while let Some(pause) = pause
        && !*stopped.borrow()
    {
        let answer = connection.request().await?;
        if first.get_or_insert_with(|| answer.clone()) != &answer {
            bail!("the connection changed hands: {first:?}, then {answer:?}");
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopped.changed() => {}
        }
    }
    stopped.wait_for(|stopped| *stopped).await?;
    connection.request().await?;
    Ok(())
}
