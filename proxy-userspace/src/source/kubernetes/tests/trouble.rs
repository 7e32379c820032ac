//! Tests of servers that do not answer, or answer wrongly.

use std::time::Instant;

use super::*;

/// Short enough to wait for; only for servers that hang.
const IMPATIENT: Timing = Timing { idle: Duration::from_millis(300), ..TIMING };

#[tokio::test]
async fn a_watch_that_hangs_is_asked_for_again() {
    let (mut bench, watches) = Bench::listed(IMPATIENT, &[service("web", 8)]).await;
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!((again.says("watch"), again.says("resourceVersion")), ("true", "10"));
    again.stream().await.tell("DELETED", &service("web", 11)).await;
    assert_eq!(bench.next().await, "- Service default/web");
    drop(watches);
}

#[tokio::test]
async fn a_listing_that_hangs_is_asked_for_in_pages() {
    let mut bench = Bench::start(IMPATIENT).await;
    let mut hanging = bench.server.asked(Kind::Service).await.stream().await;
    hanging.tell("ADDED", &service("web", 8)).await;
    let paged = bench.server.asked(Kind::Service).await;
    assert_eq!((paged.says("limit"), paged.says("sendInitialEvents")), ("500", ""));
    let page = json!({ "metadata": { "resourceVersion": "10" }, "items": [service("dns", 9)] });
    paged.answer("200 OK", "", &page.to_string()).await;
    let mut told = Vec::new();
    while told.last().is_none_or(|last: &String| !last.starts_with('-')) {
        told.extend(bench.next().await.lines().map(str::to_owned));
    }
    told.retain(|line| !line.starts_with("Warning") && !line.starts_with("Info"));
    assert_eq!(told, ["+ Service default/web", "+ Service default/dns", "- Service default/web"]);
}

#[tokio::test]
async fn a_listing_that_goes_on_for_ever_is_asked_for_in_pages() {
    let mut bench = Bench::start(IMPATIENT).await;
    let mut endless = bench.server.asked(Kind::Service).await.stream().await;
    let telling = tokio::spawn(async move {
        for version in 1.. {
            if endless.try_tell("MODIFIED", &service("web", version)).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let paged = bench.server.asked(Kind::Service).await;
    assert_eq!((paged.says("limit"), paged.says("sendInitialEvents")), ("500", ""));
    timeout(BOUND, telling).await.expect("the connection stays").unwrap();
}

#[tokio::test]
async fn a_server_is_left_alone_for_as_long_as_it_asks_for() {
    let mut bench = Bench::start(TIMING).await;
    let busy = bench.server.asked(Kind::Service).await;
    let since = Instant::now();
    busy.answer("429 Too Many Requests", "Retry-After: 1\r\n", "Too many requests, please try again later.")
        .await;
    let warning = bench.next().await;
    assert!(
        warning.ends_with(
            " answers 429 Too Many Requests: Too many requests, please try again later.; known objects stay in use; \
             tried again"
        ),
        "{warning}"
    );
    let _services = bench.server.asked(Kind::Service).await.list(&[], "10").await;
    assert!(since.elapsed() >= Duration::from_secs(1), "the back-off alone is a hundred times shorter");
    assert!(bench.next().await.ends_with(" works again"));

    let status = json!({ "kind": "Status", "code": 504, "message": "too large", "details": { "retryAfterSeconds": 1 } });
    let unable = bench.server.asked(Kind::Node).await;
    let since = Instant::now();
    unable.answer("504 Gateway Timeout", "", &status.to_string()).await;
    bench.server.asked(Kind::Node).await;
    assert!(since.elapsed() >= Duration::from_secs(1), "as its status says");
}

#[tokio::test]
async fn a_watch_that_rbac_forbids_is_named_once_and_tried_again() {
    let mut bench = Bench::start(TIMING).await;
    let says = "User \"m\" cannot watch resource \"endpointslices\"";
    let status = json!({ "kind": "Status", "code": 403, "reason": "Forbidden", "message": says }).to_string();
    for _ in 0..3 {
        bench.server.asked(Kind::EndpointSlice).await.answer("403 Forbidden", "", &status).await;
    }
    let slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "10").await;
    assert_eq!(
        bench.next().await,
        format!(
            "Warning: the API server at http://{} forbids to watch endpointslices.discovery.k8s.io: give the verbs \
             list and watch on it in RBAC; it says: {says}; known objects stay in use; tried again",
            bench.server.address
        )
    );
    assert!(bench.next().await.starts_with("Info: "), "and not the warning again");
    drop(slices);
}

#[tokio::test]
async fn credentials_that_have_expired_are_named_and_tried_again() {
    let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 8)]).await;
    watches.services.end().await;
    bench.server.asked(Kind::Service).await.answer("401 Unauthorized", "", "{}").await;
    let warning = bench.next().await;
    assert!(
        warning.contains(
            " rejects the agent's credentials (401 Unauthorized): the token or client certificate "
        )
    );
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!(again.says("resourceVersion"), "10", "nothing has to be listed again");
    let mut services = again.stream().await;
    assert!(bench.next().await.ends_with(" works again"));
    services.tell("ADDED", &service("new", 11)).await;
    assert_eq!(bench.next().await, "+ Service default/new");
}

#[tokio::test]
async fn a_server_that_is_away_is_named_once_however_many_watches_miss_it() {
    let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 8)]).await;
    let Watches { services, slices, nodes } = watches;
    let address = std::mem::replace(&mut bench.server, Server::start().await).stop().await;
    services.end().await;
    let warning = bench.next().await;
    assert_eq!(
        warning,
        format!(
            "Warning: the API server at http://{address} can't be reached: Connection refused (os error 111); \
             known objects stay in use; tried again"
        )
    );
    slices.end().await;
    nodes.end().await;
    bench.server = Server::start_on(address).await;
    for kind in [Kind::EndpointSlice, Kind::Node] {
        let again = bench.server.asked(kind).await;
        assert_eq!(again.says("resourceVersion"), "10");
        std::mem::forget(again.stream().await);
    }
    std::mem::forget(bench.server.asked(Kind::Service).await.stream().await);
    assert_eq!(bench.next().await, format!("Info: the API server at http://{address} works again"));
}

#[tokio::test]
async fn another_cause_is_told_again() {
    let (mut bench, watches) = Bench::listed(TIMING, &[]).await;
    watches.services.end().await;
    bench.server.asked(Kind::Service).await.answer("503 Service Unavailable", "", "starting").await;
    assert!(bench.next().await.contains(" answers 503 Service Unavailable: starting;"));
    bench.server.asked(Kind::Service).await.answer("503 Service Unavailable", "", "starting").await;
    bench.server.asked(Kind::Service).await.answer("500 Internal Server Error", "", "etcd is away").await;
    assert!(bench.next().await.contains(" answers 500 Internal Server Error: etcd is away;"));
}

#[tokio::test]
async fn a_watch_that_the_server_can_never_begin_is_given_up() {
    let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 8), service("dns", 9)]).await;
    watches.services.end().await;
    for _ in 0..follow::VERSION_ATTEMPTS {
        let request = bench.server.asked(Kind::Service).await;
        assert_eq!(request.says("resourceVersion"), "10");
        request.answer("504 Gateway Timeout", "", "no watch from 10").await;
    }
    let _services = bench.server.asked(Kind::Service).await.list(&[service("web", 8)], "10").await;
    assert!(bench.next().await.contains("no watch from 10"));
    assert!(bench.next().await.starts_with("- Service default/dns\nInfo"));
}

#[tokio::test]
async fn a_server_that_lets_each_listing_expire_is_named_once() {
    let mut bench = Bench::start(TIMING).await;
    for _ in 0..follow::EXPIRIES + 2 {
        bench.server.asked(Kind::Service).await.answer("410 Gone", "", "{}").await;
    }
    let _services = bench.server.asked(Kind::Service).await.list(&[service("web", 8)], "10").await;
    assert_eq!(
        bench.next().await,
        format!(
            "Warning: the API server at http://{} says of each listing of services that it is too old to go on with \
             (410 Gone); known objects stay in use; tried again",
            bench.server.address
        )
    );
    assert_eq!(bench.next().await, "+ Service default/web");
    assert!(bench.next().await.ends_with(" works again"));
}

#[tokio::test]
async fn a_server_that_lists_and_then_can_not_go_on_from_there_is_named_once() {
    let patient = Timing { working: BOUND, ..TIMING };
    let (mut bench, watches) = Bench::listed(patient, &[]).await;
    let mut services = watches.services;
    for _ in 0..follow::EXPIRIES + 2 {
        services.tell("ERROR", &json!({ "code": 410 })).await;
        services = bench.server.asked(Kind::Service).await.list(&[], "10").await;
    }
    services.tell("ADDED", &service("web", 11)).await;
    let warning = bench.next().await;
    assert!(warning.starts_with("Warning: ") && warning.contains("(410 Gone)"), "{warning}");
    assert_eq!(bench.next().await, "+ Service default/web", "neither named again nor called well");
}

#[tokio::test]
async fn a_version_that_expires_now_and_then_is_not_worth_a_word() {
    let (mut bench, watches) = Bench::listed(TIMING, &[]).await;
    let mut services = watches.services;
    for version in 0..follow::EXPIRIES + 2 {
        services.tell("ADDED", &service(&format!("s{version}"), 11)).await;
        assert_eq!(bench.next().await, format!("+ Service default/s{version}"));
        services.tell("ERROR", &json!({ "code": 410 })).await;
        let known: Vec<_> = (0..=version).map(|known| service(&format!("s{known}"), 11)).collect();
        services = bench.server.asked(Kind::Service).await.list(&known, "40").await;
    }
}

#[tokio::test]
async fn a_server_that_ends_each_watch_at_once_is_named() {
    let patient = Timing { working: BOUND, ..TIMING };
    let (mut bench, watches) = Bench::listed(patient, &[]).await;
    watches.services.end().await;
    let warning = bench.next().await;
    assert!(warning.contains(" ends each watch as soon as it begins;"), "{warning}");
    for _ in 0..3 {
        bench.server.asked(Kind::Service).await.stream().await.end().await;
    }
    bench.server.asked(Kind::Service).await.stream().await.tell("ADDED", &service("new", 11)).await;
    assert_eq!(bench.next().await, "+ Service default/new", "and not named again");
}

#[tokio::test]
async fn what_no_api_server_says_is_named_and_asked_for_again() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[service("web", 8)]).await;
    watches.services.line("<html>").await;
    let warning = bench.next().await;
    assert!(warning.contains(" answers what no Kubernetes API server does: expected value"), "{warning}");
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!(again.says("resourceVersion"), "10");
}

#[tokio::test]
async fn the_task_ends_when_nobody_listens() {
    let mut bench = Bench::start(TIMING).await;
    let _nodes = bench.server.asked(Kind::Node).await.list(&[], "10").await;
    bench.server.asked(Kind::Service).await.answer("500 Internal Server Error", "", "").await;
    bench.events.close();
    let task = &mut bench.task;
    timeout(BOUND, task).await.expect("it goes on").unwrap();
}
