//! A network namespace with a thread that lives in it.
//!
//! A thread is in one network namespace at a time, and `setns` moves the whole thread. So each namespace has a
//! thread of its own with a runtime of its own: whatever is done there (sockets, rtnetlink, /proc/sys/net, child
//! processes) happens in that namespace, and no task can be resumed in another one.

use std::fs::{self, File};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::mount::{MntFlags, MsFlags};
use nix::sched::{CloneFlags, unshare};
use tokio::sync::{mpsc as tokio_mpsc, oneshot};
use tokio::task::LocalSet;

use super::Cgroup;

/// Where `ip netns` looks for namespaces.
pub(super) const DIRECTORY: &str = "/run/netns";

/// How long a task that is dropped may take to end. Only one that blocks its thread takes any time.
const END_LIMIT: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A named network namespace; it and everything in it goes when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    jobs: Option<tokio_mpsc::UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Removed after the thread has ended, which is in it.
    _cgroup: Option<Arc<Cgroup>>,
}

impl Namespace {
    /// Makes the namespace `<own prefix><name>`, with its loopback device up.
    pub fn create(name: &str) -> Result<Self> {
        Self::make(name, None)
    }

    /// The same, with all its processes and sockets in a control group.
    pub fn create_in(name: &str, cgroup: Arc<Cgroup>) -> Result<Self> {
        Self::make(name, Some(cgroup))
    }

    fn make(name: &str, cgroup: Option<Arc<Cgroup>>) -> Result<Self> {
        let name = format!("{}{name}", super::own_prefix());
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
        let namespace = Self { name, jobs: Some(jobs), thread: Some(thread), _cgroup: cgroup };
        is_ready.recv().context("the namespace's thread ended early")??;
        namespace.run(async || super::Netlink::open()?.set_up("lo").await)?;
        Ok(namespace)
    }

    /// Name under which `ip netns exec` finds it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A handle of the namespace, to move devices into it.
    pub fn file(&self) -> Result<File> {
        let path = Self::path_of(&self.name);
        File::open(&path).with_context(|| format!("can't open {}", path.display()))
    }

    /// Runs `job` in the namespace and waits for what it returns.
    pub fn run<T, F>(&self, job: F) -> Result<T>
    where
        F: AsyncFnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.spawn(job).join()
    }

    /// Starts `job` in the namespace; it ends with the returned task at the latest.
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
        // A namespace whose thread is gone drops the job, and join reports it.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(run));
        Task { result, namespace: self.name.clone(), cancel: Some(cancel) }
    }

    /// Frames that each device had no room for, or dropped otherwise: what it received, and what it was to send.
    pub fn dropped_frames(&self) -> Result<Vec<(String, u64, u64)>> {
        // The jobs' thread is in the namespace, the process is not.
        let text = self.run(async || Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        Ok(text.lines().filter_map(dropped).collect())
    }

    fn path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(name)
    }
}

/// Reads a line of /proc/net/dev: a name, eight numbers of what was received, then those of what was sent; the fourth
/// of each is what was dropped.
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
        remove(&Self::path_of(&self.name));
    }
}

/// Something that runs in a namespace; it has ended when it is dropped.
#[derive(Debug)]
pub struct Task<T> {
    result: mpsc::Receiver<Result<T>>,
    namespace: String,
    cancel: Option<oneshot::Sender<()>>,
}

impl<T> Task<T> {
    /// Waits for the end.
    pub fn join(self) -> Result<T> {
        self.result.recv().map_err(|_| anyhow!("a task in {} ended without a result", self.namespace))?
    }

    /// The result, if the end has come. It is given out once.
    #[must_use]
    pub fn outcome_so_far(&self) -> Option<Result<T>> {
        self.result.try_recv().ok()
    }

    /// Waits for the end, but not longer than `limit`.
    pub fn join_within(self, limit: Duration) -> Result<T> {
        self.result
            .recv_timeout(limit)
            .with_context(|| format!("a task in {} gave no result within {limit:?}", self.namespace))?
    }
}

impl<T> Drop for Task<T> {
    /// The job's side of the channel goes after all the job held.
    fn drop(&mut self) {
        drop(self.cancel.take());
        while self.result.recv_timeout(END_LIMIT).is_ok() {}
    }
}

/// Takes the name away; the namespace itself ends with its last user.
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

/// Runs jobs side by side until the namespace is dropped.
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
    fn a_task_that_panics_is_reported_and_the_namespace_goes_on() {
        let namespace = Namespace::create("panics").unwrap();
        let outcome = namespace.run(async || -> Result<()> { panic!("on purpose") });
        assert!(outcome.unwrap_err().to_string().contains("without a result"));
        assert_eq!(namespace.run(async || Ok(7)).unwrap(), 7);
    }
}
