use super::super::format::parse;
use super::*;

#[derive(Serialize)]
struct Pod {
    address: SocketAddr,
    packets: u64,
    state: &'static str,
}

impl Row for Pod {
    const COLUMNS: &'static [Column] =
        &[Column::new("ADDRESS", "address"), Column::new("IN", "packets"), Column::wide("STATE", "state")];

    fn cells(&self, is_wide: bool) -> Vec<String> {
        let state = if is_wide { self.state } else { "" };
        vec![self.address.to_string(), format!("{} p", self.packets), state.to_owned()]
    }

    fn name(&self) -> String {
        self.address.to_string()
    }
}

fn list(is_wide: bool) -> List {
    let pod = |address: &str, packets, state| Pod { address: address.parse().unwrap(), packets, state };
    let pods = [pod("10.0.0.10:80", 7, "ready"), pod("10.0.0.9:80", 10, "draining")];
    List::new("PodList", vec![Group::of("ebpf", &pods, is_wide).unwrap()])
}

fn render(list: &List, format: &str, no_headers: bool) -> String {
    let node = || "node-a".to_owned();
    let format = parse(format).unwrap();
    list.render(&Style { format: &format, no_headers, width: None, node: &node }).unwrap()
}

fn names(list: &List) -> String {
    render(list, "name", false)
}

#[test]
fn wide_columns_are_shown_in_wide_tables_alone() {
    assert_eq!(
        render(&list(false), "table", false),
        "ADDRESS       IN\n10.0.0.10:80  7 p\n10.0.0.9:80   10 p\n"
    );
    assert!(
        render(&list(true), "wide", false)
            .starts_with("ADDRESS       IN    STATE\n10.0.0.10:80  7 p   ready\n")
    );
    let bare = render(&list(false), "table", true);
    assert_eq!(bare, "10.0.0.10:80  7 p\n10.0.0.9:80   10 p\n");
}

#[test]
fn numbers_and_addresses_are_sorted_as_such() {
    let mut list = list(false);
    for (column, first) in [
        ("address", "10.0.0.9:80\n"),
        ("-address", "10.0.0.10:80\n"),
        ("packets", "10.0.0.10:80\n"),
        ("IN", "10.0.0.10:80\n"),
        ("-in", "10.0.0.9:80\n"),
        ("state", "10.0.0.9:80\n"),
    ] {
        list.sort(column).unwrap();
        assert!(names(&list).starts_with(first), "{column}: {}", names(&list));
    }
    assert_eq!(list.sort("color"), Err("address, packets, state".to_owned()));
    list.sort("packets").unwrap();
    list.keep_first(1);
    assert_eq!(names(&list), "10.0.0.10:80\n");
}

#[derive(Serialize)]
struct Answer {
    name: &'static str,
    times: Times,
}

#[derive(Serialize)]
struct Times {
    p99_microseconds: Option<u64>,
}

impl Row for Answer {
    const COLUMNS: &'static [Column] =
        &[Column::new("NAME", "name"), Column::new("P99", "times.p99_microseconds")];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![self.name.to_owned(), super::super::bucket_end(self.times.p99_microseconds)]
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}

#[test]
fn a_row_without_a_value_is_last_in_both_directions_and_times_are_numbers() {
    let answer = |name, p99_microseconds| Answer { name, times: Times { p99_microseconds } };
    let answers =
        [answer("idle", None), answer("slow", Some(16_384)), answer("", None), answer("fast", Some(2048))];
    let mut list = List::new("AnswerList", vec![Group::of("ebpf", &answers, false).unwrap()]);
    for (column, order) in [
        ("p99", "fast slow idle"),
        ("-P99", "slow fast idle"),
        ("-p99_microseconds", "slow fast idle"),
        ("times.p99_microseconds", "fast slow idle"),
        ("name", "fast idle slow"),
        ("-name", "slow idle fast"),
    ] {
        list.sort(column).unwrap();
        assert_eq!(names(&list).replace('\n', " ").trim_end(), order, "{column}");
    }
    list.sort("-p99").unwrap();
    list.keep_first(2);
    assert_eq!(names(&list), "slow\nfast\n");
}

#[test]
fn an_item_says_which_mode_serves_it() {
    let text = render(&list(false), "json", false);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["apiVersion"], &json["kind"]), (&"millrace.dev/v1alpha1".into(), &"PodList".into()));
    assert_eq!(json["node"], "node-a");
    let item = &json["items"][1];
    assert_eq!((&item["mode"], &item["packets"]), (&"ebpf".into(), &10.into()));
    let line = render(&list(false), "jsonl", false);
    assert_eq!(serde_json::from_str::<Value>(line.lines().nth(1).unwrap()).unwrap(), *item);
    assert_eq!(render(&list(false), "jsonpath={.items[*].packets}", false), "7\n10\n");
    let yaml = render(&list(false), "yaml", false);
    assert_eq!(serde_norway::from_str::<Value>(&yaml).unwrap(), json);
}
