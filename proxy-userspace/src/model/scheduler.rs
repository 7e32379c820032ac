//! IPVS' schedulers.

/// The scheduler with which IPVS picks a server for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheduler {
    /// Round robin.
    #[default]
    Rr,
    /// Weighted round robin.
    Wrr,
    /// Least connections.
    Lc,
    /// Weighted least connections.
    Wlc,
    /// Locality-based least connections.
    Lblc,
    /// Locality-based least connections with replication.
    Lblcr,
    /// Source hashing.
    Sh,
    /// Destination hashing.
    Dh,
    /// Shortest expected delay.
    Sed,
    /// Never queue.
    Nq,
    /// Weighted fail-over.
    Fo,
    /// Weighted overflow.
    Ovf,
    /// Maglev hashing.
    Mh,
}

impl Scheduler {
    /// All schedulers.
    pub const ALL: [Self; 13] = [
        Self::Rr,
        Self::Wrr,
        Self::Lc,
        Self::Wlc,
        Self::Lblc,
        Self::Lblcr,
        Self::Sh,
        Self::Dh,
        Self::Sed,
        Self::Nq,
        Self::Fo,
        Self::Ovf,
        Self::Mh,
    ];

    /// Returns all schedulers with their names.
    #[must_use]
    pub fn words() -> [(&'static str, Self); 13] {
        Self::ALL.map(|scheduler| (scheduler.name(), scheduler))
    }

    /// Returns the name that IPVS, kube-proxy and kube-router use. The module is `ip_vs_` and this.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Sh => "sh",
            Self::Dh => "dh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Fo => "fo",
            Self::Ovf => "ovf",
            Self::Mh => "mh",
        }
    }
}
