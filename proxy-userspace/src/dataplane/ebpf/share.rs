//! While the node changes its mode: which connections are this data plane's, since when, and whether there are any left.

use std::path::Path;
use std::time::Duration;

use proxy_common::config::{AGENT_SHARE, AGENT_SHARE_SINCE};

use super::bpffs::entries;
use super::error::OpenError;
use super::layout::Layout;
use super::load::Programs;
use super::maps::Maps;
use super::settings::Share;
use super::{EbpfDataplane, now};

/// Whether an agent of this or another layout left programs attached below this BPF file system.
#[must_use]
pub fn is_attached(bpffs_path: &Path) -> bool {
    let has_links = |root: &Path| entries(&root.join("links")).is_ok_and(|links| !links.is_empty());
    entries(&Layout::new(bpffs_path).top()).is_ok_and(|roots| roots.iter().any(|root| has_links(root)))
}

/// Leaves in AGENT what the programs share, and since when: an agent that starts again goes on counting.
pub(super) fn record(maps: &Maps, share: Share) {
    let word = u64::from(share.word());
    if maps.agent.load(AGENT_SHARE) != word {
        // Where AGENT has no room for it, the next agent counts anew.
        let _ = maps.agent.store(AGENT_SHARE, word) && maps.agent.store(AGENT_SHARE_SINCE, now().as_secs());
    }
}

impl EbpfDataplane {
    /// How long the programs have shared what they share.
    #[must_use]
    pub fn shared_for(&self) -> Duration {
        now().saturating_sub(Duration::from_secs(self.maps.agent.load(AGENT_SHARE_SINCE)))
    }

    /// Connections over TCP and SCTP that the last walk through the flows met; `None` before the first has ended. A director has
    /// others, of which it keeps nothing.
    #[must_use]
    pub const fn connections(&self) -> Option<u64> {
        self.connections
    }

    /// There is no other mode any more: all connections are this one's.
    pub fn serve_alone(&mut self) -> Result<(), OpenError> {
        self.settings.share = Share::Alone;
        let layout = Layout::new(&self.settings.bpffs_path);
        self.programs = Programs::open(&self.settings, &layout)?;
        if self.attachments.has_bare() {
            self.programs.need_bare(&self.settings, &layout)?;
        }
        self.attachments.renew(&self.programs)?;
        self.sockets.sync(&self.programs);
        record(&self.maps, Share::Alone);
        Ok(())
    }
}
