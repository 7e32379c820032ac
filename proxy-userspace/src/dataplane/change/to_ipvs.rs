//! From eBPF to IPVS.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::{INTERVAL, everything, in_words, is_filled};
use crate::dataplane::ebpf::{self, EbpfDataplane};
use crate::dataplane::ipvs::IpvsDataplane;
use crate::dataplane::{Check, Dataplane, SyncReport};
use crate::model::{Desired, Dirty, Forwarding};
use crate::node::Topology;

/// Connections are counted once they are answered; what was being opened at the change has this long for that.
const OPENING: Duration = Duration::from_secs(30);

/// IPVS serves what begins, eBPF keeps what it has.
#[derive(Debug)]
pub struct ToIpvs {
    dataplane: IpvsDataplane,
    former: Former,
    settings: ebpf::Settings,
    drain: Duration,
    topology: Option<Topology>,
    /// When what was in the way is tried again.
    retry_at: Instant,
    /// Whether there are connections of which directors keep nothing, so that nobody knows when the last one has ended.
    keeps_none: bool,
}

/// Where the former mode is.
#[derive(Debug)]
enum Former {
    /// It serves, since the new one is not filled yet; its maps are as the former agent left them.
    Serves,
    /// It gets nothing new, and follows the cluster: its connections know endpoints come and go, other nodes' directors send here.
    Retreats(Box<EbpfDataplane>),
    /// It is in the way, and can't be worked with.
    Stays,
    /// It is gone.
    Gone,
}

impl ToIpvs {
    /// Of a data plane beside which programs are attached; `settings` are those of programs that serve no more than existing
    /// connections.
    #[must_use]
    pub fn new(dataplane: IpvsDataplane, settings: ebpf::Settings, drain: Duration) -> Self {
        Self {
            dataplane,
            former: Former::Serves,
            settings,
            drain,
            topology: None,
            retry_at: Instant::now(),
            keeps_none: false,
        }
    }

    /// Takes what begins away from the former mode.
    fn take_over(&mut self, desired: &Desired, dirty: &Dirty) {
        match EbpfDataplane::open(self.settings.clone()) {
            Ok(mut former) => {
                if let Some(topology) = &self.topology {
                    log(&former.set_topology(topology));
                }
                log(&former.sync(desired, &everything(desired, dirty)));
                info!(
                    "IPVS serves new connections and datagrams; eBPF keeps its connections for at most {} (--drain)",
                    in_words(self.drain)
                );
                self.former = Former::Retreats(Box::new(former));
            }
            Err(error) => {
                warn!("eBPF can't keep its connections, which end: {error}");
                self.former = Former::Stays;
                self.remove();
            }
        }
    }

    fn remove(&mut self) {
        // Its lock goes first.
        self.former = Former::Stays;
        self.retry_at = Instant::now() + INTERVAL;
        match ebpf::cleanup(&self.settings.bpffs_path) {
            Ok(_) => {
                info!("eBPF is gone, IPVS serves alone");
                self.former = Former::Gone;
            }
            Err(error) => warn!("what eBPF left can't be removed: {error}"),
        }
    }

    /// Whether nobody waits for the former mode any more.
    fn is_over(&self) -> bool {
        let former = match &self.former {
            Former::Retreats(former) => former,
            Former::Stays => return Instant::now() >= self.retry_at,
            Former::Serves | Former::Gone => return false,
        };
        let shared_for = former.shared_for();
        if !self.keeps_none && shared_for >= OPENING && former.connections() == Some(0) {
            info!("the last connection of eBPF has ended");
            return true;
        }
        if shared_for >= self.drain {
            info!("eBPF has served existing connections for {}: the others end", in_words(shared_for));
        }
        shared_for >= self.drain
    }
}

/// What the former mode fails on is no reason to be asked for less: it serves what it can.
fn log(report: &SyncReport) {
    for failure in &report.failures {
        debug!("eBPF, which goes: {failure}");
    }
    for (port, why) in &report.pending {
        debug!("eBPF, which goes: {port:?}: {why}");
    }
}

impl Dataplane for ToIpvs {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let report = self.dataplane.sync(desired, dirty);
        self.keeps_none |= desired.ports.values().any(|port| port.forwarding == Forwarding::Dsr);
        match &mut self.former {
            Former::Serves if is_filled(&report, dirty) => self.take_over(desired, dirty),
            Former::Retreats(former) => log(&former.sync(desired, dirty)),
            Former::Serves | Former::Stays | Former::Gone => {}
        }
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        self.topology = Some(topology.clone());
        if let Former::Retreats(former) = &mut self.former {
            log(&former.set_topology(topology));
        }
        self.dataplane.set_topology(topology)
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        let due_in = self.dataplane.housekeep(now_monotonic_seconds);
        let of_former = match &mut self.former {
            Former::Retreats(former) => former.housekeep(now_monotonic_seconds),
            Former::Serves | Former::Stays | Former::Gone => None,
        };
        if self.is_over() {
            self.remove();
        }
        due_in.into_iter().chain(of_former).min()
    }

    fn check(&mut self) -> Check {
        if let Former::Retreats(former) = &mut self.former
            && let Some(fault) = former.check().fault
        {
            debug!("eBPF, which goes: {fault}");
        }
        self.dataplane.check()
    }
}
