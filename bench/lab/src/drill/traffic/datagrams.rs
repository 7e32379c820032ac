//! Datagrams from one socket for all.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::net::UdpSocket;

use super::short::DATAGRAMS;
use super::{ticks, wrong_place};
use crate::drill::fault::Loss;
use crate::drill::ledger::Page;
use crate::traffic::{ANSWER_LIMIT, Answer, Sighting, connect_udp, parse_echo};

/// Sends so many numbered datagrams a second from one socket. Runs until it is dropped.
pub(super) async fn steady(target: SocketAddr, page: &Page, per_second: u32) {
    let socket = match connect_udp(target).await {
        Ok(socket) => socket,
        Err(error) => {
            page.record(Some(Loss::Lost), None, Instant::now(), format!("no socket: {error:#}"));
            return;
        }
    };
    let mut stream = Steady { target, socket, page, next: 0, under_way: BTreeMap::new(), last: None };
    let mut clock = ticks(per_second);
    let mut buffer = vec![0; 2048];
    loop {
        tokio::select! {
            _ = clock.tick() => {
                stream.give_up();
                if stream.under_way.len() < DATAGRAMS {
                    stream.send().await;
                }
            }
            Ok(length) = stream.socket.recv(&mut buffer) => {
                if stream.receive(buffer.get(..length).unwrap_or_default()) {
                    stream.begin_anew().await;
                }
            }
        }
    }
}

/// A stream from one socket.
struct Steady<'a> {
    target: SocketAddr,
    socket: UdpSocket,
    page: &'a Page,
    next: u64,
    under_way: BTreeMap<u64, Instant>,
    /// The backend of the last answer.
    last: Option<String>,
}

impl Steady<'_> {
    /// A refused send is a lost datagram as any other. But an agent disconnects a socket whose backend
    /// is gone, and a client connects it again, as it would do for a socket that the kernel ended.
    async fn send(&mut self) {
        let number = self.next.to_be_bytes();
        if let Err(error) = self.socket.send(&number).await
            && error.raw_os_error() == Some(libc::EDESTADDRREQ)
            && let Ok(socket) = connect_udp(self.target).await
        {
            self.socket = socket;
            let _ = self.socket.send(&number).await;
        }
        self.under_way.insert(self.next, Instant::now());
        self.next += 1;
    }

    /// Records the datagrams that have waited for too long.
    fn give_up(&mut self) {
        while let Some(oldest) =
            self.under_way.first_entry().filter(|sent| sent.get().elapsed() > ANSWER_LIMIT)
        {
            let (number, sent) = oldest.remove_entry();
            let what = format!("datagram {number} of a stream had no answer");
            self.page.record(Some(Loss::Lost), self.last.as_deref(), sent, what);
        }
    }

    /// Takes another socket. A stream by SNAT keeps its way, even when its Service has Direct Server
    /// Return again.
    async fn begin_anew(&mut self) {
        if let Ok(socket) = connect_udp(self.target).await {
            (self.socket, self.last) = (socket, None);
            self.under_way.clear();
        }
    }

    /// Records an answer. Returns whether the backend saw another client.
    fn receive(&mut self, answer: &[u8]) -> bool {
        let Some((sighting, payload)) = parse_echo(answer) else { return false };
        let number = <[u8; 8]>::try_from(payload).map(u64::from_be_bytes);
        let Some(sent) = number.ok().and_then(|number| self.under_way.remove(&number)) else { return false };
        let is_others = self.page.way.keeps_client()
            && self.socket.local_addr().is_ok_and(|client| client.ip() != sighting.peer.ip());
        self.page.succeed(sent.elapsed(), &sighting.backend);
        if let Some(problem) = self.problem(&sighting) {
            self.page.record(Some(Loss::Wrong), Some(&sighting.backend), sent, problem);
        }
        self.last = Some(sighting.backend);
        is_others
    }

    fn problem(&self, sighting: &Sighting) -> Option<String> {
        let client = self.socket.local_addr().ok()?;
        if let Some(problem) = wrong_place(self.page, &Answer { sighting: sighting.clone(), client }) {
            return Some(problem);
        }
        let last = self.last.as_ref().filter(|last| **last != sighting.backend)?;
        Some(format!("a stream went from {last} to {}", sighting.backend))
    }
}
