//! After an outage all kinds come back together.

use super::*;

#[tokio::test]
async fn a_kind_that_waits_is_asked_for_again_when_the_watch_of_another_one_works() {
    // Nobody lives to see the end of a back-off.
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
