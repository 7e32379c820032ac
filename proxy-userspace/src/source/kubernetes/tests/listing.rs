//! Tests of listings: the order of events, and the objects that count as gone.

use super::*;

#[tokio::test]
async fn everything_is_told_once_and_then_what_changes() {
    let mut bench = Bench::start(TIMING).await;
    let slice = json!({
        "metadata": { "name": "web-1", "namespace": "default", "resourceVersion": "7" },
        "addressType": "IPv4", "endpoints": null, "ports": null,
    });
    let _slices = bench.server.asked(Kind::EndpointSlice).await.list(&[slice], "10").await;
    assert_eq!(bench.next().await, "+ EndpointSlice default/web-1");
    let _nodes = bench.server.asked(Kind::Node).await.list(&[named("node1", 5)], "10").await;
    assert_eq!(bench.next().await, "+ Node node1");
    let initial = [service("web", 8), service("dns", 9)];
    let mut services = bench.server.asked(Kind::Service).await.list(&initial, "10").await;
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "listed") {
        told.extend(bench.next().await.lines().map(str::to_owned));
    }
    assert_eq!(told, ["+ Service default/web", "+ Service default/dns", "listed"]);

    services.tell("MODIFIED", &service("web", 11)).await;
    assert_eq!(bench.next().await, "+ Service default/web");
    services.tell("DELETED", &service("dns", 12)).await;
    assert_eq!(bench.next().await, "- Service default/dns");
    services.tell("ADDED", &service("new", 13)).await;
    assert_eq!(bench.next().await, "+ Service default/new");
}

#[tokio::test]
async fn nothing_counts_as_listed_before_each_kind_was_listed() {
    let mut bench = Bench::start(TIMING).await;
    let _services = bench.server.asked(Kind::Service).await.list(&[service("web", 8)], "10").await;
    assert_eq!(bench.next().await, "+ Service default/web");
    let _slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "10").await;
    let mut nodes = bench.server.asked(Kind::Node).await.stream().await;
    for name in ["node1", "node2"] {
        nodes.tell("ADDED", &named(name, 5)).await;
        assert_eq!(bench.next().await, format!("+ Node {name}"));
    }
    nodes.end_listing("10").await;
    assert_eq!(bench.next().await, "listed");
}

#[tokio::test]
async fn headless_slices_and_objects_of_other_proxies_are_not_asked_for() {
    let mut bench = Bench::start(TIMING).await;
    for (kind, selector) in [
        (Kind::Service, "!service.kubernetes.io/service-proxy-name"),
        (Kind::EndpointSlice, "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"),
        (Kind::Node, ""),
    ] {
        assert_eq!(bench.server.asked(kind).await.says("labelSelector"), selector, "{kind}");
    }

    let mut bench = Bench::start_with(TIMING, Some("millrace")).await;
    // The API server's own slice has no proxy's label, and is needed.
    for (kind, selector) in [
        (Kind::Service, "service.kubernetes.io/service-proxy-name=millrace"),
        (Kind::EndpointSlice, "!service.kubernetes.io/headless"),
    ] {
        assert_eq!(bench.server.asked(kind).await.says("labelSelector"), selector, "{kind}");
    }
}

#[tokio::test]
async fn a_server_that_can_not_begin_a_watch_with_a_listing_is_asked_for_pages() {
    let mut bench = Bench::start(TIMING).await;
    let status =
        json!({ "kind": "Status", "code": 422, "message": "sendInitialEvents is forbidden" }).to_string();
    bench.server.asked(Kind::Service).await.answer("422 Unprocessable Entity", "", &status).await;
    let first = bench.server.asked(Kind::Service).await;
    assert_eq!((first.says("limit"), first.says("continue"), first.says("watch")), ("500", "", ""));
    let page =
        json!({ "metadata": { "resourceVersion": "10", "continue": "more" }, "items": [service("a", 1)] });
    first.answer("200 OK", "", &page.to_string()).await;
    assert_eq!(bench.next().await, "+ Service default/a");
    let second = bench.server.asked(Kind::Service).await;
    assert_eq!((second.says("limit"), second.says("continue")), ("500", "more"));
    let page = json!({ "metadata": { "resourceVersion": "10", "continue": "" }, "items": [service("b", 2)] });
    second.answer("200 OK", "", &page.to_string()).await;
    assert_eq!(bench.next().await, "+ Service default/b");

    let watch = bench.server.asked(Kind::Service).await;
    assert_eq!((watch.says("watch"), watch.says("resourceVersion")), ("true", "10"));
    assert_eq!((watch.says("sendInitialEvents"), watch.says("allowWatchBookmarks")), ("", "true"));
    watch.stream().await.tell("MODIFIED", &service("a", 11)).await;
    assert_eq!(bench.next().await, "+ Service default/a");
}

#[tokio::test]
async fn a_watch_that_ends_goes_on_from_the_last_bookmark() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[service("web", 8)]).await;
    watches.services.tell("BOOKMARK", &json!({ "metadata": { "resourceVersion": "25" } })).await;
    watches.services.end().await;
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!((again.says("resourceVersion"), again.says("sendInitialEvents")), ("25", ""));
    again.stream().await.tell("ADDED", &service("new", 26)).await;
    assert_eq!(bench.next().await, "+ Service default/new", "the end of the watch gives no event");
}

#[tokio::test]
async fn a_watch_that_is_cut_in_a_chunk_goes_on_from_the_last_whole_line() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[service("web", 8)]).await;
    watches.services.tell("ADDED", &service("new", 11)).await;
    assert_eq!(bench.next().await, "+ Service default/new");
    let half = json!({ "type": "DELETED", "object": service("web", 12) }).to_string();
    watches.services.cut_after(&half[..half.len() - 9]).await;
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!(again.says("resourceVersion"), "11");
    again.stream().await.line(&half).await;
    assert_eq!(bench.next().await, "- Service default/web");
}

#[tokio::test]
async fn a_new_listing_tells_the_difference_in_one_batch() {
    let before = [service("changed", 1), service("gone", 2), service("same", 3)];
    let (mut bench, mut watches) = Bench::listed(TIMING, &before).await;
    let gone = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" });
    watches.services.tell("ERROR", &gone).await;

    let mut services = bench.server.asked(Kind::Service).await.stream().await;
    services.tell("ADDED", &service("changed", 31)).await;
    services.tell("ADDED", &service("same", 3)).await;
    // An event about the changed one would come before this.
    watches.slices.tell("ADDED", &json!({ "metadata": { "name": "x" }, "addressType": "IPv4" })).await;
    assert_eq!(bench.next().await, "+ EndpointSlice default/x");
    services.tell("ADDED", &service("new", 32)).await;
    services.end_listing("40").await;
    let told = bench.next().await;
    assert_eq!(told, "+ Service default/changed\n+ Service default/new\n- Service default/gone");

    services.tell("DELETED", &service("same", 41)).await;
    assert_eq!(bench.next().await, "- Service default/same");
}

#[tokio::test]
async fn a_version_that_is_refused_before_the_watch_begins_means_a_new_listing_too() {
    for status in ["410 Gone", "400 Bad Request"] {
        let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 1), service("dns", 2)]).await;
        watches.services.end().await;
        bench.server.asked(Kind::Service).await.answer(status, "", "{}").await;
        let _services = bench.server.asked(Kind::Service).await.list(&[service("web", 1)], "40").await;
        let mut told = bench.next().await;
        while told.starts_with("Warning") || told.starts_with("Info") {
            told = bench.next().await;
        }
        assert!(told.starts_with("- Service default/dns"), "{status}: {told}");
    }
}

#[tokio::test]
async fn half_a_new_listing_deletes_nothing() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[service("web", 1), service("dns", 2)]).await;
    watches.services.tell("ERROR", &json!({ "code": 410 })).await;
    let mut half = bench.server.asked(Kind::Service).await.stream().await;
    half.tell("ADDED", &service("dns", 22)).await;
    half.cut_after("{").await;
    assert!(bench.next().await.starts_with("Warning: the API server at http://127.0.0.1:"));
    // The cause may cut every long listing, so the next one is in short pages.
    let whole = [service("web", 1), service("dns", 22)];
    let page = json!({ "metadata": { "resourceVersion": "40" }, "items": whole }).to_string();
    bench.server.asked(Kind::Service).await.answer("200 OK", "", &page).await;
    let told = bench.next().await;
    assert!(told.starts_with("+ Service default/dns\nInfo: "), "{told}");
}

#[tokio::test]
async fn pages_that_expire_are_begun_again_and_delete_nothing() {
    let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 1), service("dns", 2)]).await;
    watches.services.end().await;
    bench.server.asked(Kind::Service).await.answer("410 Gone", "", "{}").await;
    bench.server.asked(Kind::Service).await.answer("400 Bad Request", "", "{}").await;
    let page = |token: &str, items: &[Value]| {
        json!({ "metadata": { "resourceVersion": "40", "continue": token }, "items": items }).to_string()
    };
    bench.server.asked(Kind::Service).await.answer("200 OK", "", &page("more", &[service("web", 1)])).await;
    bench.server.asked(Kind::Service).await.answer("410 Gone", "", "{}").await;
    bench.server.asked(Kind::Service).await.answer("200 OK", "", &page("more", &[service("dns", 2)])).await;
    bench.server.asked(Kind::Service).await.answer("200 OK", "", &page("", &[service("new", 39)])).await;
    assert_eq!(bench.next().await, "+ Service default/new\n- Service default/web");
}
