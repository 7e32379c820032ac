//! Requests to a Service until every backend has answered, and the comparison of answers and
//! captures with the expected ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::Result;

use crate::capture::{Capture, Trail};
use crate::topology::{Bed, Dual, Family};
use crate::traffic::{Answer, Protocol, ask};

/// The least number of requests of each kind, even where one would do: a wrong choice may be rare.
const MIN_REQUESTS: usize = 4;
/// The number of requests after which a silent backend counts as left out. With two backends,
/// chance alone does that once in a billion billions.
const MAX_REQUESTS: usize = 60;

/// Requests to a Service over both protocols and families, and their expected way.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The Service's name.
    pub service: String,
    /// Name of the asking pod; `None` = the client outside.
    pub from: Option<String>,
    /// The frontend's address.
    pub address: Dual,
    /// Port, for TCP and UDP.
    pub port: u16,
    /// Names of the backends that must answer, and no others.
    pub backends: Vec<String>,
    /// The way of every request and answer.
    pub trail: Trail,
    /// The source that the backends see instead of the client, with SNAT.
    pub translated_to: Option<Dual>,
}

/// The result of a walk.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// A row for each backend, protocol and family.
    pub rows: Vec<Row>,
    /// The differences from the expected result, one a line.
    pub problems: Vec<String>,
}

/// The requests that one backend saw, over one protocol and family.
#[derive(Clone, Debug)]
pub struct Row {
    /// Family of the frontend.
    pub family: Family,
    /// Protocol.
    pub protocol: Protocol,
    /// The frontend.
    pub frontend: SocketAddr,
    /// The backend.
    pub backend: String,
    /// Source of the last request as the backend saw it.
    pub peer: SocketAddr,
    /// Way of the last request.
    pub trail: Trail,
    /// Number of requests it answered.
    pub requests: usize,
}

impl Walk {
    /// Returns a walk from the client outside, whose address the backends see.
    #[must_use]
    pub fn to(service: &str, address: Dual, port: u16, backends: &[&str], trail: Trail) -> Self {
        Self {
            service: service.to_owned(),
            from: None,
            address,
            port,
            backends: backends.iter().map(|name| (*name).to_owned()).collect(),
            trail,
            translated_to: None,
        }
    }

    /// Sends the requests. `capture` is one of the router's devices.
    pub fn run(&self, bed: &Bed, capture: &mut Capture) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
            let problems = outcome.problems.len();
            let frontend = SocketAddr::new(self.address.of(family), self.port);
            match self.ask_all(bed, protocol, frontend) {
                Ok(answers) => {
                    outcome.problems.extend(self.missing(&answers));
                    self.check(frontend, protocol, &answers, capture, &mut outcome)?;
                }
                Err(error) => outcome.problems.push(format!("{error:#}")),
            }
            for problem in outcome.problems.iter_mut().skip(problems) {
                *problem = format!("{} {family} {}: {problem}", self.service, protocol.name());
            }
        }
        Ok(outcome)
    }

    fn ask_all(&self, bed: &Bed, protocol: Protocol, frontend: SocketAddr) -> Result<Vec<Answer>> {
        let mut answers: Vec<Answer> = Vec::new();
        while answers.len() < MIN_REQUESTS
            || (answers.len() < MAX_REQUESTS && !self.missing(&answers).is_empty())
        {
            let from = match &self.from {
                Some(pod) => bed.pod(pod)?.namespace(),
                None => bed.client(),
            };
            answers.push(ask(from, protocol, frontend)?);
        }
        Ok(answers)
    }

    fn missing(&self, answers: &[Answer]) -> Vec<String> {
        let seen: BTreeSet<&str> = answers.iter().map(|answer| answer.sighting.backend.as_str()).collect();
        let missing = self.backends.iter().filter(|backend| !seen.contains(backend.as_str()));
        missing.map(|backend| format!("{backend} answered none of {} requests", answers.len())).collect()
    }

    /// Checks every answer and makes a row for each backend.
    fn check(
        &self,
        frontend: SocketAddr,
        protocol: Protocol,
        answers: &[Answer],
        capture: &mut Capture,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
        // Two connections of one port, to one backend by two frontends, may meet by chance. The second then gets another port.
        let mut moved = 0;
        for answer in answers {
            let Answer { sighting, client } = answer;
            let trail = Trail::of(capture.packets()?, *client, frontend);
            let peer = self.translated_to.map(|source| source.of(Family::of(frontend.ip())));
            let is_moved = peer.is_none() && sighting.peer.ip() == client.ip() && !answer.kept_client();
            moved += usize::from(is_moved);
            let is_alone = is_moved && moved == 1;
            let is_right = peer.map_or(answer.kept_client(), |peer| sighting.peer.ip() == peer) || is_alone;
            if !is_right {
                let expected = peer.map_or(client.to_string(), |peer| peer.to_string());
                let problem = format!("{} saw {} instead of {expected}", sighting.backend, sighting.peer);
                outcome.problems.push(problem);
            }
            if !self.backends.contains(&sighting.backend) {
                outcome.problems.push(format!("{} answered, which is no choice here", sighting.backend));
            }
            if trail != self.trail {
                outcome.problems.push(format!("went {trail} instead of {}", self.trail));
            }
            let row = rows.entry(&sighting.backend).or_insert_with(|| Row {
                family: Family::of(frontend.ip()),
                protocol,
                frontend,
                backend: sighting.backend.clone(),
                peer: sighting.peer,
                trail: Trail::default(),
                requests: 0,
            });
            row.requests += 1;
            (row.peer, row.trail) = (sighting.peer, trail);
        }
        outcome.rows.extend(rows.into_values());
        Ok(())
    }
}
