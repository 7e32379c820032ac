//! Requests without a pause, while something else happens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::clients::{Client, Protocol};

/// Clients that ask again and again, each request on a connection of its own.
pub struct Load {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Outcome>>,
}

/// The result of a load.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Requests with an answer.
    pub answers: usize,
    /// The others.
    pub failures: Vec<String>,
}

impl Load {
    /// Starts a thread for each client.
    pub fn start(clients: Vec<(Client, SocketAddr)>) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let threads = clients
            .into_iter()
            .map(|(client, target)| {
                let end = Arc::clone(&end);
                thread::spawn(move || ask_until(&end, &client, target))
            })
            .collect();
        Self { end, threads }
    }

    /// Ends the load and returns all results.
    pub fn end(self) -> Vec<Outcome> {
        self.end.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

fn ask_until(end: &AtomicBool, client: &Client, target: SocketAddr) -> Outcome {
    let mut outcome = Outcome::default();
    while !end.load(Ordering::Relaxed) {
        match client.ask(Protocol::Http, target, "hostname") {
            Ok(_) => outcome.answers += 1,
            Err(error) => outcome.failures.push(format!("{error:#}")),
        }
    }
    outcome
}
