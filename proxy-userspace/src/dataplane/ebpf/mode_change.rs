//! A mode change: the connections that this data plane owns, since when, and whether any are left.

use std::path::Path;
use std::time::Duration;

use proxy_common::config::{AGENT_SHARE, AGENT_SHARE_SINCE};
use tracing::{info, warn};

use super::bpffs::{entries, is_of_this_namespace};
use super::error::OpenError;
use super::held_ports::Outcome;
use super::layout::Layout;
use super::load::Programs;
use super::map;
use super::mapped::Access;
use super::maps::Maps;
use super::settings::Settings;
use super::share::Share;
use super::{EbpfDataplane, held_ports, now, reply_ports};

/// Whether an earlier agent of this network namespace left programs attached below this BPF file system.
/// Its layout may be another one.
#[must_use]
pub fn is_attached(bpffs_path: &Path) -> bool {
    let has_links = |root: &Path| entries(&root.join("links")).is_ok_and(|links| !links.is_empty());
    let is_ours = |root: &Path| is_of_this_namespace(root).unwrap_or(false);
    entries(&Layout::new(bpffs_path).top())
        .is_ok_and(|roots| roots.iter().any(|root| has_links(root) && is_ours(root)))
}

/// Returns the share of the programs that an earlier agent left.
#[must_use]
pub fn recorded(bpffs_path: &Path) -> Share {
    let agent = map::mapped(&Layout::new(bpffs_path).maps(), "AGENT", Access::Read);
    agent.map_or(Share::Alone, |agent| Share::of_word(agent.load(AGENT_SHARE)))
}

/// Records in AGENT the share and its start, and returns the start. A new agent goes on counting from there.
///
/// The time is written first, because a time that belongs to another share would be long over.
pub(super) fn record(maps: &Maps, share: Share) -> Duration {
    let word = u64::from(share.word());
    let since = maps.agent.load(AGENT_SHARE_SINCE);
    if maps.agent.load(AGENT_SHARE) == word && since != 0 {
        return Duration::from_secs(since);
    }
    let now = now();
    // If AGENT has no room for it, the next agent counts anew.
    let _ = maps.agent.store(AGENT_SHARE_SINCE, now.as_secs()) && maps.agent.store(AGENT_SHARE, word);
    now
}

impl EbpfDataplane {
    /// Returns the age of the share; zero before it was [recorded](Self::record_share).
    #[must_use]
    pub fn shared_for(&self) -> Duration {
        self.shared_since.map_or(Duration::ZERO, |since| now().saturating_sub(since))
    }

    /// Starts the time of the share: the other mode keeps to its part from now on, or since the time that an
    /// earlier agent recorded.
    pub fn record_share(&mut self) {
        self.shared_since = Some(record(&self.maps, self.settings.share));
    }

    /// Returns the TCP and SCTP connections that the last walk through the flows met; `None` before the end
    /// of the first walk. A director has others that it keeps no entries for.
    #[must_use]
    pub const fn connections(&self) -> Option<u64> {
        self.connections
    }

    /// Returns the share of the programs.
    #[must_use]
    pub const fn share(&self) -> Share {
        self.settings.share
    }

    /// Has the kernel's connection tracking hold the ports of this mode's translated connections for `time`, because new
    /// ones are to be the kernel's.
    pub fn hold_ports(&self, time: Duration) {
        let outcome = held_ports::hold(&self.maps, time)
            .unwrap_or_else(|error| Outcome { reason: Some(error), ..Outcome::default() });
        let Outcome { held, refused, reason, is_short } = outcome;
        if held > 0 {
            info!(connections = held, "the kernel's rules give no other connection the ports of these");
        }
        if let Some(error) = reason {
            warn!(
                %error, refused,
                "the kernel was not told the ports of all connections; a new connection that gets one of them fails"
            );
        }
        if is_short {
            warn!(
                "the kernel has no room for the ports of all connections (net.netfilter.nf_conntrack_max); a new \
                 connection that gets one of the others fails"
            );
        }
    }

    /// Gives the attached programs another share, each in one step. It may be repeated after a failure.
    pub fn change_share(&mut self, share: Share) -> Result<(), OpenError> {
        let layout = Layout::new(&self.settings.bpffs_path);
        if self.settings.share != share {
            let settings = Settings { share, ..self.settings.clone() };
            let replies = reply_ports::of(&settings.snat_ports, &layout)?;
            self.programs = Programs::open(&settings, &layout, &replies)?;
            self.settings = settings;
        }
        self.attachments.need(&mut self.programs, &self.settings, &layout)?;
        self.attachments.renew(&self.programs)?;
        self.sockets.sync(&self.programs);
        self.programs.remove_former()?;
        self.hold_pins();
        if share == Share::Alone {
            self.forget_node_datagrams()?;
        }
        self.record_share();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::config::AGENT_SHARE;

    use super::{Layout, Share};
    use crate::dataplane::ebpf::load::Extra;
    use crate::dataplane::ebpf::recorded;
    use crate::dataplane::ebpf::scratch::Scratch;

    #[test]
    fn programs_that_serve_get_another_share_and_the_next_agent_knows() {
        let scratch = Scratch::new("share");
        let mut dataplane = scratch.open();
        assert_eq!(recorded(&scratch.path), Share::Alone);
        for share in [Share::Older { turned: true }, Share::Newer { turned: true }, Share::Alone] {
            let before = dataplane.programs.directory.clone();
            dataplane.change_share(share).unwrap();
            assert_eq!((dataplane.share(), recorded(&scratch.path)), (share, share));
            assert!(!before.exists() && dataplane.programs.directory.exists());
            assert_eq!(dataplane.maps.agent.load(AGENT_SHARE), u64::from(share.word()));
            dataplane.change_share(share).unwrap();
            // The programs closest to the verifier's limit.
            let layout = Layout::new(&scratch.path);
            for extra in Extra::ALL {
                dataplane.programs.need(extra, &dataplane.settings, &layout).unwrap();
            }
        }
    }
}
