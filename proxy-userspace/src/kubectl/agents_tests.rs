//! The agents of a small API server of our own, which has the list of pods and `exec` over a WebSocket.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, RawQuery};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

const LONG: Duration = Duration::from_secs(20);

fn pod(name: &str, node: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "kube-system"}, "spec": {"nodeName": node, "containers": []},
        "status": {"phase": phase}})
}

fn stuck(name: &str, node: &str, reason: &str) -> Value {
    let mut pod = pod(name, node, "Pending");
    pod["status"]["containerStatuses"] = json!([{"name": "agent", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": reason}}}]);
    pod
}

fn ending(mut pod: Value) -> Value {
    pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    pod
}

/// Returns a pod of a `DaemonSet` that the scheduler has not placed.
fn unplaced(name: &str, node: &str) -> Value {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    json!({"metadata": {"name": name, "namespace": "kube-system"}, "spec": {"affinity": affinity, "containers": []},
        "status": {"phase": "Pending", "conditions": [condition]}})
}

async fn pods(RawQuery(query): RawQuery) -> Response {
    assert!(query.unwrap().contains("labelSelector=app.kubernetes.io%2Fname%3Dmillrace"));
    let pods = [
        pod("millrace-b", "node-b", "Running"),
        pod("millrace-a", "node-a", "Running"),
        stuck("millrace-c", "node-c", "ImagePullBackOff"),
        // A roll-out: the former pod of node-b ends, and that of node-d is all there is.
        ending(pod("millrace-old", "node-b", "Running")),
        ending(pod("millrace-d", "node-d", "Running")),
        unplaced("millrace-e", "node-e"),
    ];
    let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods});
    ([(CONTENT_TYPE, "application/json")], list.to_string()).into_response()
}

/// Answers as a kubelet does: 1 is standard output, 2 standard error, 3 the status.
async fn exec(Path(name): Path<String>, RawQuery(query): RawQuery, upgrade: WebSocketUpgrade) -> Response {
    let query = query.unwrap();
    assert!(query.contains("container=agent") && query.contains("command=millrace&command=ways"), "{query}");
    if query.contains("refuse") {
        return StatusCode::FORBIDDEN.into_response();
    }
    upgrade
        .protocols(["v5.channel.k8s.io", "v4.channel.k8s.io"])
        .on_upgrade(async move |socket| answer(socket, &name, &query).await)
}

async fn answer(mut socket: WebSocket, name: &str, query: &str) {
    let mut send = async |channel: u8, text: &str| {
        let frame: Vec<u8> = [channel].into_iter().chain(text.bytes()).collect();
        let _ = socket.send(Message::Binary(frame.into())).await;
    };
    if query.contains("silent") {
        std::future::pending::<()>().await;
    }
    send(1, &format!("half of {name}'s ")).await;
    send(1, "answer\n").await;
    if query.contains("halt") {
        std::future::pending::<()>().await;
    }
    if query.contains("fail") {
        send(2, "millrace: no Service matches \"shop/wep\"\n").await;
        let cause = json!({"reason": "ExitCode", "message": "3"});
        let status =
            json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}});
        send(3, &status.to_string()).await;
    } else if query.contains("missing") {
        send(3, &json!({"status": "Failure", "message": "executable file not found"}).to_string()).await;
    } else {
        send(3, &json!({"status": "Success"}).to_string()).await;
    }
    let _ = socket.send(Message::Close(None)).await;
}

async fn server() -> Client {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/api/v1/pods", get(pods))
        .route("/api/v1/namespaces/kube-system/pods/{name}/exec", get(exec));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap()
}

const SELECTOR: &str = "app.kubernetes.io/name=millrace";

async fn answers(words: &[&str], longest: Duration) -> Vec<Answer> {
    let client = server().await;
    let agents = find(&client, SELECTOR, &["node-a".to_owned(), "node-b".to_owned()]).await.unwrap();
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    ask(&client, &agents, &words, longest).await
}

#[tokio::test]
async fn agents_are_found_and_sorted_and_a_node_without_one_is_named() {
    let client = server().await;
    let nodes = |agents: Vec<Agent>| agents.into_iter().map(|agent| agent.node).collect::<Vec<_>>();
    let all = ["node-a", "node-b", "node-c", "node-d", "node-e"];
    assert_eq!(nodes(find(&client, SELECTOR, &[]).await.unwrap()), all);
    let one = ["node-b".to_owned()];
    assert_eq!(nodes(find(&client, SELECTOR, &one).await.unwrap()), one);
    let error = find(&client, SELECTOR, &["node-x".to_owned()]).await.unwrap_err();
    let known = all.join(", ");
    assert_eq!(error.to_string(), format!("no agent is on node-x; there are agents on: {known}"));
    assert_eq!(error.status(), ExitStatus::NotFound);
}

#[tokio::test]
async fn a_pod_that_does_not_run_answers_with_the_reason() {
    let client = server().await;
    let agents = find(&client, SELECTOR, &[]).await.unwrap();
    let answers = ask(&client, &agents, &["ways".to_owned()], LONG).await;
    let said: Vec<_> =
        answers.iter().map(|one| (one.node.as_str(), one.status, one.errors.as_str())).collect();
    assert_eq!(
        said,
        [
            ("node-a", Some(0), ""),
            ("node-b", Some(0), ""),
            ("node-c", None, "its pod is Pending: ImagePullBackOff"),
            ("node-d", None, "its pod is being deleted"),
            ("node-e", None, "its pod is Pending: Unschedulable"),
        ]
    );
}

#[tokio::test]
async fn each_node_answers_with_its_streams_and_its_status() {
    let answer = |name: &str, status, errors: &str| Answer {
        node: format!("node-{name}"),
        status: Some(status),
        output: format!("half of millrace-{name}'s answer\n"),
        errors: errors.to_owned(),
    };
    assert_eq!(answers(&["ways"], LONG).await, [answer("a", 0, ""), answer("b", 0, "")]);
    let complaint = "millrace: no Service matches \"shop/wep\"\n";
    let failed = answers(&["ways", "fail"], LONG).await;
    assert_eq!(failed, [answer("a", 3, complaint), answer("b", 3, complaint)]);
    assert_eq!(failed[0].complaints().collect::<Vec<_>>(), ["no Service matches \"shop/wep\""]);
}

#[tokio::test]
async fn an_answer_that_is_cut_off_keeps_what_came() {
    let answers = answers(&["ways", "halt"], Duration::from_secs(1)).await;
    assert_eq!((answers[0].status, answers[0].output.as_str()), (None, "half of millrace-a's answer\n"));
    assert_eq!(answers[0].errors, "the answer was cut off after 1s");
}

#[tokio::test]
async fn a_node_that_can_not_answer_says_why() {
    for (word, longest, why) in [
        ("missing", LONG, "executable file not found"),
        ("refuse", LONG, "403"),
        ("silent", Duration::from_millis(300), "no answer within 300ms"),
    ] {
        let answers = answers(&["ways", word], longest).await;
        assert!(answers.len() == 2 && answers.iter().all(|one| one.status.is_none()), "{answers:?}");
        assert!(answers[0].errors.contains(why), "{answers:?}");
    }
}
