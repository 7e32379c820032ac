//! The router before the nodes. It spreads the clients' packets over the directors by a hash.

use super::endpoints::Node;

/// Buckets of a resilient next-hop group.
const BUCKETS: usize = 1 << 14;

/// The way in which a router maps a hash to a director.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Hashing {
    /// Buckets keep their director while it lives, as in Linux' resilient next-hop groups.
    Resilient,
    /// Each director has an equal region of the hashes, in order: RFC 2992. Regions move with each
    /// change.
    Threshold,
}

/// The directors of the group, and the buckets of a resilient one.
#[derive(Clone, Debug)]
pub struct Ecmp {
    hashing: Hashing,
    directors: Vec<Node>,
    buckets: Vec<Node>,
}

impl Hashing {
    /// Returns the name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resilient => "resilient",
            Self::Threshold => "threshold",
        }
    }
}

impl Ecmp {
    /// Returns a group of these directors, in increasing order.
    pub fn new(hashing: Hashing, directors: Vec<Node>) -> Self {
        let buckets = (0..BUCKETS).filter_map(|bucket| directors.get(bucket % directors.len().max(1)));
        Self { hashing, buckets: buckets.copied().collect(), directors }
    }

    /// Returns the director of a hash, if there is one.
    pub fn director(&self, hash: u32) -> Option<Node> {
        let members = match self.hashing {
            Hashing::Resilient => &self.buckets,
            Hashing::Threshold => &self.directors,
        };
        members.get(((u64::from(hash) * members.len() as u64) >> 32) as usize).copied()
    }

    /// Takes a director out. Its buckets go to the others in turn.
    pub fn remove(&mut self, director: Node) {
        self.directors.retain(|member| *member != director);
        let mut heirs = self.directors.iter().copied().cycle().skip(director);
        for bucket in self.buckets.iter_mut().filter(|member| **member == director) {
            *bucket = heirs.next().unwrap_or(director);
        }
    }

    /// Adds a director. It gets its share of the buckets, as few as possible from each other one.
    pub fn add(&mut self, director: Node) {
        let Err(at) = self.directors.binary_search(&director) else { return };
        self.directors.insert(at, director);
        let share = BUCKETS / self.directors.len();
        let mut counts = vec![0_usize; self.directors.iter().max().map_or(0, |last| last + 1)];
        for member in &self.buckets {
            if let Some(count) = counts.get_mut(*member) {
                *count += 1;
            }
        }
        let mut missing = share;
        for bucket in &mut self.buckets {
            let Some(count) = counts.get_mut(*bucket).filter(|count| **count > share && missing > 0) else {
                continue;
            };
            *count -= 1;
            missing -= 1;
            *bucket = director;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the share of hashes whose director changes, and of those that had a given director.
    fn moved(before: &Ecmp, after: &Ecmp, of: Node) -> (usize, usize) {
        let hashes = || (0..100_000_u32).map(|number| number.wrapping_mul(0x9e37_79b1));
        let differs = |hash: &u32| before.director(*hash) != after.director(*hash);
        let was_of = |hash: &u32| before.director(*hash) == Some(of);
        (hashes().filter(differs).count(), hashes().filter(was_of).count())
    }

    #[test]
    fn a_resilient_group_moves_only_what_a_lost_director_had() {
        let before = Ecmp::new(Hashing::Resilient, (0..50).collect());
        let mut after = before.clone();
        after.remove(20);
        let (moved, had) = moved(&before, &after, 20);
        assert_eq!(moved, had);
        assert!((0..50).all(|hash| after.director(hash << 26) != Some(20)));
    }

    #[test]
    fn a_new_director_of_a_resilient_group_takes_only_its_share() {
        let before = Ecmp::new(Hashing::Resilient, (0..49).collect());
        let mut after = before.clone();
        after.add(49);
        let (moved, _) = moved(&before, &after, 49);
        assert!((1_900..2_100).contains(&moved), "{moved} of 100000 moved");
    }

    #[test]
    fn a_change_moves_a_quarter_and_more_where_regions_are_equal() {
        let before = Ecmp::new(Hashing::Threshold, (0..50).collect());
        let mut after = before.clone();
        after.remove(25);
        let (moved, _) = moved(&before, &after, 25);
        assert!((25_000..55_000).contains(&moved), "{moved} of 100000 moved");
    }
}
