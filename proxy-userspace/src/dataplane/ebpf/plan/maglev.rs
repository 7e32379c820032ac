//! Maglev tables (Eisenbud et al., NSDI 2016): every node of a cluster computes the same table.
//!
//! The paper fills the last free slots by competition between the backends, which moves slots
//! needlessly. One leaving backend of 100 then moves 1.4 % of the other backends' slots, up to 2.1
//! %. This code gives the last tenth of the slots by rendezvous hashing among backends below a
//! quota. That moves 0.9 %, up to 1.5 %. No backend gets more than about 2 % above the mean.

use std::net::{IpAddr, SocketAddr};

use proxy_common::hash::mix;
use proxy_common::{Addr4, Addr6, Address};

/// Seeds of the hashes; part of the contract between the nodes of a cluster.
const OFFSET_SEED: u64 = 0x6d69_6c6c_7261_6365;
const SKIP_SEED: u64 = 0x7363_6970_7365_6564;
const SLOT_SEED: u64 = 0x736c_6f74_7365_6564;

/// Returns the table: for each of `length` slots the index of its owner in `backends`.
///
/// `length` is a prime. `backends` must be sorted, since the backends take turns in their order.
/// The length must not depend on the number of backends: a new length moves nearly every flow.
#[must_use]
pub fn table(backends: &[SocketAddr], length: u32) -> Vec<usize> {
    if backends.is_empty() || length == 0 {
        return Vec::new();
    }
    let mut table = Table::new(backends, length);
    table.take_turns(length - length / RENDEZVOUS_SHARE);
    table.give_rest();
    table.owners.into_iter().flatten().collect()
}

/// The rendezvous hash gives one slot in this many.
const RENDEZVOUS_SHARE: u32 = 10;

struct Table<'a> {
    backends: &'a [SocketAddr],
    owners: Vec<Option<usize>>,
    shares: Vec<u32>,
}

impl<'a> Table<'a> {
    fn new(backends: &'a [SocketAddr], length: u32) -> Self {
        let slots = usize::try_from(length).unwrap_or(0);
        Self { backends, owners: vec![None; slots], shares: vec![0; backends.len()] }
    }

    /// The backends take turns. Each takes its most preferred free slot, until `slots` slots are
    /// taken.
    fn take_turns(&mut self, slots: u32) {
        let length = self.owners.len() as u64;
        let mut turns: Vec<_> =
            self.backends.iter().map(|backend| Permutation::new(*backend, length)).collect();
        for owner in (0..self.backends.len()).cycle().take(usize::try_from(slots).unwrap_or(0)) {
            let Some(permutation) = turns.get_mut(owner) else { return };
            while let Some(slot) = self.owners.get_mut(permutation.next(length)) {
                if slot.is_none() {
                    *slot = Some(owner);
                    break;
                }
            }
            self.count(owner);
        }
    }

    /// Gives each remaining slot to the backend with the highest hash among those below the quota.
    fn give_rest(&mut self) {
        let (slots, backends) = (self.owners.len(), self.backends.len());
        let quota =
            u32::try_from(slots.div_ceil(backends) + (slots / backends / 50).max(1)).unwrap_or(u32::MAX);
        let seeds: Vec<u64> = self.backends.iter().map(|backend| hash(SLOT_SEED, *backend)).collect();
        for slot in 0..slots {
            if self.owners.get(slot).is_some_and(Option::is_some) {
                continue;
            }
            let below = self.shares.iter().zip(&seeds).enumerate().filter(|(_, (share, _))| **share < quota);
            let highest = below.max_by_key(|(_, (_, seed))| mix(*seed ^ slot as u64));
            let Some((owner, _)) = highest else { return };
            if let Some(slot) = self.owners.get_mut(slot) {
                *slot = Some(owner);
            }
            self.count(owner);
        }
    }

    fn count(&mut self, owner: usize) {
        if let Some(share) = self.shares.get_mut(owner) {
            *share += 1;
        }
    }
}

/// A backend's order of preference: all slots, each once.
struct Permutation {
    position: u64,
    skip: u64,
}

impl Permutation {
    fn new(backend: SocketAddr, length: u64) -> Self {
        // A table of one slot has only one step.
        let steps = length.saturating_sub(1).max(1);
        let mut skip = hash(SKIP_SEED, backend) % steps + 1;
        // Every step reaches all slots of a prime length. For another length, only a coprime step
        // does.
        while !coprime(skip, length) {
            skip = skip % steps + 1;
        }
        Self { position: hash(OFFSET_SEED, backend) % length, skip }
    }

    fn next(&mut self, length: u64) -> usize {
        let slot = self.position;
        self.position = (slot + self.skip) % length;
        usize::try_from(slot).unwrap_or(usize::MAX)
    }
}

const fn coprime(mut a: u64, mut b: u64) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

fn hash(seed: u64, backend: SocketAddr) -> u64 {
    let state = mix(seed ^ u64::from(backend.port()));
    match backend.ip() {
        IpAddr::V4(address) => absorb(state, &Addr4::from(address)),
        IpAddr::V6(address) => absorb(state, &Addr6::from(address)),
    }
}

fn absorb(state: u64, address: &impl Address) -> u64 {
    // Big-endian values, so that nodes of either byte order agree.
    address.words().iter().fold(state, |state, word| mix(state ^ u64::from(u32::from_be(*word))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const LENGTH: u32 = 16381;

    fn backends(count: u16, subnet: u8) -> Vec<SocketAddr> {
        (0..count).map(|i| SocketAddr::from(([10, subnet, (i >> 8) as u8, i as u8], 8080))).collect()
    }

    #[test]
    fn the_table_is_part_of_the_contract_between_nodes() {
        // A change here moves flows of a cluster whose nodes are upgraded one by one.
        assert_eq!(table(&backends(3, 0), 7), EXPECTED);
        let v6 = ["[2001:db8::1]:80", "[2001:db8::2]:80"].map(|text| text.parse().unwrap());
        assert_eq!(table(&v6, 5), EXPECTED_V6);
        let digest = table(&backends(10, 0), 4093).into_iter().fold(0, |sum, owner| mix(sum ^ owner as u64));
        assert_eq!(digest, EXPECTED_DIGEST);
    }
    const EXPECTED_DIGEST: u64 = 17_620_350_569_172_685_049;
    const EXPECTED: [usize; 7] = [0, 0, 1, 2, 2, 0, 1];
    const EXPECTED_V6: [usize; 5] = [1, 0, 1, 0, 0];

    const CHILD: &str = "dataplane::ebpf::plan::maglev::tests::a_process_prints_its_tables";
    const SAYS: &str = "tables: ";

    /// Returns the digests of a node that sees the endpoints in its own order.
    fn digests(turn: usize) -> String {
        let digest = |count: u16| {
            let mut heard = backends(count, 7);
            heard.rotate_left(turn);
            let sorted: Vec<SocketAddr> = BTreeSet::from_iter(heard).into_iter().collect();
            let owners = table(&sorted, LENGTH).into_iter().map(|owner| sorted[owner]);
            owners.fold(0, |sum, owner| mix(sum ^ hash(SLOT_SEED, owner)))
        };
        format!("{SAYS}{} {}", digest(10), digest(100))
    }

    #[test]
    fn a_process_prints_its_tables() {
        let turn = std::env::var("MILLRACE_TURN").ok().and_then(|turn| turn.parse().ok());
        let told = digests(turn.unwrap_or(1));
        assert_eq!(told, digests(0), "whatever the order");
        println!("{told}");
    }

    #[test]
    fn every_process_computes_the_same_tables() {
        let told = |turn: usize| {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", CHILD, "--nocapture"])
                .env("MILLRACE_TURN", turn.to_string())
                .output()
                .unwrap();
            let output = String::from_utf8(child.stdout).unwrap();
            let line = output.lines().find_map(|line| Some(line.split_once(SAYS)?.1.to_owned()));
            format!("{SAYS}{}", line.unwrap_or_else(|| panic!("no digest in {output}")))
        };
        for turn in [0, 3, 9] {
            assert_eq!(told(turn), digests(0));
        }
    }

    #[test]
    fn few_slots_and_no_backends_are_no_special_case() {
        assert!(table(&[], 7).is_empty());
        assert_eq!(table(&backends(3, 0), 1).len(), 1);
        let owners: BTreeSet<_> = table(&backends(9, 0), 7).into_iter().collect();
        assert_eq!(owners.len(), 7);
        assert_eq!(table(&backends(3, 0), 4096).len(), 4096, "a length that is no prime");
    }

    #[test]
    fn the_largest_share_is_near_the_mean() {
        for count in [10_u16, 100] {
            let backends = backends(count, 3);
            let mut shares = vec![0_u32; backends.len()];
            for owner in table(&backends, LENGTH) {
                shares[owner] += 1;
            }
            let mean = f64::from(LENGTH) / f64::from(count);
            let largest = f64::from(shares.into_iter().max().unwrap());
            assert!(largest / mean <= 1.05, "{count} backends: largest share is {largest}, mean {mean}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn a_backend_that_leaves_moves_few_slots_of_the_others(subnet in any::<u8>(), leaver in 0_usize..100) {
            let before = backends(100, subnet);
            let mut after = before.clone();
            let gone = after.remove(leaver);
            let moved = table(&before, LENGTH).into_iter().zip(table(&after, LENGTH))
                .filter(|(old, new)| before[*old] != gone && before[*old] != after[*new])
                .count();
            let others = LENGTH as usize * 99 / 100;
            prop_assert!(moved * 50 <= others, "{} of {} slots moved", moved, others);
        }

        #[test]
        fn every_slot_has_an_owner_and_every_backend_a_slot(count in 1_u16..=50, subnet in any::<u8>()) {
            let backends = backends(count, subnet);
            let table = table(&backends, 61);
            prop_assert_eq!(table.len(), 61);
            let owners: BTreeSet<_> = table.into_iter().collect();
            prop_assert_eq!(owners.len(), backends.len());
        }
    }
}
