//! The same where both nodes serve by IPVS.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::remove_own_at_exit;
use millrace_lab::topology::{Dual, Family, Shape, vip};

use crate::{Bed, LARGE, PORT, SMALL, TARGET_PORT};

const FLAGS: [&str; 2] = ["--proxy-mode", "ipvs"];
/// An emulated machine takes its time.
const LIMIT: Duration = Duration::from_mins(1);

fn start() -> Result<Bed> {
    remove_own_at_exit();
    let shape = Shape { nodes: 2, pods: 1, ..Shape::default() };
    let mut cluster = Cluster::without_agents(shape, "off")?;
    for node in [1, 2] {
        cluster.start_agent_with(node, &FLAGS)?;
        cluster.proxy(node)?.wait_for_start(1)?;
    }
    Ok(Bed::of(cluster))
}

#[expect(clippy::unwrap_used, reason = "a cluster that does not come up must fail the tests at once")]
fn shared() -> MutexGuard<'static, Bed> {
    static BED: LazyLock<Mutex<Bed>> = LazyLock::new(|| Mutex::new(start().unwrap()));
    BED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bed {
    /// As [`Bed::serve`], for nodes that know no services by name: waits for an answer of each family.
    fn serve_by_ipvs(
        &self,
        name: &str,
        number: u8,
        node: u8,
        change: impl Fn(Service) -> Service,
    ) -> Result<Dual> {
        let (vip, bed) = (vip(number), self.cluster.bed());
        let pod = bed.pod(&format!("pod-{node}a"))?;
        let service = Service::new(name, number).sctp_port(PORT, TARGET_PORT).load_balancer(vip);
        self.cluster.manifests().put_service(&change(service.pod(bed.node(node)?, pod)))?;
        for family in Family::ALL {
            let is_answered = || Ok(self.talk(vip, family, SMALL).is_ok());
            self.cluster.proxy(1)?.wait_until_within(
                LIMIT,
                &format!("an answer by {family}"),
                is_answered,
            )?;
        }
        Ok(vip)
    }
}

#[test]
fn a_pod_of_the_node_is_reached_behind_another_port() -> Result<()> {
    let bed = shared();
    let vip = bed.serve_by_ipvs("ipvs-here", 21, 1, |service| service)?;
    for family in Family::ALL {
        let answer = bed.talk(vip, family, LARGE)?;
        assert!(answer.sighting.backend == "pod-1a" && answer.kept_client(), "{answer:?}");
    }
    Ok(())
}

#[test]
fn a_pod_of_another_node_is_reached_from_the_first() -> Result<()> {
    let bed = shared();
    let vip = bed.serve_by_ipvs("ipvs-there", 22, 2, |service| service)?;
    for family in Family::ALL {
        let answer = bed.talk(vip, family, LARGE)?;
        let node = bed.cluster.bed().node(1)?.addresses().of(family);
        assert_eq!((answer.sighting.backend.as_str(), answer.sighting.peer.ip()), ("pod-2a", node));
    }
    Ok(())
}

/// In packets that fit the tunnel.
#[test]
fn a_pod_of_another_node_answers_the_client_itself() -> Result<()> {
    let bed = shared();
    let direct = |service: Service| service.annotation("millrace/forwarding", "dsr");
    let vip = bed.serve_by_ipvs("ipvs-direct", 23, 2, direct)?;
    for family in Family::ALL {
        let answer = bed.talk(vip, family, SMALL)?;
        assert!(answer.sighting.backend == "pod-2a" && answer.kept_client(), "{answer:?}");
    }
    Ok(())
}
