//! Waits until a DaemonSet is ready on each node. The chart's uninstall asks for it.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use tokio::time::sleep;

use super::Connection;
use super::failure::Failure;

/// The pause between two questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// A DaemonSet's name and its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The progress of a DaemonSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// The controller has not seen it.
    Unseen,
    /// Pods are ready on so many of the nodes.
    Ready {
        /// Nodes with a pod that is ready.
        ready: i32,
        /// All nodes that are to have one.
        nodes: i32,
    },
    /// The API server gave no answer to go on with.
    Unknown(String),
}

impl fmt::Display for Rollout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unseen => f.write_str("no controller has seen it"),
            Self::Ready { ready, nodes } => write!(f, "ready on {ready} of {nodes} nodes"),
            Self::Unknown(why) => write!(f, "the API server does not tell: {why}"),
        }
    }
}

/// Waits until the pods of a DaemonSet are ready on all nodes, and gives `tell` each change.
///
/// Every failure may pass: a role may be bound a moment later. So the caller's time limit ends the wait.
pub async fn wait_for_daemonset(
    connection: &Connection,
    daemonset: &DaemonSetName,
    mut tell: impl FnMut(&Rollout),
) {
    let api: Api<DaemonSet> = Api::namespaced(connection.client.clone(), &daemonset.namespace);
    let mut last = None;
    loop {
        let rollout = match api.get(&daemonset.name).await {
            Ok(found) => rollout(&found),
            Err(kube::Error::Api(status)) => Rollout::Unknown(status.message),
            Err(error) => Rollout::Unknown(Failure::before_answer(&error).to_string()),
        };
        if last.as_ref() != Some(&rollout) {
            tell(&rollout);
        }
        if let Rollout::Ready { ready, nodes } = rollout
            && ready >= nodes
        {
            return;
        }
        last = Some(rollout);
        sleep(INTERVAL).await;
    }
}

fn rollout(daemonset: &DaemonSet) -> Rollout {
    let status = daemonset.status.as_ref();
    match status.filter(|status| status.observed_generation >= daemonset.metadata.generation) {
        Some(status) => Rollout::Ready { ready: status.number_ready, nodes: status.desired_number_scheduled },
        None => Rollout::Unseen,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn counts_from_before_the_last_change_do_not_count() {
        let of = |status| {
            let daemonset = json!({"metadata": {"generation": 2}, "status": status});
            rollout(&from_value(daemonset).unwrap()).to_string()
        };
        let status = |observed: Option<i32>| {
            json!({"observedGeneration": observed, "numberReady": 2, "desiredNumberScheduled": 3,
                   "currentNumberScheduled": 3, "numberMisscheduled": 0})
        };
        assert_eq!(of(status(None)), "no controller has seen it");
        assert_eq!(of(status(Some(1))), "no controller has seen it");
        assert_eq!(of(status(Some(2))), "ready on 2 of 3 nodes");
    }
}
