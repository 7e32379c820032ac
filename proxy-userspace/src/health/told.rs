//! A socket for `millrace status` that answers with the agent's readiness.
//!
//! The pinned maps can't tell it: an agent that waits for its first listing has none yet, and IPVS
//! has none at all. A file would outlive a killed agent. An abstract socket ends with its process.
//! It belongs to the network namespace, as the data plane does, and is reachable from a container
//! and from the node.

use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::Health;
use super::ready::ReadyView;

/// Prefix of the sockets' names.
const PREFIX: &[u8] = b"millrace-agent:";
/// Bytes of a name: those of `sun_path` without the first one, which marks the name as abstract.
const LONGEST_NAME: usize = 107;
/// A running agent answers at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time until another attempt if another agent has the name, or accept failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of the longest answer.
const LONGEST_ANSWER: u64 = 1 << 20;

/// A running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// Its process, as numbered in this process's namespace; 0 if it is not visible there.
    pub process: u32,
    /// The version of its program; none if the agent is older than this field.
    pub version: Option<String>,
    /// Seconds since its start; none if the agent is older than this field.
    pub uptime_seconds: Option<u64>,
    /// The name of its Node; none if the agent is older than this field.
    pub node: Option<String>,
    /// Its readiness.
    pub readiness: ReadyView,
}

/// The agent's answer. Commands of earlier versions read the fields of the readiness alone.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    uptime_seconds: Option<u64>,
    #[serde(default)]
    node: Option<String>,
    #[serde(flatten)]
    readiness: ReadyView,
}

/// The answer's parts that stay the same.
struct Agent {
    started: Instant,
    node: String,
    health: Arc<Health>,
}

/// Answers with the readiness of the agent of a Node with this `--bpffs-path`, until `stop` is closed.
pub async fn serve_status(bpffs: PathBuf, node: String, health: Arc<Health>, mut stop: watch::Receiver<()>) {
    let agent = Agent { started: Instant::now(), node, health };
    let answering = async {
        loop {
            match listen(&bpffs) {
                Ok(listener) => answer_all(&listener, &agent).await,
                Err(error) => debug!(%error, "the socket for `millrace status` can't be opened; tried again"),
            }
            sleep(RETRY_INTERVAL).await;
        }
    };
    tokio::select! {
        () = answering => {}
        _ = stop.changed() => {}
    }
}

/// Returns the agent with this `--bpffs-path`; `None` where none answers.
#[must_use]
pub fn ask(bpffs: &Path) -> Option<AgentView> {
    read(bpffs).ok()
}

fn read(bpffs: &Path) -> io::Result<AgentView> {
    let stream = connect(&address(bpffs)?)?;
    let peer = getsockopt(&stream, PeerCredentials)?;
    // Any process in this network namespace may take a name.
    if peer.uid() != 0 && peer.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut text)?;
    let Answer { version, uptime_seconds, node, readiness } = serde_json::from_str(&text)?;
    let process = u32::try_from(peer.pid()).unwrap_or(0);
    Ok(AgentView { process, version, uptime_seconds, node, readiness })
}

/// Connects within [`PATIENCE`].
///
/// A stopped agent accepts nothing. Once its backlog is full, the kernel lets a connect wait for
/// the socket's send time-out (`unix_stream_connect`).
fn connect(address: &SocketAddr) -> io::Result<StdStream> {
    let name = address.as_abstract_name().unwrap_or_default();
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(
        &socket,
        SendTimeout,
        &TimeVal::milliseconds(PATIENCE.as_millis().try_into().unwrap_or(i64::MAX)),
    )?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    Ok(socket.into())
}

fn listen(bpffs: &Path) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&address(bpffs)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Returns when no connection can be accepted.
async fn answer_all(listener: &UnixListener, agent: &Agent) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        // The answer fits the socket's buffer, so a client that does not read it blocks nothing.
        let _ = timeout(PATIENCE, answer(stream, agent)).await;
    }
}

async fn answer(mut stream: UnixStream, agent: &Agent) -> io::Result<()> {
    let text = serde_json::to_vec(&Answer {
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        uptime_seconds: Some(agent.started.elapsed().as_secs()),
        node: Some(agent.node.clone()),
        readiness: agent.health.readiness().view(),
    })?;
    stream.write_all(&text).await?;
    stream.shutdown().await
}

/// Returns the socket's address. Each `--bpffs-path` has its own. A long path is cut at its front:
/// ends differ.
fn address(bpffs: &Path) -> io::Result<SocketAddr> {
    let path: PathBuf = bpffs.components().collect();
    let path = path.as_os_str().as_encoded_bytes();
    let end = path.get(path.len().saturating_sub(LONGEST_NAME - PREFIX.len())..).unwrap_or_default();
    SocketAddr::from_abstract_name([PREFIX, end].concat())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use nix::sys::socket::Backlog;

    use super::*;
    use crate::health::SystemClock;

    #[tokio::test]
    async fn an_agent_is_asked_by_its_path_and_one_that_is_gone_says_nothing() {
        let long = format!("/sys/fs/bpf/{}/{}", "a".repeat(200), std::process::id());
        let path = PathBuf::from(&long);
        assert_eq!(ask(&path), None);
        let health = Arc::new(Health::new(SystemClock, Duration::from_secs(30)));
        let (stop, stopped) = watch::channel(());
        let task = tokio::spawn(serve_status(path.clone(), "node-a".to_owned(), health.clone(), stopped));
        // A trailing slash makes no difference.
        let asked = async || {
            let path = PathBuf::from(format!("{long}/"));
            tokio::task::spawn_blocking(move || ask(&path)).await.unwrap()
        };
        let mut view = None;
        while view.is_none() {
            view = timeout(Duration::from_secs(20), asked()).await.expect("no answer");
        }
        let view = view.unwrap();
        assert_eq!(view.readiness, health.readiness().view());
        assert_eq!(view.readiness.failing[0].condition, "source-listed");
        assert_eq!((view.process, view.node.as_deref()), (std::process::id(), Some("node-a")));
        assert_eq!(view.version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert!(view.uptime_seconds.is_some_and(|seconds| seconds < 60));
        drop(stop);
        task.await.unwrap();
        assert_eq!(ask(&path), None);
    }

    #[test]
    fn an_agent_of_an_earlier_version_is_understood_and_one_of_its_commands_understands_this_one() {
        let former = ReadyView { ready: true, failing: Vec::new(), failures: vec!["full".to_owned()] };
        let text = serde_json::to_string(&former).unwrap();
        let answer: Answer = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (answer.version.as_ref(), answer.uptime_seconds, &answer.readiness),
            (None, None, &former)
        );
        let text = serde_json::to_string(&Answer { version: Some("9".to_owned()), ..answer }).unwrap();
        assert_eq!(serde_json::from_str::<ReadyView>(&text).unwrap(), former);
    }

    #[test]
    fn an_agent_that_is_stopped_keeps_nobody_waiting() {
        let path = PathBuf::from(format!("/sys/fs/bpf/stopped/{}", std::process::id()));
        let address = address(&path).unwrap();
        let listener = StdListener::bind_addr(&address).unwrap();
        socket::listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _first = StdStream::connect_addr(&address).unwrap();
        let (done, waits) = mpsc::channel();
        thread::spawn(move || done.send(ask(&path).map(|agent| agent.process)));
        assert_eq!(waits.recv_timeout(Duration::from_secs(30)), Ok(None));
    }
}
