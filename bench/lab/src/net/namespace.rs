//! A network namespace with a thread that lives in it.
//!
//! A thread is in one network namespace at a time, and `setns` moves the whole thread. So each
//! namespace has a thread and a runtime of its own. All work there (sockets, rtnetlink,
//! /proc/sys/net, child processes) is in that namespace, and no task can resume in another one.

use std::fs::{self, File};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::mount::{MntFlags, MsFlags};
use nix::sched::{CloneFlags, setns, unshare};
use tokio::sync::{mpsc as tokio_mpsc, oneshot};
use tokio::task::LocalSet;

use super::Cgroup;

/// The directory in which `ip netns` looks for namespaces.
pub(super) const DIRECTORY: &str = "/run/netns";

/// The longest time of a dropped task to end. Only a task that blocks its thread needs any.
const END_LIMIT: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// What happens to a namespace when its handle is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It is removed with everything in it.
    UntilDrop,
    /// It keeps its name until [`Namespace::delete`].
    UntilDeleted,
}

/// A named network namespace. On drop, it is removed with everything in it, unless it is a lasting one.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    life: Life,
    jobs: Option<tokio_mpsc::UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The group is removed after the thread, which is in it, has ended.
    _cgroup: Option<Arc<Cgroup>>,
}

impl Namespace {
    /// Makes the namespace `<own prefix><name>`, with its loopback device up.
    pub fn create(name: &str) -> Result<Self> {
        Self::make(format!("{}{name}", super::own_prefix()), None, Life::UntilDrop, enter)
    }

    /// Makes a namespace of exactly this name, which stays until [`delete`](Self::delete).
    pub fn create_lasting(name: &str) -> Result<Self> {
        Self::make(name.to_owned(), None, Life::UntilDeleted, enter)
    }

    /// Opens an existing namespace, which stays.
    pub fn open(name: &str) -> Result<Self> {
        Self::make(name.to_owned(), None, Life::UntilDeleted, join)
    }

    /// Removes the name of a lasting namespace. The namespace ends with its last process.
    pub fn delete(name: &str) {
        remove(&Self::path_of(name));
    }

    /// Makes a namespace with all its processes and sockets in a control group.
    pub fn create_in(name: &str, cgroup: Arc<Cgroup>) -> Result<Self> {
        Self::make(format!("{}{name}", super::own_prefix()), Some(cgroup), Life::UntilDrop, enter)
    }

    fn make(
        name: String,
        cgroup: Option<Arc<Cgroup>>,
        life: Life,
        enter: fn(&Path) -> Result<()>,
    ) -> Result<Self> {
        let (jobs, receiver) = tokio_mpsc::unbounded_channel();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let path = Self::path_of(&name);
        let group = cgroup.clone();
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let placed = group.map_or(Ok(()), |group| group.enter());
            let entered = placed.and_then(|()| enter(&path));
            let failed = entered.is_err();
            if ready.send(entered).is_ok() && !failed {
                serve(receiver);
            }
        })?;
        let namespace = Self { name, life, jobs: Some(jobs), thread: Some(thread), _cgroup: cgroup };
        is_ready.recv().context("the namespace's thread ended early")??;
        namespace.run(async || super::Netlink::open()?.set_up("lo").await)?;
        Ok(namespace)
    }

    /// Returns the name under which `ip netns exec` finds it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a handle of the namespace, to move devices into it.
    pub fn file(&self) -> Result<File> {
        let path = Self::path_of(&self.name);
        File::open(&path).with_context(|| format!("can't open {}", path.display()))
    }

    /// Runs `job` in the namespace and waits for its result.
    pub fn run<T, F>(&self, job: F) -> Result<T>
    where
        F: AsyncFnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.spawn(job).join()
    }

    /// Starts `job` in the namespace. It ends with the returned task at the latest.
    pub fn spawn<T, F>(&self, job: F) -> Task<T>
    where
        F: AsyncFnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let (sender, result) = mpsc::sync_channel(1);
        let (cancel, cancelled) = oneshot::channel::<()>();
        let run: Job = Box::new(move || {
            Box::pin(async move {
                tokio::select! {
                    outcome = job() => { let _ = sender.send(outcome); }
                    _ = cancelled => {}
                }
            })
        });
        // If the namespace's thread has ended, the job is dropped, and `join` reports that.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(run));
        Task { result, namespace: self.name.clone(), cancel: Some(cancel) }
    }

    /// Returns the dropped frames of each device: those received, and those to send.
    pub fn dropped_frames(&self) -> Result<Vec<(String, u64, u64)>> {
        // The jobs' thread is in the namespace, the process is not.
        let text = self.run(async || Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        Ok(text.lines().filter_map(dropped).collect())
    }

    fn path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(name)
    }
}

/// Parses a line of /proc/net/dev: a name, eight numbers about receiving, then eight about sending.
/// The fourth number of each is that of dropped frames.
fn dropped(line: &str) -> Option<(String, u64, u64)> {
    let (device, numbers) = line.split_once(':')?;
    let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    Some((device.trim().to_owned(), *numbers.get(3)?, *numbers.get(11)?))
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.life == Life::UntilDrop {
            remove(&Self::path_of(&self.name));
        }
    }
}

/// A job in a namespace. It has ended once this is dropped.
#[derive(Debug)]
pub struct Task<T> {
    result: mpsc::Receiver<Result<T>>,
    namespace: String,
    cancel: Option<oneshot::Sender<()>>,
}

impl<T> Task<T> {
    /// Waits for the end of the job.
    pub fn join(self) -> Result<T> {
        self.result.recv().map_err(|_| anyhow!("a task in {} ended without a result", self.namespace))?
    }

    /// Returns the result, once, if the job has ended.
    #[must_use]
    pub fn outcome_so_far(&self) -> Option<Result<T>> {
        self.result.try_recv().ok()
    }

    /// Waits for the end of the job, at most `limit`.
    pub fn join_within(self, limit: Duration) -> Result<T> {
        self.result
            .recv_timeout(limit)
            .with_context(|| format!("a task in {} gave no result within {limit:?}", self.namespace))?
    }
}

impl<T> Drop for Task<T> {
    /// The job drops its side of the channel after everything else that it holds.
    fn drop(&mut self) {
        drop(self.cancel.take());
        while self.result.recv_timeout(END_LIMIT).is_ok() {}
    }
}

/// Removes the name. The namespace itself ends with its last user.
pub(super) fn remove(path: &Path) {
    let _ = nix::mount::umount2(path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(path);
}

/// Moves this thread into a new namespace and gives it a name.
fn enter(path: &Path) -> Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    unshare(CloneFlags::CLONE_NEWNET).context("can't make a network namespace (this takes root)")?;
    File::create(path).with_context(|| format!("can't create {}", path.display()))?;
    nix::mount::mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("can't bind the namespace to {}", path.display()))
}

/// Moves this thread into an existing namespace.
fn join(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("can't open {}", path.display()))?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("can't enter {}", path.display()))
}

/// Runs jobs concurrently until the namespace is dropped.
fn serve(mut jobs: tokio_mpsc::UnboundedReceiver<Job>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    LocalSet::new().block_on(&runtime, async move {
        while let Some(job) = jobs.recv().await {
            tokio::task::spawn_local(job());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_devices_of_its_own_and_goes_with_its_owner() {
        let namespace = Namespace::create("alone").unwrap();
        let path = Namespace::path_of(namespace.name());
        let devices = namespace.run(async || Ok(nix::net::if_::if_nameindex()?.iter().count())).unwrap();
        assert_eq!(devices, 1, "a new namespace has its loopback device only");
        assert!(path.exists());
        drop(namespace);
        assert!(!path.exists());
    }

    #[test]
    fn a_lasting_namespace_can_be_opened_again() {
        let name = format!("millrace-lasting-{}", std::process::id());
        let made = Namespace::create_lasting(&name).unwrap();
        let inode = |namespace: &Namespace| {
            namespace.run(async || Ok(fs::read_link("/proc/thread-self/ns/net")?)).unwrap()
        };
        let first = inode(&made);
        drop(made);
        assert_eq!(inode(&Namespace::open(&name).unwrap()), first);
        Namespace::delete(&name);
        assert!(Namespace::open(&name).is_err());
    }

    #[test]
    fn a_task_that_panics_is_reported_and_the_namespace_goes_on() {
        let namespace = Namespace::create("panics").unwrap();
        let outcome = namespace.run(async || -> Result<()> { panic!("on purpose") });
        assert!(outcome.unwrap_err().to_string().contains("without a result"));
        assert_eq!(namespace.run(async || Ok(7)).unwrap(), 7);
    }
}
