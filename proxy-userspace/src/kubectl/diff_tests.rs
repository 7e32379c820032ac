use serde_json::json;

use super::*;

fn services(endpoints: &[&str], slots: u32, packets: u64) -> Value {
    let list = |kind: &str, backends: &[&str]| {
        json!({"family": "IPv4", "list": kind, "algorithm": "maglev", "slots": slots, "backends": backends,
            "frontends": [{"source_ranges": ["192.0.2.0/24"]}, {"source_ranges": null}]})
    };
    let lists = [list("Cluster", endpoints), list("Local", &endpoints[..1])];
    json!({"kind": "ServiceList", "items": [{"namespace": "shop", "name": "web", "port": "http",
        "addresses": ["203.0.113.1"], "forwarding": "dsr", "packets": packets, "lists": lists}]})
}

fn answer(node: &str, document: &Value) -> Answer {
    Answer { node: node.to_owned(), status: Some(0), output: document.to_string(), errors: String::new() }
}

fn silent(node: &str, status: Option<u8>, errors: &str) -> Answer {
    Answer { status, output: String::new(), errors: errors.to_owned(), ..answer(node, &Value::Null) }
}

/// Returns the differences of the answers to each command.
fn found(commands: &[&[Answer]]) -> Differences {
    let mut found = Differences::default();
    for (command, answers) in COMPARED.into_iter().zip(commands) {
        found.add(command, &mut answers.to_vec());
    }
    found
}

#[test]
fn counters_local_lists_and_the_order_of_endpoints_may_differ() {
    let same = [
        answer("a", &services(&["10.0.0.1:80", "10.0.0.2:80"], 4093, 1)),
        answer("b", &services(&["10.0.0.2:80", "10.0.0.1:80"], 4093, 9)),
    ];
    let found = found(&[&same]);
    assert_eq!(found.status(), ExitStatus::Done, "{found:?}");
    assert_eq!(found.text(DiffFormat::Table).unwrap(), "the nodes agree\n");
}

#[test]
fn endpoints_lengths_of_tables_and_versions_are_compared() {
    let version =
        |version: &str| json!({"kind": "Version", "layout_version": 6, "agent": {"version": version}});
    let map = |entries: u32| json!({"kind": "MapList", "items": [{"name": "SELECTION", "entries": entries}]});
    let found = found(&[
        &[
            answer("a", &services(&["10.0.0.1:80"], 4093, 1)),
            answer("b", &services(&["10.0.0.1:80", "10.0.0.2:80"], 8191, 1)),
        ],
        &[answer("a", &map(1024)), answer("b", &map(2048))],
        &[answer("a", &version("0.1.0")), answer("b", &version("0.2.0"))],
    ]);
    assert_eq!(found.status(), ExitStatus::Wrong);
    assert_eq!(
        found.text(DiffFormat::Table).unwrap(),
        "OBJECT         FIELD               VALUE                    NODES\n\
         agent          version             0.1.0                    a\n\
         agent          version             0.2.0                    b\n\
         map SELECTION  entries             1024                     a\n\
         map SELECTION  entries             2048                     b\n\
         shop/web:http  IPv4 Cluster slots  4093                     a\n\
         shop/web:http  IPv4 Cluster slots  8191                     b\n\
         shop/web:http  IPv4 Local slots    4093                     a\n\
         shop/web:http  IPv4 Local slots    8191                     b\n\
         shop/web:http  IPv4 endpoints      10.0.0.1:80              a\n\
         shop/web:http  IPv4 endpoints      10.0.0.1:80,10.0.0.2:80  b\n"
    );
    let json: Value = serde_json::from_str(&found.text(DiffFormat::Json).unwrap()).unwrap();
    assert_eq!(json["items"][0]["values"][1], json!({"value": "0.2.0", "nodes": ["b"]}));
}

#[test]
fn a_service_that_a_node_lacks_is_one_difference() {
    let empty = json!({"kind": "ServiceList", "items": []});
    let two = [answer("a", &services(&["10.0.0.1:80"], 4093, 1)), answer("b", &empty)];
    let text = found(&[&two]).text(DiffFormat::Table).unwrap();
    assert_eq!(
        text,
        "OBJECT         FIELD   VALUE    NODES\n\
         shop/web:http  itself  absent   b\n\
         shop/web:http  itself  present  a\n"
    );
    let three = [
        answer("a", &services(&["10.0.0.1:80"], 4093, 1)),
        answer("b", &empty),
        answer("c", &services(&["10.0.0.2:80"], 4093, 1)),
    ];
    let fields: Vec<String> = found(&[&three]).items.into_iter().map(|one| one.field).collect();
    assert_eq!(fields, ["itself", "IPv4 endpoints"]);
}

#[test]
fn a_node_that_does_not_answer_is_named_once_and_not_taken_for_one_that_agrees() {
    let one = answer("a", &services(&["10.0.0.1:80"], 4093, 1));
    let pending = || silent("b", None, "its pod is Pending: ImagePullBackOff");
    let found = found(&[&[one, pending()], &[pending()]]);
    assert_eq!(
        found.complaints().collect::<Vec<_>>(),
        ["b is left out of the comparison of services, maps: its pod is Pending: ImagePullBackOff"]
    );
    assert_eq!(found.status(), ExitStatus::Failed);
    let said = "no difference was found, but not everything was compared\n";
    assert_eq!(found.text(DiffFormat::Table).unwrap(), said);
    let json: Value = serde_json::from_str(&found.text(DiffFormat::Json).unwrap()).unwrap();
    let why = "its pod is Pending: ImagePullBackOff";
    assert_eq!(json["not_compared"], json!([{"node": "b", "outputs": ["services", "maps"], "why": why}]));
}

#[test]
fn services_of_ipvs_are_not_compared_and_its_missing_maps_are_no_failure() {
    let ipvs = json!({"kind": "ServiceList", "items": [{"mode": "ipvs", "backends": ["10.0.0.9:80"]}]});
    let maps = json!({"kind": "MapList", "items": []});
    let found = found(&[
        &[answer("a", &services(&["10.0.0.1:80"], 4093, 1)), answer("b", &ipvs)],
        &[answer("a", &maps), silent("b", Some(5), "millrace: no maps")],
    ]);
    assert_eq!(
        found.complaints().collect::<Vec<_>>(),
        [
            "b is left out of the comparison of services: it is in IPVS mode, which has no names of Services",
            "b is left out of the comparison of maps: no maps"
        ]
    );
    assert_eq!(found.status(), ExitStatus::Done, "{found:?}");
    assert!(found.text(DiffFormat::Table).unwrap().starts_with("no difference was found, but"));
}
