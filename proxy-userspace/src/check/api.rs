//! The API server, and this node's Node.

use std::time::Duration;

use super::finding::faults_or;
use super::{Facts, Finding, Known};
use crate::config::{Settings, Source};
use crate::source::Signs;
use crate::source::kubernetes::{POLICY_RIGHTS, Probe, RIGHTS, Right, connect, probe};

/// What follows from an address of a Service.
const OWN_ADDRESS: &str = "set KUBERNETES_SERVICE_HOST and _PORT to the server's own address (the DaemonSet takes them \
                           from the ConfigMap millrace-api-server), or --kubeconfig";

/// Asks the API server that the settings name.
pub async fn read(settings: &Settings, patience: Duration) -> Known<Probe> {
    match &settings.source {
        Source::Directory(path) => Err(format!("objects come from the directory {}", path.display())),
        Source::Kubernetes { kubeconfig } => {
            let connection = connect(kubeconfig.as_deref(), Signs::default()).await;
            let connection = connection.map_err(|error| error.to_string())?;
            let of_policies = POLICY_RIGHTS.into_iter().filter(|_| settings.network_policy);
            let rights: Vec<Right> = RIGHTS.into_iter().chain(of_policies).collect();
            Ok(probe(&connection, &settings.model.node_name, &rights, patience).await)
        }
    }
}

pub fn reachable(facts: &Facts) -> Vec<Finding> {
    let probe = match (&facts.api, &facts.settings.source) {
        (Ok(probe), _) => probe,
        // An agent would not start. One that runs may have another environment than this process.
        (Err(why), Source::Kubernetes { .. }) if facts.agent.is_none() => {
            return vec![Finding::fail(why, "give the agent's --kubeconfig, or its --source")];
        }
        (Err(why), _) => return vec![Finding::skip(why)],
    };
    vec![match &probe.version {
        Ok(version) => Finding::pass(format!("{}, Kubernetes {version}", probe.server)),
        Err(why) if probe.is_pod => Finding::fail(
            format!(
                "{}: {why}. KUBERNETES_SERVICE_HOST is usually a ClusterIP: without kube-proxy nobody serves it \
                 before us",
                probe.server
            ),
            OWN_ADDRESS,
        ),
        Err(why) => Finding::fail(
            format!("{}: {why}", probe.server),
            "check the server's address in the kubeconfig, and whether this node reaches it",
        ),
    }]
}

pub fn address(facts: &Facts) -> Vec<Finding> {
    let Ok(probe) = &facts.api else { return vec![Finding::skip("no API server is asked")] };
    let (Some(address), Ok(service)) = (probe.address(), &probe.service) else {
        return vec![Finding::skip("the address is not known, or that of the Service default/kubernetes")];
    };
    if !service.contains(&address) {
        return vec![Finding::pass(format!("{address} is the server's own"))];
    }
    vec![Finding::warn(
        format!(
            "{address} is the ClusterIP of default/kubernetes: without kube-proxy nobody serves it before us, and after \
             a restart of the node the agent can't start"
        ),
        OWN_ADDRESS,
    )]
}

pub fn rights(facts: &Facts) -> Vec<Finding> {
    let Ok(probe) = &facts.api else { return vec![Finding::skip("no API server is asked")] };
    let missing = match &probe.missing {
        Ok(missing) => missing,
        Err(why) => return vec![Finding::skip(format!("not known: {why}"))],
    };
    let fault = |right: &Right| {
        let resource = if right.group.is_empty() {
            right.resource.to_owned()
        } else {
            format!("{}.{}", right.resource, right.group)
        };
        let remedy = "apply the ClusterRole and its binding of the manifests";
        if right.resource == "events" {
            Finding::warn(
                format!("RBAC does not allow to {} {resource}: problems are in the log alone", right.verb),
                remedy,
            )
        } else if POLICY_RIGHTS.contains(right) {
            Finding::fail(
                format!(
                    "RBAC does not allow to {} {resource}: no NetworkPolicy is enforced without",
                    right.verb
                ),
                "set networkPolicy.enabled of the chart, or add the component manifests/components/network-policy",
            )
        } else {
            Finding::fail(
                format!("RBAC does not allow to {} {resource}: the agent serves nothing without", right.verb),
                remedy,
            )
        }
    };
    faults_or(missing.iter().map(fault).collect(), || "RBAC allows what the agent asks for".to_owned())
}

pub fn node(facts: &Facts) -> Vec<Finding> {
    let name = &facts.settings.model.node_name;
    let Ok(probe) = &facts.api else { return vec![Finding::skip(format!("{name}; no API server is asked"))] };
    let addresses = match &probe.node {
        Ok(Some(addresses)) => addresses,
        Ok(None) => {
            return vec![Finding::fail(
                format!("there is no Node {name}: NodePorts and endpoints here are not served"),
                "kubectl get nodes; name this one by --hostname-override or NODE_NAME",
            )];
        }
        Err(why) => return vec![Finding::skip(format!("{name}; not known: {why}"))],
    };
    let Ok(network) = &facts.network else { return vec![Finding::skip("the devices are not known")] };
    let is_here =
        |address: &&std::net::IpAddr| network.look.state.addresses.iter().any(|(_, own)| own == *address);
    let faults = addresses.iter().filter(|address| !is_here(address)).map(|address| {
        Finding::fail(
            format!("the Node {name} has the InternalIP {address}, which no device here has"),
            "run the pod with hostNetwork: true; or name this node by --hostname-override",
        )
    });
    faults_or(faults.collect(), || {
        let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        format!("the Node {name} has {addresses}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Outcome;
    use super::*;

    fn judged(change: impl FnOnce(&mut Probe), judge: fn(&Facts) -> Vec<Finding>) -> Vec<Finding> {
        let mut facts = Facts::example();
        change(facts.api.as_mut().unwrap());
        judge(&facts)
    }

    #[test]
    fn a_server_behind_a_service_is_named_with_the_remedy() {
        assert_eq!(judged(|_| {}, reachable)[0].found, "https://10.0.0.1:6443, Kubernetes v1.36.1");
        let through = |probe: &mut Probe| "https://10.96.0.1:443".clone_into(&mut probe.server);
        let warned = judged(through, address);
        assert_eq!(warned[0].outcome, Outcome::Warn);
        assert!(warned[0].found.starts_with(
            "10.96.0.1 is the ClusterIP of default/kubernetes: without kube-proxy nobody serves it before us"
        ));
        assert_eq!(judged(|_| {}, address)[0].outcome, Outcome::Pass);
        let gone = judged(
            |probe| {
                through(probe);
                (probe.is_pod, probe.version) =
                    (true, Err("the API server can't be reached: refused".to_owned()));
            },
            reachable,
        );
        assert!(
            gone[0].outcome == Outcome::Fail && gone[0].found.contains("nobody serves it before us"),
            "{gone:?}"
        );
    }

    #[test]
    fn each_right_that_is_missing_is_named() {
        assert_eq!(judged(|_| {}, rights)[0].outcome, Outcome::Pass);
        let missing = judged(
            |probe| {
                probe.missing = Ok(vec![RIGHTS[5], RIGHTS[6], POLICY_RIGHTS[3]]);
            },
            rights,
        );
        assert_eq!(
            missing[0].found,
            "RBAC does not allow to watch endpointslices.discovery.k8s.io: the agent serves nothing without"
        );
        assert_eq!(missing[1].outcome, Outcome::Warn);
        assert_eq!(
            missing[2].found,
            "RBAC does not allow to watch pods: no NetworkPolicy is enforced without"
        );
    }

    #[test]
    fn a_node_that_is_not_there_or_elsewhere_is_a_fault() {
        assert_eq!(judged(|_| {}, node), [Finding::pass("the Node node-a has 10.1.0.11")]);
        assert!(judged(|probe| probe.node = Ok(None), node)[0].found.starts_with("there is no Node node-a:"));
        let elsewhere = judged(|probe| probe.node = Ok(Some(vec!["10.1.0.77".parse().unwrap()])), node);
        assert!(elsewhere[0].found.ends_with("which no device here has"), "{elsewhere:?}");
    }

    #[test]
    fn without_a_configuration_no_agent_can_start() {
        let mut facts = Facts::example();
        facts.api = Err("no API server is configured".to_owned());
        assert_eq!(reachable(&facts)[0].outcome, Outcome::Skip, "the agent that runs has one");
        facts.agent = None;
        assert_eq!(reachable(&facts)[0].outcome, Outcome::Fail);
    }

    #[tokio::test]
    async fn a_directory_has_no_api_server() {
        let mut facts = Facts::example();
        facts.settings.source = Source::Directory("/manifests".into());
        facts.api = read(&facts.settings, Duration::from_secs(1)).await;
        for judge in [reachable, address, rights, node] {
            assert_eq!(judge(&facts)[0].outcome, Outcome::Skip);
        }
    }
}
