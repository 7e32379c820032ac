use std::collections::{BTreeMap, BTreeSet};

use super::{Bench, flows};
use crate::announce::Change;
use crate::config::ProxyMode;
use crate::dataplane::{Check, Mode};
use crate::metrics::firewall;
use crate::metrics::kernel::tests::collector;
use crate::metrics::text::Format;
use crate::metrics::{CATALOGUE, ProcessMetrics};
use crate::model::{Problem, Severity, Topic};
use crate::reconcile::Observer;

/// Help, type and label names of each metric in Prometheus' text, without the buckets' label.
fn described(text: &str) -> BTreeMap<String, (String, String, BTreeSet<Vec<String>>)> {
    let (mut metrics, mut name) = (BTreeMap::new(), "");
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            let (of, help) = line.split_once(' ').unwrap();
            name = of;
            // The registry ends what it encodes itself with a full stop.
            metrics.insert(
                name.to_owned(),
                (help.trim_end_matches('.').to_owned(), String::new(), BTreeSet::new()),
            );
        } else if let Some(line) = line.strip_prefix("# TYPE ") {
            metrics.get_mut(name).unwrap().1 = line.split_once(' ').unwrap().1.to_owned();
        } else {
            let labels = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
            let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            metrics.get_mut(name).unwrap().2.insert(names.filter(|label| label != "le").collect());
        }
    }
    metrics
}

#[test]
fn the_catalogue_is_what_an_agent_with_samples_of_everything_shows() {
    let mut bench = Bench::new();
    let problem = Problem {
        file: None,
        object: None,
        field: String::new(),
        message: String::new(),
        severity: Severity::Info,
        topic: Topic::Field,
        service: None,
    };
    bench.observer.problem(&problem);
    bench.sync_all_well();
    bench.observer.checked(&Check { flows: vec![flows("closing", 1)], ..Check::default() });
    bench.metrics.set_mode(Mode::Ebpf, ProxyMode::Auto);
    bench.metrics.signs.count_error("nodes");
    bench.metrics.signs.count_request("200".to_owned(), "GET".to_owned(), "192.0.2.1:6443".to_owned());
    bench.metrics.conditions.get_or_create(&[("condition", "node-found")]).set(1);
    bench.metrics.checks.get_or_create(&[("check", "uplinks"), ("result", "FAIL")]).set(1);
    bench.metrics.probes.healthz.get_or_create(&[("code", "200".to_owned())]).inc();
    bench.metrics.probes.livez.get_or_create(&[("code", "200".to_owned())]).inc();
    bench.metrics.announced.hold([203, 0, 113, 7].into(), "eth0");
    bench.metrics.announced.count(Change::Claimed);
    bench.registry.register_collector(collector());
    bench.registry.register_collector(firewall::tests::collector());
    bench.registry.register_collector(Box::new(ProcessMetrics));
    let shown = described(&Format::Prometheus.write(&bench.registry).unwrap());
    let expected = CATALOGUE.iter().map(|metric| {
        let labels = metric.labels.iter().map(|label| (*label).to_owned()).collect();
        (metric.name(), (metric.help.to_owned(), metric.kind.name().to_owned(), BTreeSet::from([labels])))
    });
    assert_eq!(shown, expected.collect::<BTreeMap<_, _>>());
    assert_eq!(shown.len(), CATALOGUE.len(), "a name comes twice");
}
