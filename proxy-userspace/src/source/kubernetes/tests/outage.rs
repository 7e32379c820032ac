//! Tests of outages: all kinds come back together, and the signs show the state of the source.

use super::*;

#[tokio::test]
async fn a_kind_that_waits_is_asked_for_again_when_the_watch_of_another_one_works() {
    // No test could wait for the end of this back-off.
    let patient = Timing { backoff: (Duration::from_hours(1), Duration::from_hours(1)), ..TIMING };
    let mut bench = Bench::start(patient).await;
    let slices = bench.server.asked(Kind::EndpointSlice).await;
    let nodes = bench.server.asked(Kind::Node).await;
    let services = bench.server.asked(Kind::Service).await;
    for request in [services, slices] {
        request.answer("503 Service Unavailable", "", "starting").await;
    }
    assert!(bench.next().await.contains(" answers 503 Service Unavailable"));
    let _nodes = nodes.list(&[], "10").await;
    let _services = bench.server.asked(Kind::Service).await.list(&[], "10").await;
    let _slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "10").await;
    while bench.next().await != "listed" {}
}

#[tokio::test]
async fn the_signs_say_what_keeps_the_source_from_going_on_and_count_errors_by_resource() {
    let mut bench = Bench::start(TIMING).await;
    bench.signs.list(true);
    bench.server.asked(Kind::Node).await.answer("401 Unauthorized", "", "{}").await;
    assert!(bench.next().await.contains("401 Unauthorized"));
    assert!(bench.signs.trouble().is_some_and(|trouble| trouble.contains("401 Unauthorized")));
    let errors = |resource| bench.signs.watch_errors.get_or_create(&[("resource", resource)]).get();
    assert_eq!((bench.signs.synced.get(), errors("nodes"), errors("services")), (0, 1, 0));
    let _nodes = bench.server.asked(Kind::Node).await.list(&[], "10").await;
    assert!(bench.next().await.ends_with(" works again"));
    assert_eq!((bench.signs.trouble(), bench.signs.synced.get()), (None, 1));
    assert!(bench.signs.last_event.get() > 1e9);
}
