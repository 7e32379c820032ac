//! Tests of a server that comes back with an older state, as after a restore from a backup.

use super::*;

fn slice(name: &str, version: u32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "resourceVersion": version.to_string() },
        "addressType": "IPv4",
    })
}

/// Returns everything that is told until the server works again, a line for each event.
async fn told(bench: &mut Bench) -> Vec<String> {
    let mut told = Vec::new();
    while told.last().is_none_or(|last: &String| !last.ends_with(" works again")) {
        told.extend(bench.next().await.lines().map(str::to_owned));
    }
    told
}

#[tokio::test]
async fn a_server_with_an_older_state_is_listed_again_and_named_once() {
    let known = [service("changed", 9), service("gone", 10), service("kept", 3)];
    let (mut bench, watches) = Bench::listed(TIMING, &known).await;
    bench.server.versions.set_newest(7);
    for watch in [watches.services, watches.slices, watches.nodes] {
        watch.end().await;
    }
    // The state of the backup has an older version of one Service, and lacks another.
    let older = [service("changed", 4), service("kept", 3)];
    let mut services = bench.server.asked(Kind::Service).await.list(&older, "7").await;
    let _slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "7").await;
    let _nodes = bench.server.asked(Kind::Node).await.list(&[], "7").await;
    let told = told(&mut bench).await;
    let (messages, changes): (Vec<_>, Vec<_>) =
        told.iter().map(String::as_str).partition(|line| !line.starts_with(['+', '-']));
    assert_eq!(changes, ["+ Service default/changed", "+ Service default/kept", "- Service default/gone"]);
    assert_eq!(
        messages[0],
        format!(
            "Warning: the API server at http://{} has an older state than before, as after a restore from a backup \
             (Timeout: Too large resource version: 10, current: 7); known objects stay in use; everything is listed \
             again",
            bench.server.address
        )
    );
    assert_eq!(messages.len(), 2, "{messages:?}");
    services.tell("MODIFIED", &service("changed", 8)).await;
    assert_eq!(bench.next().await, "+ Service default/changed");
}

#[tokio::test]
async fn a_version_that_the_server_gives_out_twice_counts_as_another_one() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[service("web", 10)]).await;
    watches.slices.tell("ADDED", &slice("web-1", 6)).await;
    assert_eq!(bench.next().await, "+ EndpointSlice default/web-1");
    // The server still has the slices' version, and the watch from there works.
    bench.server.versions.set_newest(7);
    watches.slices.end().await;
    let slices = bench.server.asked(Kind::EndpointSlice).await;
    assert_eq!((slices.says("resourceVersion"), slices.says("watch")), ("6", "true"));
    let _working = slices.stream().await;
    watches.services.end().await;
    watches.nodes.end().await;
    // Meanwhile the server gives the versions up to 11 out a second time.
    let _services = bench.server.asked(Kind::Service).await.list(&[service("web", 10)], "11").await;
    let _slices = bench.server.asked(Kind::EndpointSlice).await.list(&[slice("web-1", 6)], "11").await;
    let _nodes = bench.server.asked(Kind::Node).await.list(&[], "11").await;
    let mut missing = vec!["+ Service default/web", "+ EndpointSlice default/web-1"];
    while !missing.is_empty() {
        let told = bench.next().await;
        missing.retain(|line| !told.lines().any(|other| other == *line));
    }
}

#[tokio::test]
async fn a_doubted_listing_that_was_cut_off_is_told_once() {
    let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 8), service("dns", 9)]).await;
    bench.server.versions.set_newest(7);
    for watch in [watches.services, watches.slices, watches.nodes] {
        watch.end().await;
    }
    let mut half = bench.server.asked(Kind::Service).await.stream().await;
    half.tell("ADDED", &service("web", 8)).await;
    half.cut_after("{").await;
    let _slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "7").await;
    let _nodes = bench.server.asked(Kind::Node).await.list(&[], "7").await;
    let whole = [service("web", 8), service("dns", 9)];
    let page = json!({ "metadata": { "resourceVersion": "7" }, "items": whole }).to_string();
    bench.server.asked(Kind::Service).await.answer("200 OK", "", &page).await;
    let _watch = bench.server.asked(Kind::Service).await.stream().await;
    let told = told(&mut bench).await;
    let changes: Vec<_> = told.iter().filter(|line| line.starts_with('+')).collect();
    assert_eq!(changes, ["+ Service default/web", "+ Service default/dns"]);
}

#[tokio::test]
async fn a_server_that_only_lags_is_not_listed_again() {
    let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 8)]).await;
    bench.server.versions.lag(follow::VERSION_ATTEMPTS - 1);
    watches.services.end().await;
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!((again.says("watch"), again.says("resourceVersion")), ("true", "10"));
    assert_eq!(bench.server.versions.questions(Kind::Service), follow::VERSION_ATTEMPTS);
    again.stream().await.tell("ADDED", &service("new", 11)).await;
    assert_eq!(bench.next().await, "+ Service default/new", "and nothing is said");
}

#[tokio::test]
async fn refusals_that_are_not_in_a_row_are_no_older_state() {
    let (mut bench, watches) = Bench::listed(TIMING, &[]).await;
    let mut services = watches.services;
    for _ in 0..follow::VERSION_ATTEMPTS {
        bench.server.versions.lag(follow::VERSION_ATTEMPTS - 1);
        services.end().await;
        let again = bench.server.asked(Kind::Service).await;
        assert_eq!(again.says("resourceVersion"), "10");
        services = again.stream().await;
    }
}

#[tokio::test]
async fn a_listing_with_an_older_version_than_the_last_one_is_doubted() {
    let (mut bench, watches) = Bench::listed(TIMING, &[service("web", 8)]).await;
    watches.services.end().await;
    bench.server.asked(Kind::Service).await.answer("410 Gone", "", "{}").await;
    let _first = bench.server.asked(Kind::Service).await.list(&[service("web", 8)], "9").await;
    let _services = bench.server.asked(Kind::Service).await.list(&[service("web", 8)], "9").await;
    let _slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "9").await;
    let _nodes = bench.server.asked(Kind::Node).await.list(&[], "9").await;
    assert!(bench.next().await.contains(" has an older state than before"));
    assert!(bench.next().await.starts_with("+ Service default/web"), "its version may be another one");
}

#[tokio::test]
async fn a_watch_that_reached_its_age_goes_on_without_a_question() {
    let short = Timing { watch: Duration::from_millis(50), ..TIMING };
    let (mut bench, mut watches) = Bench::listed(short, &[]).await;
    bench.server.versions.set_newest(0);
    tokio::time::sleep(short.watch).await;
    watches.services.tell("ADDED", &service("new", 11)).await;
    assert_eq!(bench.next().await, "+ Service default/new");
    watches.services.end().await;
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!((again.says("watch"), again.says("resourceVersion")), ("true", "11"));
    assert_eq!(bench.server.versions.questions(Kind::Service), 0);
}

#[tokio::test]
async fn a_server_that_does_not_know_the_question_is_watched() {
    let (mut bench, watches) = Bench::listed(TIMING, &[]).await;
    bench.server.versions.refuse();
    watches.services.end().await;
    let again = bench.server.asked(Kind::Service).await;
    assert_eq!((again.says("watch"), again.says("resourceVersion")), ("true", "10"));
}
