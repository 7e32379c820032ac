//! Another implementation of NetworkPolicy beside ours: kube-network-policies, by Kubernetes' SIG Network. It and the
//! tables of this agent judge every connection of random clusters.
//!
//! `MILLRACE_POLICY_PEER` names its program, which `cargo xtask` builds from `peer` with Go.
//!
//! The module of policy-assistant can't be had from the Go proxy. Cyclonus, from which it was made, is older, and takes
//! `NotIn` for the demand of a label.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that can't go on must fail"
)]

#[path = "../clusters/mod.rs"]
#[expect(dead_code, reason = "other tests need the rest")]
mod clusters;
mod ours;
mod peer;

use std::collections::BTreeMap;

use millrace::policy::Direction;

use crate::clusters::random::Random;
use crate::clusters::world::World;
use crate::ours::Ours;
use crate::peer::Peer;

/// Clusters of a usual run. With `MILLRACE_LONG=1` there are ten times as many.
const CLUSTERS: u64 = 300;

#[test]
fn another_implementation_comes_to_the_same_verdicts() {
    let is_long = std::env::var_os("MILLRACE_LONG").is_some_and(|value| value == "1");
    let clusters = if is_long { 10 * CLUSTERS } else { CLUSTERS };
    let mut peer = Peer::start();
    let mut tally: BTreeMap<(Direction, bool), usize> = BTreeMap::new();
    for seed in 0..clusters {
        let world = World::valid(&mut Random::new(seed));
        let ours = Ours::of(&world);
        let questions = ours.questions(&world);
        let answers = peer.judge(&world, &questions);
        assert_eq!(answers.len(), questions.len());
        for (question, answer) in questions.iter().zip(answers) {
            for (direction, theirs) in [Direction::Egress, Direction::Ingress].into_iter().zip(answer) {
                if ours.is_meant_to_differ(question, direction) {
                    continue;
                }
                let verdict = ours.judge(question, direction);
                assert!(
                    verdict == theirs,
                    "seed {seed}, {direction} of {question:?}: ours {verdict:?}, theirs {theirs:?}\n{}",
                    serde_json::to_string_pretty(&world.policies).unwrap()
                );
                if let Some(is_allowed) = verdict {
                    *tally.entry((direction, is_allowed)).or_default() += 1;
                }
            }
        }
    }
    println!("{tally:?}");
    // Each verdict occurs often, else the table says little.
    assert!(tally.len() == 4 && tally.values().all(|count| *count > 10_000), "{tally:?}");
}
