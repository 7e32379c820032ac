//! Many short connections and some long ones, from the machine outside.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use millrace_lab::net::{Namespace, Task};
use millrace_lab::traffic::Connection;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Short connections at a time.
const WORKERS: usize = 8;
/// The pause of a worker between two of them. An ended connection holds its port for a minute.
const BREATH: Duration = Duration::from_millis(10);
/// The pause of a long connection between two requests.
const PAUSE: Duration = Duration::from_millis(500);
/// Failures after which a worker ends.
const TOLD: usize = 3;

/// Short connections without a pause: each asks once and ends.
pub struct Storm {
    end: watch::Sender<bool>,
    made: Arc<AtomicUsize>,
    task: Task<Vec<String>>,
}

impl Storm {
    /// Starts connections to these targets, one after the other.
    pub fn start(namespace: &Namespace, targets: Vec<SocketAddr>) -> Self {
        let (end, ended) = watch::channel(false);
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let task = namespace.spawn(async move || {
            let mut workers = JoinSet::new();
            for _ in 0..WORKERS {
                workers.spawn(ask_until(ended.clone(), targets.clone(), Arc::clone(&counter)));
            }
            Ok(workers.join_all().await.concat())
        });
        Self { end, made, task }
    }

    /// Returns the number of connections that were made until now.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Returns whether every worker has ended, because of failures.
    pub fn has_ended(&self) -> bool {
        self.end.receiver_count() == 0
    }

    /// Ends the storm, and returns the failures.
    pub fn end(self) -> Result<Vec<String>> {
        let _ = self.end.send(true);
        self.task.join_within(Duration::from_secs(30))
    }
}

async fn ask_until(
    ended: watch::Receiver<bool>,
    targets: Vec<SocketAddr>,
    made: Arc<AtomicUsize>,
) -> Vec<String> {
    let mut failures = Vec::new();
    let start = Instant::now();
    while !*ended.borrow() && failures.len() < TOLD {
        let target = targets[made.fetch_add(1, Ordering::Relaxed) % targets.len()];
        if let Err(error) = ask(target).await {
            let seconds = start.elapsed().as_secs_f64();
            failures.push(format!("{target} until {seconds:.1} s: {error:#}"));
        }
        tokio::time::sleep(BREATH).await;
    }
    failures
}

async fn ask(target: SocketAddr) -> Result<String> {
    Connection::open(target).await.context("connecting")?.get("/hostname").await.context("asking")
}

/// Long connections. Half of them ask all the time, the others at their beginning and at their end.
pub struct Held {
    end: watch::Sender<bool>,
    task: Task<Vec<Result<()>>>,
}

impl Held {
    /// Opens `count` connections to each target.
    pub fn open(namespace: &Namespace, targets: Vec<SocketAddr>, count: usize) -> Result<Self> {
        let (end, ended) = watch::channel(false);
        let (opened, all_open) = std::sync::mpsc::sync_channel(1);
        let task = namespace.spawn(async move || {
            let mut connections = JoinSet::new();
            for number in 0..targets.len() * count {
                let target = targets[number % targets.len()];
                let mut connection = Connection::open(target).await?;
                let backend = connection.get("/hostname").await?;
                let talks = (number / targets.len()).is_multiple_of(2);
                connections.spawn(hold(connection, backend, talks, ended.clone()));
            }
            let _ = opened.send(());
            Ok(connections.join_all().await)
        });
        if all_open.recv().is_err() {
            task.join().context("opening long connections")?;
            bail!("no long connection was opened");
        }
        Ok(Self { end, task })
    }

    /// Asks once more over each connection, and returns their number. Fails if one was cut.
    pub fn end(self) -> Result<usize> {
        let outcomes = self.outcomes()?;
        let count = outcomes.len();
        outcomes.into_iter().collect::<Result<()>>().context("a long connection was cut")?;
        Ok(count)
    }

    /// Asks once more over each connection, and returns the number of those that were not cut.
    pub fn end_counting(self) -> Result<usize> {
        Ok(self.outcomes()?.iter().filter(|outcome| outcome.is_ok()).count())
    }

    fn outcomes(self) -> Result<Vec<Result<()>>> {
        let _ = self.end.send(true);
        self.task.join_within(Duration::from_mins(1))
    }
}

async fn hold(
    mut connection: Connection,
    backend: String,
    talks: bool,
    mut ended: watch::Receiver<bool>,
) -> Result<()> {
    while talks && !*ended.borrow() {
        let answer = connection.get("/hostname").await?;
        ensure!(answer == backend, "the connection changed hands: {backend}, then {answer}");
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = ended.changed() => {}
        }
    }
    ended.wait_for(|ended| *ended).await?;
    let answer = connection.get("/hostname").await?;
    ensure!(answer == backend, "the connection changed hands: {backend}, then {answer}");
    Ok(())
}
