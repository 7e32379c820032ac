//! The agent terminates connected UDP sockets whose backend no longer serves. Their next datagrams
//! would be lost without an error.
//!
//! A process that waits on such a socket gets an error at once and connects again, to another
//! backend. TCP is left alone: its connections end as the backend ends them. A thread does the
//! work, because it enters each network namespace and lists its sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use proxy_common::Address;
use proxy_common::backend::BACKEND_SERVING;
use proxy_common::selection::BackendRef;
use proxy_common::socket::{SocketFrontend, SocketKey};
use tracing::{debug, info, warn};

use super::capability;
use super::convert::socket;
use super::diag::Diag;
use super::error::OpenError;
use super::layout::Layout;
use super::mapped::Access;
use super::maps::{FamilyMaps, Maps};

/// The directories with the names of pods' network namespaces, by container runtime.
const NAMESPACES: [&str; 2] = ["/run/netns", "/run/docker/netns"];
/// The delay before a round. An endpoint that moves to another EndpointSlice is in neither for a
/// moment.
const DEBOUNCE: Duration = Duration::from_millis(250);
/// The interval after a failed round.
const RETRY_INTERVAL: Duration = Duration::from_mins(1);
const UDP: u16 = 17;

/// A handle that wakes the thread. The thread ends when the handle is dropped.
#[derive(Debug)]
pub struct SocketTerminator {
    wake: SyncSender<()>,
}

/// Cookies of sockets by backend address, for backends that no longer serve.
type Stale = BTreeMap<SocketAddr, BTreeSet<[u32; 2]>>;

impl SocketTerminator {
    /// Starts the thread on the maps pinned below a directory.
    pub fn start(layout: &Layout) -> Result<Self, OpenError> {
        let maps = Maps::open(&layout.maps(), Access::Read)?;
        let (wake, woken) = sync_channel(1);
        let path = layout.maps();
        thread::Builder::new()
            .name("end-sockets".to_owned())
            .spawn(move || run(maps, &woken))
            .map_err(|error| OpenError::File { path, error })?;
        Ok(Self { wake })
    }

    /// Wakes the thread: a backend no longer serves, and its slots have other owners.
    pub fn wake(&self) {
        // A full channel means a wake-up that the thread has not taken yet.
        let _ = self.wake.try_send(());
    }
}

fn run(mut maps: Maps, woken: &Receiver<()>) {
    let reach = reach();
    let mut reported: Option<String> = None;
    let mut failed = false;
    while is_due(woken, failed) {
        thread::sleep(DEBOUNCE);
        // This round covers the wake-ups during the delay.
        let _ = woken.try_recv();
        let Outcome { count, failure } = terminate(&mut maps, |stale| destroy_within(reach, stale));
        if count > 0 {
            debug!(count, "terminated UDP sockets whose backend no longer serves");
        }
        failed = failure.is_some();
        if failed && failure != reported {
            let error = failure.as_deref().unwrap_or_default();
            warn!(
                error,
                "terminating UDP sockets failed: sockets of removed backends stay until they time out"
            );
            reported = failure;
        }
    }
}

/// Waits for the next round; false when the handle is dropped.
fn is_due(woken: &Receiver<()>, failed: bool) -> bool {
    if !failed {
        return woken.recv().is_ok();
    }
    !matches!(woken.recv_timeout(RETRY_INTERVAL), Err(RecvTimeoutError::Disconnected))
}

/// Terminates the sockets of backends that no longer serve, by `destroy`. Their entries stay until
/// all namespaces succeed, so that the next round finds them again.
fn terminate(maps: &mut Maps, destroy: impl FnOnce(&Stale) -> Outcome) -> Outcome {
    let mut stale = Stale::new();
    let entries = stale_of(&maps.of4, &mut stale).and_then(|of4| Ok((of4, stale_of(&maps.of6, &mut stale)?)));
    let (of4, of6) = match entries {
        Ok(entries) => entries,
        Err(error) => return Outcome { count: 0, failure: Some(error.to_string()) },
    };
    if stale.is_empty() {
        return Outcome::default();
    }
    let outcome = destroy(&stale);
    if outcome.failure.is_none() {
        remove_entries(&mut maps.of4, &of4);
        remove_entries(&mut maps.of6, &of6);
    }
    outcome
}

type Entries<A> = Vec<(SocketKey<A>, SocketFrontend<A>)>;

/// Returns the entries of sockets whose backend no longer serves, and adds their cookies to
/// `stale`.
fn stale_of<A: Address>(maps: &FamilyMaps<A>, stale: &mut Stale) -> Result<Entries<A>, OpenError> {
    let mut serving: BTreeMap<u32, bool> = BTreeMap::new();
    let mut found = Entries::new();
    maps.sockets.for_each(|key, value| {
        let is_serving = *serving.entry(value.backend).or_insert_with(|| {
            let reference = BackendRef(value.backend);
            let backend = maps.backends.get(reference.id());
            backend.is_some_and(|one| one.is(reference) && one.flags & BACKEND_SERVING != 0)
        });
        if key.protocol == UDP && !is_serving {
            stale.entry(socket(key.address, key.port)).or_default().insert(key.cookie);
            found.push((key, value));
        }
        true
    })?;
    Ok(found)
}

fn remove_entries<A: Address>(maps: &mut FamilyMaps<A>, entries: &Entries<A>) {
    for (key, value) in entries {
        // The process may have connected the socket again meanwhile.
        if maps.sockets.get(key).is_ok_and(|now| now.as_ref() == Some(value)) {
            // The next round finds an entry that stays; its socket is gone then.
            let _ = maps.sockets.remove(key);
        }
    }
}

/// The result of a round: the number of terminated sockets and the first failure.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    count: usize,
    failure: Option<String>,
}

impl Outcome {
    /// Visits all of them in spite of failures.
    fn of<T>(all: impl IntoIterator<Item = T>, mut visit: impl FnMut(T) -> Self) -> Self {
        let mut outcome = Self::default();
        for one in all {
            let Self { count, failure } = visit(one);
            outcome.count += count;
            outcome.failure = outcome.failure.or(failure);
        }
        outcome
    }
}

impl From<io::Result<usize>> for Outcome {
    fn from(outcome: io::Result<usize>) -> Self {
        match outcome {
            Ok(count) => Self { count, failure: None },
            Err(error) => Self { count: 0, failure: Some(error.to_string()) },
        }
    }
}

/// The network namespaces whose sockets this process may terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The node's own.
    Own,
    /// Those of pods, too.
    Pods,
}

/// Returns the reach of this process, and logs it if pods are out of it.
fn reach() -> Reach {
    if capability::may_enter_namespaces() {
        return Reach::Pods;
    }
    info!(
        "pods' UDP sockets of removed backends stay until they time out: ending them takes CAP_SYS_ADMIN, which \
         this process lacks"
    );
    Reach::Own
}

/// Terminates sockets in this thread's namespace and in the named ones within reach.
fn destroy_within(reach: Reach, stale: &Stale) -> Outcome {
    let own = destroy(stale);
    if reach == Reach::Own {
        return own;
    }
    let entered = thread::scope(|scope| scope.spawn(|| in_namespaces(stale)).join());
    let entered =
        entered.unwrap_or_else(|_| Outcome { count: 0, failure: Some("a thread panicked".to_owned()) });
    Outcome::of([own, entered], |outcome| outcome)
}

/// Terminates sockets in the named namespaces. The thread enters one after the other and ends in
/// the last.
fn in_namespaces(stale: &Stale) -> Outcome {
    let entries = NAMESPACES.iter().filter_map(|directory| fs::read_dir(Path::new(directory)).ok()).flatten();
    Outcome::of(entries.flatten(), |entry| {
        // A namespace that is gone has no sockets.
        let Ok(namespace) = File::open(entry.path()) else { return Outcome::default() };
        match setns(&namespace, CloneFlags::CLONE_NEWNET) {
            Ok(()) => destroy(stale),
            // The name is stale: no namespace is mounted there.
            Err(Errno::EINVAL) => Outcome::default(),
            Err(error) => Outcome::from(Err(error.into())),
        }
    })
}

/// Terminates sockets in this thread's namespace.
fn destroy(stale: &Stale) -> Outcome {
    let listed = Diag::open().and_then(|diag| Ok((diag.connected()?, diag)));
    let (listed, diag) = match listed {
        Ok(listed) => listed,
        Err(error) => return Outcome::from(Err(error)),
    };
    let doomed = listed.iter().filter(|connected| {
        stale.get(&connected.peer()).is_some_and(|cookies| cookies.contains(&connected.cookie()))
    });
    Outcome::of(doomed, |connected| Outcome::from(diag.destroy(connected).map(|()| 1)))
}

#[cfg(test)]
mod tests {
    use proxy_common::Addr4;

    use super::*;
    use crate::dataplane::ebpf::scratch::Scratch;

    fn failed(text: &str) -> Outcome {
        Outcome { count: 0, failure: Some(text.to_owned()) }
    }

    #[test]
    fn a_failing_namespace_does_not_stop_the_round_and_the_first_failure_is_reported() {
        let mut visited = Vec::new();
        let outcome = Outcome::of(["first", "second", "third", "fourth"], |name| {
            visited.push(name);
            if matches!(name, "second" | "third") { failed(name) } else { Ok(1).into() }
        });
        assert_eq!(visited.len(), 4);
        assert_eq!(outcome, Outcome { count: 2, failure: Some("second".to_owned()) });
    }

    #[test]
    fn entries_stay_until_a_round_succeeds_and_when_the_socket_was_connected_again() {
        let scratch = Scratch::new("sockets");
        drop(scratch.open());
        let layout = Layout::new(&scratch.path);
        let mut maps = Maps::open(&layout.maps(), Access::Read).unwrap();
        let key = |cookie| SocketKey { address: Addr4([1]), cookie: [cookie, 0], port: 7, protocol: UDP };
        // Backend 0 is no backend.
        let gone = SocketFrontend { address: Addr4([2]), socket: 1, ..SocketFrontend::default() };
        for cookie in [1, 2] {
            maps.of4.sockets.insert(&key(cookie), &gone).unwrap();
        }
        let count = |stale: &Stale| stale.values().map(BTreeSet::len).sum::<usize>();
        for error in ["timed out", "interrupted"] {
            assert_eq!(
                terminate(&mut maps, |stale| Outcome { count: count(stale), ..failed(error) }).count,
                2
            );
        }
        let mut other = Maps::open(&layout.maps(), Access::Read).unwrap();
        let anew = SocketFrontend { port: 8, ..gone };
        let outcome = terminate(&mut maps, |stale| {
            other.of4.sockets.insert(&key(2), &anew).unwrap();
            Ok(count(stale)).into()
        });
        assert_eq!(outcome, Outcome { count: 2, failure: None });
        assert_eq!(maps.of4.sockets.get(&key(1)).unwrap(), None);
        assert_eq!(maps.of4.sockets.get(&key(2)).unwrap(), Some(anew));
    }

    #[test]
    fn a_failed_round_is_repeated_without_a_wake_up_until_the_agent_ends() {
        let (wake, woken) = sync_channel(1);
        wake.send(()).unwrap();
        assert!(is_due(&woken, true) && woken.try_recv().is_err());
        drop(wake);
        assert!(!is_due(&woken, true) && !is_due(&woken, false));
    }
}
