//! Connected UDP sockets whose backend serves no more: their next datagrams would be lost, and nobody would tell them.
//!
//! They are destroyed, so that whoever waits for an answer is told at once and connects again, to another backend. TCP is left
//! alone: its connections end as the backend ends them. A thread of its own does it, since each network namespace has to be
//! entered and its sockets listed.

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
use tracing::{debug, warn};

use super::convert::socket;
use super::diag::Diag;
use super::error::OpenError;
use super::layout::Layout;
use super::mapped::Access;
use super::maps::{FamilyMaps, Maps};

/// Where container runtimes keep the names of pods' network namespaces.
const NAMESPACES: [&str; 2] = ["/run/netns", "/run/docker/netns"];
/// An endpoint that moves to another EndpointSlice is in neither for a moment.
const DEBOUNCE: Duration = Duration::from_millis(250);
/// After a round in which something failed.
const RETRY_INTERVAL: Duration = Duration::from_mins(1);
const UDP: u16 = 17;

/// Wakes the thread. It ends with this.
#[derive(Debug)]
pub struct SocketTerminator {
    wake: SyncSender<()>,
}

/// Cookies of the sockets that are connected to a backend which serves no more.
type Stale = BTreeMap<SocketAddr, BTreeSet<[u32; 2]>>;

impl SocketTerminator {
    /// Starts the thread, on the maps pinned below a directory.
    pub fn start(layout: &Layout) -> Result<Self, OpenError> {
        let maps = Maps::open(&layout.maps(), Access::Read)?;
        let (wake, woken) = sync_channel(1);
        let path = layout.maps();
        thread::Builder::new()
            .name("sever".to_owned())
            .spawn(move || run(maps, &woken))
            .map_err(|error| OpenError::File { path, error })?;
        Ok(Self { wake })
    }

    /// Some backend serves no more, and its slots are others' already.
    pub fn wake(&self) {
        // A full channel has woken it, and it has not looked yet.
        let _ = self.wake.try_send(());
    }
}

fn run(mut maps: Maps, woken: &Receiver<()>) {
    let mut reported: Option<String> = None;
    let mut failed = false;
    while is_due(woken, failed) {
        thread::sleep(DEBOUNCE);
        // What came meanwhile is looked at now.
        let _ = woken.try_recv();
        let Outcome { count, failure } = terminate(&mut maps, destroy_everywhere);
        if count > 0 {
            debug!(count, "UDP sockets destroyed whose backend serves no more");
        }
        failed = failure.is_some();
        if failed && failure != reported {
            let error = failure.as_deref().unwrap_or_default();
            warn!("UDP sockets whose backend serves no more go on until they time out: {error}");
            reported = failure;
        }
    }
}

/// Waits for the next round; false when there will be none.
fn is_due(woken: &Receiver<()>, failed: bool) -> bool {
    if !failed {
        return woken.recv().is_ok();
    }
    !matches!(woken.recv_timeout(RETRY_INTERVAL), Err(RecvTimeoutError::Disconnected))
}

/// Destroys such sockets by `destroy`. Their entries go when all namespaces were gone through, or else they are found again.
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

/// The entries of such sockets.
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
        // The socket may have been connected again meanwhile.
        if maps.sockets.get(key).is_ok_and(|now| now.as_ref() == Some(value)) {
            // An entry that stays is found again, and its socket is gone then.
            let _ = maps.sockets.remove(key);
        }
    }
}

/// What became of sockets: how many were destroyed, and what failed first.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    count: usize,
    failure: Option<String>,
}

impl Outcome {
    /// Goes through all of them, whatever fails on the way.
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

/// In this thread's namespace, and in those that have names.
fn destroy_everywhere(stale: &Stale) -> Outcome {
    let own = destroy(stale);
    let entered = thread::scope(|scope| scope.spawn(|| in_namespaces(stale)).join());
    let entered =
        entered.unwrap_or_else(|_| Outcome { count: 0, failure: Some("a thread panicked".to_owned()) });
    Outcome::of([own, entered], |outcome| outcome)
}

/// In the namespaces that have names: this thread goes from one to the next, and ends in the last.
fn in_namespaces(stale: &Stale) -> Outcome {
    let entries = NAMESPACES.iter().filter_map(|directory| fs::read_dir(Path::new(directory)).ok()).flatten();
    Outcome::of(entries.flatten(), |entry| {
        // One that goes meanwhile has no sockets any more.
        let Ok(namespace) = File::open(entry.path()) else { return Outcome::default() };
        match setns(&namespace, CloneFlags::CLONE_NEWNET) {
            Ok(()) => destroy(stale),
            // A name that nothing is mounted at any more.
            Err(Errno::EINVAL) => Outcome::default(),
            Err(error) => Outcome::from(Err(error.into())),
        }
    })
}

/// In this thread's namespace.
fn destroy(stale: &Stale) -> Outcome {
    let listed = Diag::open().and_then(|diag| Ok((diag.connected()?, diag)));
    let (listed, diag) = match listed {
        Ok(listed) => listed,
        Err(error) => return Outcome::from(Err(error)),
    };
    let doomed = listed.iter().filter(|connected| {
        let cookies = connected.peer().and_then(|peer| stale.get(&peer));
        cookies.zip(connected.cookie()).is_some_and(|(cookies, cookie)| cookies.contains(&cookie))
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
    fn a_namespace_that_fails_keeps_no_later_one_from_its_turn_and_the_first_failure_is_told() {
        let mut visited = Vec::new();
        let outcome = Outcome::of(["first", "second", "third", "fourth"], |name| {
            visited.push(name);
            if matches!(name, "second" | "third") { failed(name) } else { Ok(1).into() }
        });
        assert_eq!(visited.len(), 4);
        assert_eq!(outcome, Outcome { count: 2, failure: Some("second".to_owned()) });
    }

    #[test]
    fn entries_are_found_again_until_a_round_went_through_and_stay_where_the_socket_was_connected_anew() {
        let scratch = Scratch::new("sever");
        drop(scratch.open());
        let layout = Layout::new(&scratch.path);
        let mut maps = Maps::open(&layout.maps(), Access::Read).unwrap();
        let key = |cookie| SocketKey { address: Addr4([1]), cookie: [cookie, 0], port: 7, protocol: UDP };
        // Backend 0 is nobody.
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
    fn a_round_that_failed_is_gone_through_again_unasked_until_the_agent_ends() {
        let (wake, woken) = sync_channel(1);
        wake.send(()).unwrap();
        assert!(is_due(&woken, true) && woken.try_recv().is_err());
        drop(wake);
        assert!(!is_due(&woken, true) && !is_due(&woken, false));
    }
}
