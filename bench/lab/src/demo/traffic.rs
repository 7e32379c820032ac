//! Asking every service until every backend has answered, and comparing captures with what has to be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::Result;

use super::plan::Walk;
use crate::capture::{Capture, Trail};
use crate::topology::{Bed, Family};
use crate::traffic::{Answer, Protocol, ask};

/// Requests of each kind, even where one would do: a wrong choice may be rare.
const LEAST: usize = 4;
/// Requests after which a backend that has not answered is held to be left out: with two backends that is a
/// chance of one in a billion billions.
const MOST: usize = 60;

/// What one backend saw of one kind of requests.
pub(super) struct Row {
    pub(super) service: &'static str,
    pub(super) what: &'static str,
    pub(super) family: Family,
    pub(super) protocol: Protocol,
    pub(super) frontend: SocketAddr,
    pub(super) backend: String,
    /// Source of the last request as the backend saw it.
    pub(super) peer: SocketAddr,
    /// Way of the last request.
    pub(super) trail: Trail,
    pub(super) requests: usize,
}

pub(super) fn exercise(
    bed: &Bed,
    walks: &[Walk],
    capture: &mut Capture,
    problems: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for walk in walks {
        for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
            let frontend = walk.frontend(family);
            let answers = match ask_all(bed, walk, protocol, frontend) {
                Ok(answers) => answers,
                Err(error) => {
                    problems.push(format!("{} {family}: {error:#}", walk.service));
                    continue;
                }
            };
            problems.extend(
                missing_backends(walk, &answers)
                    .map(|missing| format!("{} {family} {}: {missing}", walk.service, protocol.name())),
            );
            rows.extend(rows_of(walk, family, protocol, &answers, capture, problems)?);
        }
    }
    Ok(rows)
}

fn ask_all(bed: &Bed, walk: &Walk, protocol: Protocol, frontend: SocketAddr) -> Result<Vec<Answer>> {
    let mut answers: Vec<Answer> = Vec::new();
    while answers.len() < LEAST || (answers.len() < MOST && missing_backends(walk, &answers).next().is_some())
    {
        answers.push(ask(bed.client(), protocol, frontend)?);
    }
    Ok(answers)
}

fn missing_backends<'a>(walk: &'a Walk, answers: &[Answer]) -> impl Iterator<Item = String> + use<'a> {
    let seen: BTreeSet<String> = answers.iter().map(|answer| answer.sighting.backend.clone()).collect();
    let count = answers.len();
    let missing = walk.backends.iter().filter(move |backend| !seen.contains(**backend));
    missing.map(move |backend| format!("{backend} answered none of {count} requests"))
}

/// Checks every answer; makes a row of each backend's.
fn rows_of(
    walk: &Walk,
    family: Family,
    protocol: Protocol,
    answers: &[Answer],
    capture: &mut Capture,
    problems: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let frontend = walk.frontend(family);
    for answer in answers {
        let name = format!("{} {family} {}", walk.service, protocol.name());
        let Answer { sighting, client } = answer;
        let trail = Trail::of(capture.packets()?, *client, frontend);
        if !answer.kept_client() {
            problems.push(format!("{name}: {} saw {} instead of {client}", sighting.backend, sighting.peer));
        }
        if !walk.backends.contains(&sighting.backend.as_str()) {
            problems.push(format!("{name}: {} answered, which is no choice here", sighting.backend));
        }
        if trail != walk.trail {
            problems.push(format!("{name}: went {trail} instead of {}", walk.trail));
        }
        let row = rows.entry(&sighting.backend).or_insert_with(|| Row {
            service: walk.service,
            what: walk.what,
            family,
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
    Ok(rows.into_values().collect())
}
