//! While the node changes its mode: which connections are this data plane's, since when, and whether there are any left.

use std::path::Path;
use std::time::Duration;

use proxy_common::config::{
    AGENT_SHARE, AGENT_SHARE_SINCE, SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, SHARE_TURNED,
};

use super::bpffs::{entries, is_of_this_namespace};
use super::error::OpenError;
use super::layout::Layout;
use super::load::Programs;
use super::mapped::Access;
use super::maps::{self, Maps};
use super::{EbpfDataplane, Settings, now};

/// Which connections are this data plane's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All.
    #[default]
    Alone,
    /// Those that begin; IPVS has older ones.
    Newer {
        /// The node had this mode before that of IPVS.
        turned: bool,
    },
    /// Those that it has; IPVS gets what begins.
    Older {
        /// The node had that of IPVS before this mode.
        turned: bool,
    },
}

impl Share {
    /// As a `SHARE_*` word.
    #[must_use]
    pub const fn word(self) -> u32 {
        match self {
            Self::Alone => SHARE_ALONE,
            Self::Newer { turned: false } => SHARE_NEWER,
            Self::Newer { turned: true } => SHARE_NEWER | SHARE_TURNED,
            Self::Older { turned: false } => SHARE_OLDER,
            Self::Older { turned: true } => SHARE_OLDER | SHARE_TURNED,
        }
    }

    /// What a word of AGENT says.
    #[must_use]
    pub fn of_word(word: u64) -> Self {
        let all = [false, true].map(|turned| [Self::Newer { turned }, Self::Older { turned }]);
        all.into_iter().flatten().find(|share| u64::from(share.word()) == word).unwrap_or_default()
    }

    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "all connections",
            Self::Newer { .. } => "new connections",
            Self::Older { .. } => "existing connections",
        }
    }

    /// What follows where IPVS gives way. Where that was to take over itself, the change is turned round.
    #[must_use]
    pub const fn to_newer(self) -> Self {
        match self {
            Self::Alone => Self::Newer { turned: false },
            Self::Older { turned } => Self::Newer { turned: !turned },
            newer @ Self::Newer { .. } => newer,
        }
    }

    /// The same where IPVS takes over.
    #[must_use]
    pub const fn to_older(self) -> Self {
        match self {
            Self::Alone => Self::Older { turned: false },
            Self::Newer { turned } => Self::Older { turned: !turned },
            older @ Self::Older { .. } => older,
        }
    }
}

/// Whether an agent of this network namespace, of this or another layout, left programs attached below this BPF file system.
#[must_use]
pub fn is_attached(bpffs_path: &Path) -> bool {
    let has_links = |root: &Path| entries(&root.join("links")).is_ok_and(|links| !links.is_empty());
    let is_ours = |root: &Path| is_of_this_namespace(root).unwrap_or(false);
    entries(&Layout::new(bpffs_path).top())
        .is_ok_and(|roots| roots.iter().any(|root| has_links(root) && is_ours(root)))
}

/// What the programs that an earlier agent left share.
#[must_use]
pub fn recorded(bpffs_path: &Path) -> Share {
    let agent = maps::mapped(&Layout::new(bpffs_path).maps(), "AGENT", Access::Read);
    agent.map_or(Share::Alone, |agent| Share::of_word(agent.load(AGENT_SHARE)))
}

/// Leaves in AGENT what the programs share, and since when: an agent that starts again goes on counting. Returns the latter. The
/// time is written first: one that belongs to another share would be long over.
pub(super) fn record(maps: &Maps, share: Share) -> Duration {
    let word = u64::from(share.word());
    let since = maps.agent.load(AGENT_SHARE_SINCE);
    if maps.agent.load(AGENT_SHARE) == word && since != 0 {
        return Duration::from_secs(since);
    }
    let now = now();
    // Where AGENT has no room for it, the next agent counts anew.
    let _ = maps.agent.store(AGENT_SHARE_SINCE, now.as_secs()) && maps.agent.store(AGENT_SHARE, word);
    now
}

impl EbpfDataplane {
    /// How long the programs have shared what they share; nothing before that was [said](Self::record_share).
    #[must_use]
    pub fn shared_for(&self) -> Duration {
        self.shared_since.map_or(Duration::ZERO, |since| now().saturating_sub(since))
    }

    /// From now on the other mode keeps to its part, or has done so since an earlier agent said so.
    pub fn record_share(&mut self) {
        self.shared_since = Some(record(&self.maps, self.settings.share));
    }

    /// Connections over TCP and SCTP that the last walk through the flows met; `None` before the first has ended. A director has
    /// others, of which it keeps nothing.
    #[must_use]
    pub const fn connections(&self) -> Option<u64> {
        self.connections
    }

    /// What the programs share.
    #[must_use]
    pub const fn share(&self) -> Share {
        self.settings.share
    }

    /// Gives the programs that serve another share, each in one step. It may be repeated where it fails.
    pub fn change_share(&mut self, share: Share) -> Result<(), OpenError> {
        let layout = Layout::new(&self.settings.bpffs_path);
        if self.settings.share != share {
            let settings = Settings { share, ..self.settings.clone() };
            self.programs = Programs::open(&settings, &layout)?;
            self.settings = settings;
        }
        self.attachments.need(&mut self.programs, &self.settings, &layout)?;
        self.attachments.renew(&self.programs)?;
        self.sockets.sync(&self.programs);
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
            // Those that come closest to what the verifier allows.
            let layout = Layout::new(&scratch.path);
            for extra in Extra::ALL {
                dataplane.programs.need(extra, &dataplane.settings, &layout).unwrap();
            }
        }
    }

    #[test]
    fn what_nobody_knows_is_whose_it_was_before_the_first_change() {
        let (from_ebpf, from_ipvs) = (Share::Alone.to_older(), Share::Alone.to_newer());
        assert_eq!((from_ebpf, from_ipvs), (Share::Older { turned: false }, Share::Newer { turned: false }));
        assert_eq!(from_ebpf.to_newer(), Share::Newer { turned: true });
        assert_eq!(from_ebpf.to_newer().to_older(), from_ebpf);
        assert_eq!(from_ipvs.to_older(), Share::Older { turned: true });
        assert_eq!(from_ipvs.to_older().to_newer(), from_ipvs);
        for share in [from_ebpf, from_ipvs, from_ebpf.to_newer(), from_ipvs.to_older()] {
            assert_eq!(
                (share.to_newer().to_newer(), share.to_older().to_older()),
                (share.to_newer(), share.to_older())
            );
            assert_eq!(Share::of_word(share.word().into()), share);
        }
        assert_eq!(Share::of_word(0), Share::Alone);
    }
}
