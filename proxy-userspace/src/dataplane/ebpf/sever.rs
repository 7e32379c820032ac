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
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use proxy_common::Address;
use proxy_common::backend::BACKEND_SERVING;
use proxy_common::selection::BackendRef;
use proxy_common::socket::SocketKey;
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
const SETTLE: Duration = Duration::from_millis(250);
const UDP: u16 = 17;

/// Wakes the thread. It ends with this.
#[derive(Debug)]
pub struct Severer {
    wake: SyncSender<()>,
}

/// Cookies of the sockets that are connected to a backend which serves no more.
type Stale = BTreeMap<SocketAddr, BTreeSet<[u32; 2]>>;

impl Severer {
    /// Starts the thread, on the maps pinned below a directory.
    pub fn start(layout: &Layout) -> Result<Self, OpenError> {
        let maps = Maps::open(&layout.maps(), Access::Read)?;
        let (wake, woken) = sync_channel(1);
        let path = layout.maps();
        thread::Builder::new()
            .name("sever".to_owned())
            .spawn(move || follow(maps, &woken))
            .map_err(|error| OpenError::File { path, error })?;
        Ok(Self { wake })
    }

    /// Some backend serves no more, and its slots are others' already.
    pub fn wake(&self) {
        // A full channel has woken it, and it has not looked yet.
        let _ = self.wake.try_send(());
    }
}

fn follow(mut maps: Maps, woken: &Receiver<()>) {
    let mut is_told = false;
    while woken.recv().is_ok() {
        thread::sleep(SETTLE);
        // What came meanwhile is looked at now.
        let _ = woken.try_recv();
        match sever(&mut maps) {
            Ok(0) => {}
            Ok(count) => debug!(count, "UDP sockets destroyed whose backend serves no more"),
            Err(error) if !std::mem::replace(&mut is_told, true) => {
                warn!("UDP sockets whose backend serves no more go on until they time out: {error}");
            }
            Err(_) => {}
        }
    }
}

/// Destroys such sockets in all namespaces; says how many.
fn sever(maps: &mut Maps) -> Result<usize, String> {
    let mut stale = Stale::new();
    stale_of(&mut maps.of4, &mut stale).map_err(|error| error.to_string())?;
    stale_of(&mut maps.of6, &mut stale).map_err(|error| error.to_string())?;
    if stale.is_empty() {
        return Ok(0);
    }
    let mut count = destroy(&stale).map_err(|error| error.to_string())?;
    let entered = thread::scope(|scope| scope.spawn(|| in_namespaces(&stale)).join());
    count += entered.map_err(|_| "a thread panicked".to_owned())?.map_err(|error| error.to_string())?;
    Ok(count)
}

/// Takes the entries of such sockets out of the map.
fn stale_of<A: Address>(maps: &mut FamilyMaps<A>, stale: &mut Stale) -> Result<(), OpenError> {
    let mut serving: BTreeMap<u32, bool> = BTreeMap::new();
    let mut found: Vec<SocketKey<A>> = Vec::new();
    let backends = &maps.backends;
    maps.sockets.for_each(|key, value| {
        let is_serving = *serving.entry(value.backend).or_insert_with(|| {
            let reference = BackendRef(value.backend);
            let backend = backends.get(reference.id());
            backend.is_some_and(|one| one.is(reference) && one.flags & BACKEND_SERVING != 0)
        });
        if key.protocol == UDP && !is_serving {
            found.push(key);
        }
        true
    })?;
    for key in found {
        // An entry that stays is found again, and its socket is gone then.
        let _ = maps.sockets.remove(&key);
        stale.entry(socket(key.address, key.port)).or_default().insert(key.cookie);
    }
    Ok(())
}

/// In the namespaces that have names: this thread goes from one to the next, and ends in the last.
fn in_namespaces(stale: &Stale) -> io::Result<usize> {
    let entries = NAMESPACES.iter().filter_map(|directory| fs::read_dir(Path::new(directory)).ok()).flatten();
    let mut count = 0;
    for entry in entries.flatten() {
        // One that goes meanwhile has no sockets any more.
        let Ok(namespace) = File::open(entry.path()) else { continue };
        if setns(&namespace, CloneFlags::CLONE_NEWNET).is_ok() {
            count += destroy(stale)?;
        }
    }
    Ok(count)
}

/// In this thread's namespace.
fn destroy(stale: &Stale) -> io::Result<usize> {
    let diag = Diag::open()?;
    let mut count = 0;
    for connected in diag.connected()? {
        let cookies = connected.peer().and_then(|peer| stale.get(&peer));
        if cookies.zip(connected.cookie()).is_some_and(|(cookies, cookie)| cookies.contains(&cookie)) {
            diag.destroy(&connected)?;
            count += 1;
        }
    }
    Ok(count)
}
