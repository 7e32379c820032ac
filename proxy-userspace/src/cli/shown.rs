//! The output of a subcommand for the data planes of a node: one, or both during a mode change.

use serde::Serialize;

use super::table::Table;
use super::{CliError, Show};
use crate::dataplane::ebpf::read::{PinnedMaps, ReadError};
use crate::dataplane::ipvs;

/// The views of the data planes. In JSON, a single view stands alone; two stand under their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
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

/// A view of IPVS as a table.
pub trait IpvsTable {
    /// Returns the table.
    fn table(&self) -> Table;
}

impl<E, I> Shown<E, I> {
    /// Reads both. Without either, the error is that of the pinned maps.
    pub fn read(
        show: &Show,
        of_maps: impl FnOnce(&PinnedMaps) -> Result<E, ReadError>,
        of_ipvs: impl FnOnce() -> Result<Option<I>, ipvs::OpenError>,
    ) -> Result<Self, CliError> {
        match show.maps() {
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
                eprintln!("millrace: what serves by IPVS is left out: {error}");
                Self::Ebpf(ebpf)
            }
        }
    }

    /// Returns the text for people: a table for each data plane.
    pub fn tables(&self, of_maps: impl Fn(&E) -> Table) -> Vec<Table>
    where
        I: IpvsTable,
    {
        match self {
            Self::Ebpf(ebpf) => vec![of_maps(ebpf)],
            Self::Ipvs(ipvs) => vec![ipvs.table()],
            Self::Both { ebpf, ipvs } => vec![of_maps(ebpf), ipvs.table()],
        }
    }
}

impl<E, I> Shown<Vec<E>, Vec<I>> {
    /// Returns the length of the longer list.
    pub fn longest(&self) -> usize {
        match self {
            Self::Ebpf(ebpf) => ebpf.len(),
            Self::Ipvs(ipvs) => ipvs.len(),
            Self::Both { ebpf, ipvs } => ebpf.len().max(ipvs.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_data_plane_has_nothing_around_it_and_two_have_their_names() {
        let json = |shown: Shown<Vec<u8>, Vec<u8>>| serde_json::to_value(shown).unwrap();
        assert_eq!(json(Shown::Ebpf(vec![1])), json!([1]));
        assert_eq!(json(Shown::Ipvs(vec![2])), json!([2]));
        assert_eq!(json(Shown::Both { ebpf: vec![1], ipvs: vec![] }), json!({"ebpf": [1], "ipvs": []}));
    }

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

    #[test]
    fn both_have_a_table_of_their_own() {
        struct OfIpvs;
        impl IpvsTable for OfIpvs {
            fn table(&self) -> Table {
                Table::new(&["B"])
            }
        }
        let of_maps = |(): &()| Table::new(&["A"]);
        let both = Shown::Both { ebpf: (), ipvs: OfIpvs };
        assert_eq!(both.tables(of_maps), [Table::new(&["A"]), Table::new(&["B"])]);
        assert_eq!(Shown::Ipvs(OfIpvs).tables(of_maps), [Table::new(&["B"])]);
    }

    #[test]
    fn of_two_lists_the_longer_one_counts() {
        let both = |ebpf: &[u8], ipvs: &[u8]| Shown::Both { ebpf: ebpf.to_vec(), ipvs: ipvs.to_vec() };
        assert_eq!(both(&[1, 2], &[1]).longest(), 2);
        assert_eq!(both(&[], &[1]).longest(), 1);
        assert_eq!(Shown::<Vec<u8>, Vec<u8>>::Ipvs(vec![1]).longest(), 1);
    }
}
