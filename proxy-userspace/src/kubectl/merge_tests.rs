use super::*;
use crate::cli::parse_format;

fn answer(node: &str, status: u8, output: &str) -> Answer {
    Answer { node: node.to_owned(), status: Some(status), output: output.to_owned(), errors: String::new() }
}

/// Returns the joined output.
fn shown(call: &Call, answers: &[Answer]) -> String {
    text(call, &mut answers.to_vec()).unwrap()
}

fn call(words: &str, format: &str) -> Call {
    let words = words.split(' ').map(str::to_owned).collect();
    Call { words, format: parse_format(format).unwrap(), no_headers: false }
}

#[test]
fn tables_with_the_same_header_are_one_with_the_nodes_before() {
    let answers = [
        answer(
            "node-a",
            0,
            "WAY TO      NEXT HOP           N\n10.1.0.2    02:00:00:00:00:01  1\nfd00::1234  -                  22\n",
        ),
        answer("node-b", 0, "WAY TO    NEXT HOP  N\n10.1.0.1  -         1\n"),
        answer("node-c", 1, ""),
    ];
    assert_eq!(
        shown(&call("ways", "table"), &answers),
        "NODE    WAY TO      NEXT HOP           N\n\
         node-a  10.1.0.2    02:00:00:00:00:01  1\n\
         node-a  fd00::1234  -                  22\n\
         node-b  10.1.0.1    -                  1\n"
    );
}

#[test]
fn tables_of_both_modes_stay_apart_and_other_lines_have_their_node() {
    let two = answer("node-a", 0, "A  B\n1  2\n\nC\n3\n");
    let lines = answer("node-b", 0, "millrace 0.1.0 (layout 6)\n");
    let all = shown(&call("version", "table"), &[two, lines]);
    assert_eq!(
        all,
        "NODE    A  B\nnode-a  1  2\n\nNODE    C\nnode-a  3\n\nnode-b: millrace 0.1.0 (layout 6)\n"
    );
}

#[test]
fn items_have_their_node_and_a_document_that_is_no_list_is_an_item() {
    let list = |address: &str| {
        json!({"apiVersion": "x", "kind": "BackendList", "node": "itself", "items": [{"address": address, "node": "10.1.0.9"}]})
            .to_string()
    };
    let answers = [answer("node-a", 0, &list("10.0.0.1:80")), answer("node-b", 0, &list("10.0.0.2:80"))];
    let lines = shown(&call("backends", "jsonl"), &answers);
    let items: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let item =
        |node: &str, address: &str| json!({"node": node, "address": address, "backend_node": "10.1.0.9"});
    assert_eq!(items, [item("node-a", "10.0.0.1:80"), item("node-b", "10.0.0.2:80")]);
    assert_eq!(shown(&call("backends", "jsonpath={.items[*].node}"), &answers), "node-a\nnode-b\n");
    let columns = shown(&call("backends", "custom-columns=N:.node,A:.address"), &answers);
    assert_eq!(columns, "N       A\nnode-a  10.0.0.1:80\nnode-b  10.0.0.2:80\n");
    let version = answer(
        "node-a",
        0,
        &json!({"apiVersion": "x", "kind": "Version", "node": "a", "version": "1"}).to_string(),
    );
    let json: Value = serde_json::from_str(&shown(&call("version", "json"), &[version])).unwrap();
    let items = json!([{"node": "node-a", "version": "1"}]);
    assert_eq!(json, json!({"apiVersion": API_VERSION, "kind": "VersionList", "items": items}));
}

#[test]
fn an_answer_that_is_no_json_is_a_complaint_of_its_node_alone() {
    let list = json!({"kind": "WayList", "items": [{"target": "10.1.0.2"}]}).to_string();
    let mut answers = [answer("node-a", 0, "{"), answer("node-b", 0, &list)];
    let shown = text(&call("ways", "jsonpath={.items[*].target}"), &mut answers).unwrap();
    assert_eq!(shown, "10.1.0.2\n");
    assert!(answers[0].errors.starts_with("the answer can't be read: "), "{answers:?}");
    assert_eq!((status(&answers), answers[1].errors.as_str()), (ExitStatus::Failed, ""));
    let refused = Answer { errors: "millrace: why".to_owned(), ..answer("node-a", 6, "{") };
    let mut answers = [refused];
    documents(&mut answers);
    assert_eq!((answers[0].complaints().count(), status(&answers)), (2, ExitStatus::NotPermitted));
}

#[test]
fn the_status_is_that_of_all_or_the_gravest() {
    let of =
        |statuses: &[u8]| status(&statuses.iter().map(|status| answer("a", *status, "")).collect::<Vec<_>>());
    assert_eq!(of(&[0, 0]), ExitStatus::Done);
    assert_eq!(of(&[3, 3]), ExitStatus::NotFound);
    assert_eq!(of(&[0, 3]), ExitStatus::Done, "one node has it");
    assert_eq!(of(&[0, 3, 4]), ExitStatus::Wrong);
    let silent = Answer { status: None, ..answer("a", 0, "") };
    assert_eq!(status(&[silent, answer("b", 0, "")]), ExitStatus::Failed);
}

#[test]
fn the_status_of_nodes_is_a_row_each() {
    let attached = json!([{"device": "eth0", "hook": "xdp", "mode": "native"}, {"device": "eth0", "hook": "tc_ingress", "mode": "tcx"},
        {"device": "eth1", "hook": "tc_ingress", "mode": "tcx"}]);
    let counters =
        json!([{"drop": true, "packets": 3}, {"drop": false, "packets": 9}, {"drop": true, "packets": 4}]);
    let healthy = json!({"attached": attached, "counters": counters, "services": 14, "agent": {"version": "0.1.0"},
        "readiness": {"ready": true, "failing": [], "failures": []}});
    let sick = json!({"mode": "ipvs", "agent": null, "readiness": {"ready": false, "failing": [{"condition": "node-found"}], "failures": ["x"]}});
    let answers = [answer("node-a", 0, &healthy.to_string()), answer("node-b", 0, &sick.to_string())];
    let uplinks = "eth0 xdp/native,eth1 tc";
    assert_eq!(
        shown(&call("status", "table"), &answers),
        format!(
            "NODE    READY  VERSION  MODE  {:23}  SERVICES  DROPS  PROBLEMS\n\
             node-a  yes    0.1.0    ebpf  {uplinks}  14        7      none\n\
             node-b  no     -        ipvs  {:23}  -         0      node-found,1 of the sync\n",
            "UPLINKS", "-"
        )
    );
    assert_eq!(not_ready(&statuses(&mut answers.clone())), 1);
}

#[test]
fn a_node_without_an_answer_has_a_row_in_the_status_in_every_format() {
    let ready = json!({"kind": "Status", "readiness": {"ready": true}, "mode": "ipvs"});
    let silent = Answer {
        status: None,
        errors: "its pod is Pending: ImagePullBackOff".to_owned(),
        ..answer("node-a", 0, "")
    };
    let answers = [silent, answer("node-b", 0, &ready.to_string())];
    for format in ["table", "wide"] {
        assert_eq!(
            shown(&call("status", format), &answers),
            "NODE    READY    VERSION  MODE  UPLINKS  SERVICES  DROPS  PROBLEMS\n\
             node-a  unknown  -        -     -        -         -      its pod is Pending: ImagePullBackOff\n\
             node-b  yes      -        ipvs  -        -         0      none\n",
            "{format}"
        );
    }
    assert_eq!(shown(&call("status", "name"), &answers), "node-a\nnode-b\n");
    let errors = shown(&call("status", "jsonpath={.items[*].error}"), &answers);
    assert_eq!(errors, "its pod is Pending: ImagePullBackOff\n");
    assert_eq!(not_ready(&statuses(&mut answers.clone())), 1);
}

#[test]
fn lines_of_events_are_items_with_all_their_fields() {
    let answers = [
        answer("node-a", 0, "{\"kind\":\"drop\",\"why\":\"a\"}\n{\"kind\":\"reset\",\"why\":\"b\"}\n"),
        answer("node-b", 0, "{\"kind\":\"drop\",\"why\":\"c\"}\n"),
        answer("node-c", 0, ""),
        Answer { status: None, ..answer("node-d", 0, "{\"kind\":\"opened\"}\n{\"kind\":\"res") },
    ];
    let joined = shown(&call("monitor --last", "jsonpath={.items[*].kind}"), &answers);
    assert_eq!(joined, "drop\nreset\ndrop\nopened\n", "node-d was cut off");
    let list: Value = serde_json::from_str(&shown(&call("monitor --last", "json"), &answers)).unwrap();
    assert_eq!(
        (&list["kind"], &list["items"][2]),
        (&json!("EventList"), &json!({"node": "node-b", "kind": "drop", "why": "c"}))
    );
}

#[test]
fn rates_are_one_table_and_rows_that_can_not_be_read_are_a_complaint() {
    let drops = |reason: &str| {
        let item = json!({"reason": reason, "service": null, "program": "tc_ingress", "packets_per_second": 1.5,
            "packets": 7});
        json!({"kind": "DropRateList", "items": [item]}).to_string()
    };
    let old = json!({"kind": "DropRateList", "items": [{"reason": "no_way"}]}).to_string();
    let mut answers = [
        answer("node-a", 0, &drops("no_way")),
        answer("node-b", 0, &drops("no_endpoint")),
        answer("node-c", 0, &old),
    ];
    let mut top = call("top --view drops", "table");
    let rows = "node-a  no_way       -        tc_ingress  1.5        7\n\
                node-b  no_endpoint  -        tc_ingress  1.5        7\n";
    let header = "NODE    REASON       SERVICE  PROGRAM     PACKETS/S  PACKETS\n";
    assert_eq!(text(&top, &mut answers).unwrap(), format!("{header}{rows}"));
    assert!(answers[2].errors.starts_with("the answer can't be read: missing field"), "{answers:?}");
    assert_eq!(status(&answers), ExitStatus::Failed);
    top.no_headers = true;
    let bare = "node-a  no_way       -  tc_ingress  1.5  7\nnode-b  no_endpoint  -  tc_ingress  1.5  7\n";
    assert_eq!(shown(&top, &answers), bare);
}

#[test]
fn findings_of_all_nodes_go_on_in_further_lines_and_are_counted_together() {
    let list = |items: Value| json!({"kind": "CheckList", "items": items}).to_string();
    let found = "--uplinks names eth9; there is no such device (there are: eth0, veth1). Nothing is served.";
    let failed =
        json!({"result": "FAIL", "check": "uplinks", "found": found, "remedy": "name another by --uplinks"});
    let passed = json!({"result": "PASS", "check": "api", "found": "it answers", "remedy": ""});
    let answers =
        [answer("node-a", 4, &list(json!([failed, passed]))), answer("node-b", 0, &list(json!([passed])))];
    let text = rows(&call("check", "table"), &mut answers.to_vec(), Some(80));
    assert_eq!(
        text,
        "NODE    RESULT  CHECK    FOUND\n\
         node-a  FAIL    uplinks  --uplinks names eth9; there is no such device (there\n                         \
         are: eth0, veth1). Nothing is served.\n                         \
         -> name another by --uplinks\n\
         node-a  PASS    api      it answers\n\
         node-b  PASS    api      it answers\n\
         2 passed, 0 warnings, 1 failed, 0 skipped\n"
    );
    assert_eq!(status(&answers), ExitStatus::Wrong);
}

#[test]
fn events_are_one_table_in_which_nothing_is_cut() {
    let event = |service: &str| {
        json!({"time": "2026-01-02T03:04:05Z", "type": "drop", "service": service, "protocol": "TCP",
            "client": "198.51.100.7:40000", "frontend": "192.0.2.10:80", "backend": null, "reason": "no_endpoint",
            "program": "tc_ingress", "function": "", "device": "eth0", "length": 60})
        .to_string()
    };
    let long = "a-long-namespace/a-long-name:http";
    let answers = [answer("node-a", 0, &event(long)), answer("node-b", 0, &(event("a/b") + "\n"))];
    let why = "no_endpoint (tc_ingress, eth0)";
    assert_eq!(
        shown(&call("monitor --last", "table"), &answers),
        format!(
            "NODE    TIME          WHAT  {:33}  FROM                TO                 WHY\n\
             node-a  03:04:05.000  drop  {long}  198.51.100.7:40000  192.0.2.10:80/tcp  {why}\n\
             node-b  03:04:05.000  drop  {:33}  198.51.100.7:40000  192.0.2.10:80/tcp  {why}\n",
            "SERVICE", "a/b"
        )
    );
}
