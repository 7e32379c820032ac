//! Loss of the API server, its etcd, the way to it or the right to ask it. The known state stays,
//! and is right again afterwards.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::apiserver::{ApiServer, HOST};
use millrace_lab::capture::Trail;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{LongConnections, Stream};
use millrace_lab::walk::Walk;
use serde_json::json;

use crate::fixture::{remove, shared, wait_for_backends, wait_for_line};

/// A Service that stays, one that changes, one that is deleted, and traffic to the first.
struct Watched {
    kept: Service,
    changing: Service,
    leaving: Service,
    connections: LongConnections,
    stream: Stream,
}

impl Watched {
    fn start(cluster: &Cluster) -> Result<Self> {
        let kept = cluster.service("kept", 30, &["pod-1a", "pod-1b"])?.external(vip(130));
        let changing = cluster.service("changing", 31, &["pod-1a"])?.external(vip(131));
        let leaving = cluster.service("leaving", 32, &["pod-1a"])?.external(vip(132));
        for service in [&kept, &changing, &leaving] {
            cluster.apply(service, &[1])?;
        }
        let target = SocketAddr::new(vip(130).of(Family::V4), 80);
        let client = cluster.bed().client();
        let connections = LongConnections::open(client, target, 5, 5)?;
        let stream = Stream::start(client, target, Duration::from_millis(1))?;
        Ok(Self { kept, changing, leaving, connections, stream })
    }

    /// Changes that the agent can't know yet.
    fn change(&mut self, cluster: &Cluster) -> Result<()> {
        let kube = cluster.api_server()?.kube();
        self.changing = cluster.service("changing", 31, &["pod-1b"])?.external(vip(131));
        kube.put_all(self.changing.objects())?;
        remove(cluster, &self.leaving)?;
        let coming = cluster.service("coming", 33, &["pod-1b"])?.external(vip(133));
        kube.put_all(coming.objects())
    }

    /// Expects that the maps still have everything.
    fn expect_unchanged(&self, cluster: &Cluster) -> Result<()> {
        let services = cluster.proxy(1)?.services()?;
        for service in [&self.kept, &self.changing, &self.leaving] {
            let rows: Vec<_> = services.iter().filter(|row| row.name == service.name()).collect();
            let served = rows.iter().all(|row| !row.frontends.is_empty() && !row.backends.is_empty());
            assert!(!rows.is_empty() && served, "{}: {rows:?}", service.name());
        }
        cluster.expect(&Walk::to(self.leaving.name(), vip(132), 80, &["pod-1a"], Trail::local("node1")))
    }

    /// Expects that the maps equal the API server's state, and that the traffic had no loss.
    fn expect_right(self, cluster: &Cluster) -> Result<()> {
        let coming = cluster.service("coming", 33, &["pod-1b"])?.external(vip(133));
        for service in [&self.kept, &self.changing, &coming] {
            wait_for_backends(cluster, 1, service)?;
        }
        wait_for_backends(cluster, 1, &self.leaving.without_endpoints())?;
        for (service, number) in [(&self.changing, 131), (&coming, 133)] {
            cluster.expect(&Walk::to(service.name(), vip(number), 80, &["pod-1b"], Trail::local("node1")))?;
        }
        assert_eq!(self.connections.stop()?, 10);
        let delivery = self.stream.stop()?;
        assert!(delivery.sent > 100 && delivery.lost.is_empty(), "{delivery:?}");
        [&self.kept, &self.changing, &coming].into_iter().try_for_each(|service| remove(cluster, service))
    }
}

/// Stops the API server and starts it where the agents can't see it. Objects change before they
/// can.
fn lose_the_server(end: impl Fn(&mut ApiServer) -> Result<()>) -> Result<()> {
    let mut cluster = shared();
    let mut watched = Watched::start(&cluster)?;
    let read = cluster.proxy(1)?.log().len();
    end(cluster.api_server_mut()?)?;
    wait_for_line(&cluster, 1, read, &["172.30.0.2:6443", "can't be reached"])?;
    watched.expect_unchanged(&cluster)?;
    cluster.bed().unplug(HOST)?;
    cluster.api_server_mut()?.start_server()?;
    watched.change(&cluster)?;
    // No watch can continue from its revision.
    cluster.api_server()?.compact()?;
    watched.expect_unchanged(&cluster)?;
    cluster.bed().plug_in(HOST)?;
    watched.expect_right(&cluster)?;
    wait_for_line(&cluster, 1, read, &["172.30.0.2:6443", "works again"])
}

#[test]
fn a_server_that_is_stopped_and_started_costs_nothing_and_is_listed_anew() -> Result<()> {
    lose_the_server(ApiServer::stop_server)
}

#[test]
fn a_server_that_is_killed_and_started_costs_nothing_and_is_listed_anew() -> Result<()> {
    lose_the_server(ApiServer::kill_server)
}

#[test]
fn a_server_without_its_etcd_costs_nothing_and_is_right_afterwards() -> Result<()> {
    let mut cluster = shared();
    let mut watched = Watched::start(&cluster)?;
    cluster.api_server_mut()?.kill_etcd()?;
    assert!(cluster.api_server()?.kube().list("v1", "Service", "default").is_err(), "nothing can be read");
    watched.expect_unchanged(&cluster)?;
    let server = cluster.api_server_mut()?;
    server.start_etcd()?;
    server.wait_until_ready()?;
    watched.change(&cluster)?;
    watched.expect_right(&cluster)
}

#[test]
fn a_server_that_is_restored_from_a_backup_is_listed_anew() -> Result<()> {
    /// More changes than the server makes by itself when it starts.
    const CHANGES: u32 = 300;
    let mut cluster = shared();
    let mut watched = Watched::start(&cluster)?;
    cluster.api_server_mut()?.back_up()?;
    let lost = cluster.service("lost", 34, &["pod-1a"])?.external(vip(134));
    let kube = cluster.api_server()?.kube();
    for number in 0..CHANGES {
        let label = json!({"metadata": {"labels": {"number": number.to_string()}}});
        kube.patch("v1", "Service", "default", watched.kept.name(), label)?;
    }
    kube.put_all(lost.objects())?;
    wait_for_backends(&cluster, 1, &lost)?;
    let read = cluster.proxy(1)?.log().len();
    cluster.bed().unplug(HOST)?;
    cluster.api_server_mut()?.restore_backup()?;
    // These changes take versions that the agent has already seen.
    watched.change(&cluster)?;
    watched.expect_unchanged(&cluster)?;
    cluster.bed().plug_in(HOST)?;
    wait_for_line(&cluster, 1, read, &["172.30.0.2:6443", "has an older state than before"])?;
    wait_for_backends(&cluster, 1, &lost.without_endpoints())?;
    watched.expect_right(&cluster)
}

#[test]
fn connections_that_hang_cost_nothing_and_what_changed_is_learnt() -> Result<()> {
    let cluster = shared();
    let mut watched = Watched::start(&cluster)?;
    cluster.bed().unplug(HOST)?;
    watched.change(&cluster)?;
    watched.expect_unchanged(&cluster)?;
    cluster.bed().plug_in(HOST)?;
    watched.expect_right(&cluster)
}

#[test]
fn a_token_that_has_become_invalid_is_named_and_the_next_one_in_its_file_is_used() -> Result<()> {
    let mut cluster = shared();
    let mut watched = Watched::start(&cluster)?;
    let read = cluster.proxy(1)?.log().len();
    let server = cluster.api_server_mut()?;
    server.revoke_tokens()?;
    // The API server checks the token only when a watch begins, and remembers the tokens that it
    // has seen.
    server.kill_server()?;
    server.start_server()?;
    wait_for_line(&cluster, 1, read, &["401 Unauthorized"])?;
    watched.change(&cluster)?;
    watched.expect_unchanged(&cluster)?;
    cluster.api_server()?.renew_token()?;
    watched.expect_right(&cluster)
}

#[test]
fn a_right_that_is_taken_away_is_named_and_its_return_needs_no_restart() -> Result<()> {
    let mut cluster = shared();
    let mut watched = Watched::start(&cluster)?;
    let read = cluster.proxy(1)?.log().len();
    let kube = cluster.api_server()?.kube();
    let rules = json!({"rules": [{"apiGroups": [""], "resources": ["services", "nodes"], "verbs": ["list", "watch"]}]});
    kube.patch("rbac.authorization.k8s.io/v1", "ClusterRole", "", "millrace", rules)?;
    let server = cluster.api_server_mut()?;
    server.kill_server()?;
    server.start_server()?;
    wait_for_line(&cluster, 1, read, &["forbids to", "endpointslices.discovery.k8s.io", "RBAC"])?;
    watched.change(&cluster)?;
    cluster.api_server()?.grant()?;
    watched.expect_right(&cluster)
}

#[test]
fn an_agent_that_starts_without_a_server_serves_what_the_one_before_has_left() -> Result<()> {
    let mut cluster = shared();
    let mut watched = Watched::start(&cluster)?;
    assert!(cluster.take_agent(1)?.stop()?.success());
    cluster.bed().unplug(HOST)?;
    let read = cluster.proxy(1)?.log().len();
    cluster.start_agent(1)?;
    wait_for_line(&cluster, 1, read, &["172.30.0.2:6443", "can't be reached"])?;
    watched.expect_unchanged(&cluster)?;
    watched.change(&cluster)?;
    cluster.bed().plug_in(HOST)?;
    watched.expect_right(&cluster)
}
