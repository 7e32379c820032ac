//! The traffic: long connections, short ones, and datagrams, through all ways in both families.

mod datagrams;
mod long;
mod short;

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::ground::Ground;
use super::ledger::{Ledger, Page};
use super::way::Way;
use crate::net::Task;
use crate::topology::Family;
use crate::traffic::{Answer, Protocol};

/// The traffic of each way in each family.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Long connections. Each asks twice a second.
    pub long: usize,
    /// Short connections a second, each with one request.
    pub short: u32,
    /// Datagrams a second from a socket that stays.
    pub steady: u32,
    /// Datagrams a second, each from a socket of its own.
    pub fresh: u32,
}

impl Default for Rates {
    /// Over 14 pairs of way and family: 210 connections, 140 short ones and 560 datagrams a second.
    fn default() -> Self {
        Self { long: 15, short: 10, steady: 30, fresh: 10 }
    }
}

/// Running traffic. It ends on drop.
#[derive(Debug)]
pub(crate) struct Traffic {
    _tasks: Vec<Task<()>>,
}

impl Traffic {
    /// Starts it. All long connections are open on return.
    pub(crate) fn start(ground: &Ground, ledger: &Ledger, rates: Rates) -> Result<Self> {
        let mut tasks = Vec::new();
        let cluster = ground.cluster();
        for (way, family) in Way::ALL.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
            let target = way.target(cluster, family)?;
            let page = ledger.page(way, family);
            let namespace = match way.client() {
                Some(pod) => cluster.bed().pod(pod)?.namespace(),
                None => cluster.bed().client(),
            };
            let begin = page.clone();
            let opened = namespace.run(async move || long::open_all(target, &begin, rates.long).await);
            let opened = opened.with_context(|| format!("{way} {family}: can't begin"))?;
            tasks.push(namespace.spawn(async move || {
                tokio::join!(
                    long::hold_all(opened, target, &page),
                    short::ask(target, &page, rates.short, Protocol::Tcp),
                    datagrams::steady(target, &page, rates.steady),
                    short::ask(target, &page, rates.fresh, Protocol::Udp),
                );
                Ok(())
            }));
        }
        Ok(Self { _tasks: tasks })
    }
}

/// Returns a clock of so many ticks a second.
fn ticks(per_second: u32) -> Interval {
    let mut clock = interval(Duration::from_secs(1) / per_second.max(1));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock
}

/// Says why an answer is none that the way may give.
fn wrong_place(page: &Page, answer: &Answer) -> Option<String> {
    let backend = answer.sighting.backend.as_str();
    if !page.way.backends().contains(&backend) {
        return Some(format!("{backend} is no backend"));
    }
    // Another port is right: two connections of a client to different Services can have one port and
    // one backend.
    let (seen, own) = (answer.sighting.peer.ip(), answer.client.ip());
    let is_kept = !page.way.keeps_client() || seen == own;
    (!is_kept).then(|| format!("{backend} saw {seen} instead of {own}"))
}
