//! Any sequence of changes ends in the state of a fresh start, even if operations fail.

use proptest::prelude::*;

use super::world::*;
use crate::dataplane::ipvs::plan::Rules;
use crate::dataplane::ipvs::state::{Server, Set, State};
use crate::model::{Protocol, ServicePort};

/// A change of a service to a new port, or to none.
#[derive(Clone, Debug)]
struct Change {
    service: u8,
    port: Option<ServicePort>,
    /// The number of operations before all others fail.
    patience: Option<usize>,
    /// Whether a new agent starts first.
    restart: bool,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let endpoints = prop::collection::btree_set(1..20_u8, 0..5);
    let port = (endpoints, any::<bool>(), any::<bool>(), any::<bool>(), 0..3_u8);
    let change =
        (1..5_u8, prop::option::weighted(0.8, port), prop::option::weighted(0.3, 0..8_usize), any::<bool>());
    let change = change.prop_map(|(service, port, patience, restart)| Change {
        service,
        port: port.map(|(endpoints, local, closed, straight, protocol)| {
            let port = make(service, &endpoints.into_iter().collect::<Vec<_>>(), local, closed, protocol);
            if straight { direct(port) } else { port }
        }),
        patience,
        restart,
    });
    prop::collection::vec(change, 1..12)
}

fn make(n: u8, endpoints: &[u8], local: bool, closed: bool, protocol: u8) -> ServicePort {
    let plain = port(n, endpoints);
    let policy = if local { local_policy(plain) } else { plain };
    let mut port = if closed { restricted(policy, &["10.0.0.0/8", "192.0.2.0/24"]) } else { policy };
    port.protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp][usize::from(protocol)];
    port
}

/// Returns the state without draining servers, marks and numbers of backends, which depend on history.
fn settled(state: &State) -> State {
    let mut state = state.clone();
    state.servers.retain(|_, Server { weight, .. }| *weight > 0);
    let with_numbers = [Set::Marks, Set::Encapsulated, Set::Targets, Set::NodeTargets];
    state.members.retain(|(set, _), _| !with_numbers.contains(set));
    let is_marked = |service: &_| matches!(service, crate::dataplane::ipvs::state::Virtual::Mark { .. });
    state.services.retain(|service, _| !is_marked(service));
    state.servers.retain(|(service, _), _| !is_marked(service));
    state
}

proptest! {
    #[test]
    fn any_history_ends_in_the_state_of_a_fresh_start(changes in changes()) {
        let mut scene = Scene::new(Rules::default());
        for change in changes {
            if change.restart {
                scene.start(Rules::default());
                scene.sync_all();
            }
            scene.kernel.guarded.clear();
            scene.kernel.patience = change.patience;
            scene.serve(change.service, change.port);
            scene.kernel.patience = None;
        }
        prop_assert!(scene.sync([]).is_complete());
        let again = scene.sync_all();
        prop_assert_eq!(again.writes, 0);
        let mut fresh = Scene::new(Rules::default());
        fresh.desired = scene.desired.clone();
        fresh.sync_all();
        prop_assert_eq!(settled(&scene.kernel.state), settled(&fresh.kernel.state));
        for set in [Set::Marks, Set::Encapsulated, Set::Targets, Set::NodeTargets] {
            let count = |scene: &Scene| scene.kernel.state.members.keys().filter(|(of, _)| *of == set).count();
            prop_assert_eq!(count(&scene), count(&fresh), "{:?}", set);
        }
    }
}
