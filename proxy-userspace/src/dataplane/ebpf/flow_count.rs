//! Flow entries by state. The walk through the flow tables counts them, since a scrape must not.

use proxy_common::flow::{FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ESTABLISHED, FLOW_SYN};

use crate::dataplane::FlowCount;
use crate::model::Family;

/// The number of flow tables: two for each family.
pub const FLOW_TABLES: usize = 4;
/// Name and family of each table, in the order of the walk.
const TABLES: [(&str, Family); FLOW_TABLES] =
    [("new", Family::V4), ("new", Family::V6), ("established", Family::V4), ("established", Family::V6)];

/// The entries of one table, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    syn: u64,
    established: u64,
    closing: u64,
    datagram: u64,
}

impl States {
    /// Counts an entry that stays.
    pub const fn count(&mut self, state: u8) {
        match state {
            FLOW_SYN => self.syn += 1,
            FLOW_ESTABLISHED => self.established += 1,
            FLOW_CLOSING => self.closing += 1,
            FLOW_DATAGRAM => self.datagram += 1,
            // The programs write no other state.
            _ => {}
        }
    }

    const fn named(self) -> [(&'static str, u64); 4] {
        let Self { syn, established, closing, datagram } = self;
        [("syn", syn), ("established", established), ("closing", closing), ("datagram", datagram)]
    }
}

/// Returns the counts of all tables with their names.
pub fn named(tables: &[States; FLOW_TABLES]) -> Vec<FlowCount> {
    let of_table = |((table, family), states): ((&'static str, Family), &States)| {
        states.named().map(|(state, entries)| FlowCount { table, family, state, entries })
    };
    TABLES.into_iter().zip(tables).flat_map(of_table).collect()
}

/// Returns the entries of FLOWS4 and FLOWS6.
pub fn in_flows(counts: &[FlowCount]) -> [u64; 2] {
    [Family::V4, Family::V6].map(|family| {
        let of_table = counts.iter().filter(|count| count.table == "established" && count.family == family);
        of_table.map(|count| count.entries).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_by_table_family_and_state() {
        let mut tables = [States::default(); FLOW_TABLES];
        tables[0].count(FLOW_SYN);
        for state in [FLOW_ESTABLISHED, FLOW_ESTABLISHED, FLOW_CLOSING, FLOW_DATAGRAM, 77] {
            tables[3].count(state);
        }
        assert_eq!(in_flows(&named(&tables)), [0, 4]);
        let counts: Vec<FlowCount> = named(&tables).into_iter().filter(|count| count.entries > 0).collect();
        let count = |table, family, state, entries| FlowCount { table, family, state, entries };
        assert_eq!(
            counts,
            [
                count("new", Family::V4, "syn", 1),
                count("established", Family::V6, "established", 2),
                count("established", Family::V6, "closing", 1),
                count("established", Family::V6, "datagram", 1),
            ]
        );
    }
}
