//! What the rules promise, in small clusters.

use super::ecmp::Hashing;
use super::scenario::Scenario;
use super::world::{self, Outcome, Size};
use super::{Rules, compare};

const SIZE: Size = Size { nodes: 200, connections: 1_000, slots: 251, lag: 0, seed: 3 };

fn run(scenario: Scenario, hashing: Hashing, rules: Rules, size: Size) -> Outcome {
    world::run(scenario, hashing, size, rules.balancer(size).as_mut())
}

#[test]
fn a_run_follows_from_its_seed() {
    for rules in Rules::ALL {
        let once = |seed| run(Scenario::All, Hashing::Threshold, rules, Size { seed, ..SIZE });
        assert_eq!(once(3), once(3), "{rules:?}");
        assert_ne!(once(3), once(4), "{rules:?}");
    }
}

#[test]
fn nothing_is_cut_where_nothing_changes() {
    for rules in Rules::ALL {
        let outcome = run(Scenario::Nothing, Hashing::Threshold, rules, SIZE);
        assert_eq!((outcome.cut, outcome.moved), (0, 0), "{rules:?}");
        assert!(outcome.connections > 1_000);
    }
}

#[test]
fn a_director_that_saw_the_changes_cuts_nothing() {
    for scenario in [Scenario::Scale, Scenario::Rolling] {
        for seed in 1..=3 {
            let outcome = run(scenario, Hashing::Resilient, Rules::Millrace, Size { seed, ..SIZE });
            assert_eq!(outcome.cut, 0, "{scenario:?}, seed {seed}");
            assert!(outcome.ended_with_pod > 0, "the changes met connections");
        }
    }
    for scenario in [Scenario::Drained, Scenario::All] {
        let outcome = run(scenario, Hashing::Resilient, Rules::Millrace, SIZE);
        assert_eq!(outcome.cut_unmoved, 0, "{scenario:?}");
    }
}

#[test]
fn a_changed_set_of_directors_cuts_nothing_where_the_slots_are_settled() {
    for scenario in [Scenario::Lost, Scenario::Added] {
        for hashing in [Hashing::Resilient, Hashing::Threshold] {
            let outcome = run(scenario, hashing, Rules::Millrace, SIZE);
            assert!(outcome.moved > 0);
            assert_eq!(outcome.cut, 0, "{scenario:?}, {hashing:?}");
            assert_eq!(outcome.director_entries, 0, "directors need no entries");
        }
    }
}

#[test]
fn plain_maglev_cuts_what_a_changed_table_moves() {
    let outcome = run(Scenario::Scale, Hashing::Resilient, Rules::Maglev, SIZE);
    assert!(outcome.cut > 300, "{outcome:?}");
    assert_eq!(run(Scenario::Lost, Hashing::Threshold, Rules::Maglev, SIZE).cut, 0);
}

#[test]
fn flow_tables_keep_what_stays_on_its_director_alone() {
    assert_eq!(run(Scenario::Scale, Hashing::Resilient, Rules::MaglevWithFlows, SIZE).cut, 0);
    let outcome = run(Scenario::All, Hashing::Threshold, Rules::MaglevWithFlows, SIZE);
    assert!(outcome.cut > 0 && outcome.cut_unmoved == 0, "{outcome:?}");
}

#[test]
fn kube_proxy_cuts_every_connection_that_moves() {
    let outcome = run(Scenario::Lost, Hashing::Resilient, Rules::KubeProxy, SIZE);
    assert!(outcome.moved > 0);
    assert_eq!(outcome.cut, outcome.moved);
    assert_eq!(run(Scenario::Scale, Hashing::Resilient, Rules::KubeProxy, SIZE).cut, 0);
}

#[test]
fn millrace_cuts_least_under_everything_at_once() {
    for hashing in [Hashing::Resilient, Hashing::Threshold] {
        let rows = compare(Scenario::All, hashing, Size { lag: 2, ..SIZE });
        let cut: Vec<usize> = rows.iter().map(|row| row.outcome.cut).collect();
        assert!(cut[1..].iter().all(|others| cut[0] < *others), "{hashing:?}: {cut:?}");
    }
}
