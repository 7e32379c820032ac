//! The connections that this data plane owns during a mode change.

use proxy_common::config::{SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, SHARE_TURNED};

/// The connections that this data plane owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All connections.
    #[default]
    Alone,
    /// New connections; IPVS owns older ones.
    Newer {
        /// The node was in eBPF mode before it was in IPVS mode.
        turned: bool,
    },
    /// Existing connections; IPVS gets new ones.
    Older {
        /// The node was in IPVS mode before it was in eBPF mode.
        turned: bool,
    },
}

impl Share {
    /// Returns the `SHARE_*` word.
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

    /// Returns the share that a word of AGENT names.
    #[must_use]
    pub fn of_word(word: u64) -> Self {
        let all = [false, true].map(|turned| [Self::Newer { turned }, Self::Older { turned }]);
        all.into_iter().flatten().find(|share| u64::from(share.word()) == word).unwrap_or_default()
    }

    /// Returns the text for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "all connections",
            Self::Newer { .. } => "new connections",
            Self::Older { .. } => "existing connections",
        }
    }

    /// Returns the share after IPVS gives way. If IPVS was about to take over, the change is reversed.
    #[must_use]
    pub const fn to_newer(self) -> Self {
        match self {
            Self::Alone => Self::Newer { turned: false },
            Self::Older { turned } => Self::Newer { turned: !turned },
            newer @ Self::Newer { .. } => newer,
        }
    }

    /// Returns the share after IPVS takes over.
    #[must_use]
    pub const fn to_older(self) -> Self {
        match self {
            Self::Alone => Self::Older { turned: false },
            Self::Newer { turned } => Self::Older { turned: !turned },
            older @ Self::Older { .. } => older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
