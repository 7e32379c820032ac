//! The views of the data planes of a node: one, or both during a mode change.

use super::error::CliError;
use super::output::{Group, List, note};
use super::place::Place;
use crate::dataplane::ebpf::read::{PinnedMaps, ReadError};
use crate::dataplane::ipvs;

/// The views of the data planes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown<E, I> {
    /// Pinned maps only.
    Ebpf(E),
    /// IPVS only.
    Ipvs(I),
    /// Both.
    Both {
        /// The view of the pinned maps.
        ebpf: E,
        /// The view of IPVS.
        ipvs: I,
    },
}

impl<E, I> Shown<E, I> {
    /// Reads both. Without either, the error is that of the pinned maps.
    pub fn read(
        place: &Place,
        of_maps: impl FnOnce(&PinnedMaps) -> Result<E, ReadError>,
        of_ipvs: impl FnOnce() -> Result<Option<I>, ipvs::OpenError>,
    ) -> Result<Self, CliError> {
        match place.maps() {
            Err(ReadError::Absent { path }) => Self::without_maps(path, of_ipvs()),
            maps => Ok(Self::with_maps(of_maps(&maps?)?, of_ipvs())),
        }
    }

    fn without_maps(path: String, ipvs: Result<Option<I>, ipvs::OpenError>) -> Result<Self, CliError> {
        ipvs?.map(Self::Ipvs).ok_or_else(|| ReadError::Absent { path }.into())
    }

    /// A failure to ask IPVS does not hide the pinned maps: as a rule IPVS does not serve here.
    fn with_maps(ebpf: E, ipvs: Result<Option<I>, ipvs::OpenError>) -> Self {
        match ipvs {
            Ok(Some(ipvs)) => Self::Both { ebpf, ipvs },
            Ok(None) => Self::Ebpf(ebpf),
            Err(error) => {
                note(&format!("what serves by IPVS is left out: {error}"));
                Self::Ebpf(ebpf)
            }
        }
    }

    /// Returns the list with a group for each data plane.
    pub fn list(
        &self,
        kind: &'static str,
        of_maps: impl FnOnce(&E) -> Result<Group, CliError>,
        of_ipvs: impl FnOnce(&I) -> Result<Group, CliError>,
    ) -> Result<List, CliError> {
        let groups = match self {
            Self::Ebpf(ebpf) => vec![of_maps(ebpf)?],
            Self::Ipvs(ipvs) => vec![of_ipvs(ipvs)?],
            Self::Both { ebpf, ipvs } => vec![of_maps(ebpf)?, of_ipvs(ipvs)?],
        };
        Ok(List::new(kind, groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_shown_and_the_error_where_nothing_is_names_the_maps() {
        let broken = || Err(ipvs::OpenError::Capability);
        let without = |ipvs| Shown::<u8, u8>::without_maps("/sys/fs/bpf/millrace".to_owned(), ipvs);
        assert_eq!(without(Ok(Some(2))).unwrap(), Shown::Ipvs(2));
        let error = without(Ok(None)).unwrap_err().to_string();
        assert!(error.starts_with("no data plane at /sys/fs/bpf/millrace"), "{error}");
        assert!(without(broken()).unwrap_err().to_string().contains("CAP_NET_ADMIN"));
        assert_eq!(Shown::<u8, u8>::with_maps(1, Ok(Some(2))), Shown::Both { ebpf: 1, ipvs: 2 });
        assert_eq!(Shown::<u8, u8>::with_maps(1, Ok(None)), Shown::Ebpf(1));
        assert_eq!(Shown::<u8, u8>::with_maps(1, broken()), Shown::Ebpf(1));
    }
}
