//! Connections of a Service that changes: another way, another table.

use proptest::prelude::*;

use super::connections::{CLIENTS, NODES, Step, World, run, seen_late};
use super::node::{HOMES, Shape};

/// Steps with changes of the Service, and with agents that are away for a while.
fn served_anew() -> impl Strategy<Value = Step> {
    let table = prop_oneof![Just(7), Just(13), Just(23)];
    let shape = (prop::bool::weighted(0.6), any::<bool>(), table)
        .prop_map(|(is_dsr, is_maglev, table)| Shape { is_dsr, is_maglev, table });
    prop_oneof![
        20 => seen_late(),
        2 => shape.prop_map(|shape| Step::Serve { shape }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_connection_is_cut_by_another_way_or_table(steps in proptest::collection::vec(served_anew(), 1..200)) {
        run(&steps);
    }
}

/// Lets the collectors of all nodes walk several times.
fn collect_all(world: &mut World) {
    for (_, node) in (0..9).flat_map(|_| (0..NODES).enumerate()) {
        world.take(&Step::Collect { node });
    }
}

/// The table stays the same, and so do the owners that the connections have.
#[test]
fn a_connection_by_snat_outlives_the_begin_of_dsr() {
    let mut world = World::new();
    world.take(&Step::Serve { shape: Shape { is_dsr: false, ..Shape::default() } });
    for client in 0..CLIENTS {
        world.take(&Step::Syn { client, director: HOMES, is_answered: true });
    }
    world.take(&Step::Serve { shape: Shape::default() });
    for _ in 0..3 {
        world.take(&Step::Wait { seconds: 5 });
        collect_all(&mut world);
        for client in 0..CLIENTS {
            world.take(&Step::Data { client });
        }
    }
    assert_eq!(world.connections.len(), usize::from(CLIENTS));
}

/// Only the former table leads to connections that are silent while the Service changes, and while the
/// collectors look at its slots.
#[test]
fn a_silent_connection_outlives_another_table_and_the_end_of_dsr() {
    let tables = [13, 23, 7].map(|table| Shape { table, ..Shape::default() });
    for shapes in [&tables[..], &[Shape { is_dsr: false, is_maglev: false, table: 13 }]] {
        let mut world = World::new();
        for client in 0..CLIENTS {
            world.take(&Step::Syn { client, director: (client % 3) as u8, is_answered: true });
        }
        for shape in shapes {
            world.take(&Step::Serve { shape: *shape });
            collect_all(&mut world);
            world.take(&Step::Restart { node: HOMES });
        }
        for client in 0..CLIENTS {
            world.take(&Step::Data { client });
        }
        assert_eq!(world.connections.len(), usize::from(CLIENTS));
    }
}

/// Once no older connection can be left, nothing tells the Service from one that always was so.
#[test]
fn nothing_is_left_of_a_change_in_the_end() {
    let mut world = World::new();
    let plain = Shape { is_dsr: false, is_maglev: false, table: 13 };
    for client in 0..CLIENTS {
        world.take(&Step::Syn { client, director: HOMES, is_answered: true });
    }
    world.take(&Step::Serve { shape: Shape { table: 23, ..Shape::default() } });
    world.take(&Step::Serve { shape: plain });
    // Connections that are used keep their way, however old the change is.
    for _ in 0..5 {
        world.take(&Step::Wait { seconds: 60 });
        for client in 0..CLIENTS / 2 {
            world.take(&Step::Data { client });
        }
        collect_all(&mut world);
    }
    // The director goes by its entries alone. The other nodes still get what it encapsulates.
    assert_eq!(world.nodes.iter().filter(|node| node.may_have_dsr()).count(), usize::from(HOMES));
    for client in 0..CLIENTS {
        world.take(&Step::Close { client });
    }
    // The connections by SNAT are none of those that are waited for.
    for client in CLIENTS..CLIENTS + 10 {
        world.take(&Step::Syn { client, director: HOMES, is_answered: true });
    }
    for _ in 0..6 {
        world.take(&Step::Wait { seconds: 60 });
        for client in CLIENTS..CLIENTS + 10 {
            world.take(&Step::Data { client });
        }
        collect_all(&mut world);
    }
    world.take(&Step::Wait { seconds: 10 });
    for node in &world.nodes {
        assert!(!node.may_have_dsr() && !node.has_former() && node.unsettled() == 0);
    }
}
