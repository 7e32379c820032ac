use super::super::tests::seen;
use super::*;

/// The state of the views' tests, with an uplink and the ranges of the cluster.
fn state() -> Seen {
    let mut seen = seen();
    let range = |range: &str| Element::Net(range.parse().unwrap());
    let members = [
        (Set::Uplinks, Element::Device("eth0".to_owned())),
        (Set::Inside, range("10.1.0.0/16")),
        (Set::Near, range("10.1.0.0/16")),
        (Set::Vips, Element::Address("203.0.113.9".parse().unwrap())),
    ];
    seen.state.members.extend(members.map(|member| (member, None)));
    seen
}

fn add(seen: &mut Seen, set: Set, element: Element) {
    seen.state.members.insert((set, element), None);
}

fn port(at: &str) -> Element {
    Element::Port(Protocol::Tcp, at.parse().unwrap())
}

fn ask(from: &str, device: Option<&str>, to: &str) -> Question {
    Question {
        from: SocketAddr::new(from.parse().unwrap(), 40000),
        entry: Entry::Device(device.map(str::to_owned)),
        to: to.parse().unwrap(),
        protocol: 6,
    }
}

/// Returns the reasons and the cause, and the words of the steps.
fn answered(seen: &Seen, known: &[FlowView], question: &Question) -> (String, Vec<&'static str>) {
    let answer = walk(seen, known, question);
    let reasons = answer.reasons.iter().copied().collect::<Vec<_>>().join(" or ");
    let sign = if answer.is_drop { "DROP " } else { "" };
    (format!("{sign}{reasons}: {}", answer.why), answer.steps.iter().map(|step| step.step).collect())
}

#[test]
fn a_client_outside_is_served_by_the_mark_that_its_frontend_has() {
    let (end, steps) = answered(&state(), &[], &ask("10.5.5.5", None, "203.0.113.9:80"));
    // The other server has weight 0.
    assert_eq!(end, "sent_dsr: 10.1.1.6:8080");
    assert_eq!(steps, ["client", "source", "frontend", "list", "schedule", "path"]);
}

#[test]
fn a_client_outside_the_source_ranges_is_dropped() {
    let (end, steps) = answered(&state(), &[], &ask("198.51.100.7", Some("eth0"), "203.0.113.9:80"));
    assert_eq!(
        end,
        "DROP source_refused: 198.51.100.7 is in none of loadBalancerSourceRanges (10.0.0.0/8, 172.16.0.0/12)"
    );
    assert_eq!(steps, ["client", "source"]);
}

#[test]
fn policies_refusals_and_unknown_ports_are_told_apart() {
    let mut seen = state();
    let (end, _) = answered(&seen, &[], &ask("198.51.100.7", None, "192.0.2.1:30080"));
    assert!(end.starts_with("DROP no_local_endpoint: externalTrafficPolicy is Local"), "{end}");
    let (end, _) = answered(&seen, &[], &ask("10.1.0.7", Some("cni0"), "192.0.2.1:30080"));
    assert_eq!(end, "DROP no_endpoint: TCP 192.0.2.1:30080 has no server for new connections");
    let to = "203.0.113.9:81";
    let (end, _) = answered(&seen, &[], &ask("198.51.100.7", None, to));
    assert_eq!(end, "DROP unknown_port: 203.0.113.9 has 80/TCP; dropped without an answer");
    add(&mut seen, Set::Refusing, Element::Address("203.0.113.9".parse().unwrap()));
    let (end, _) = answered(&seen, &[], &ask("198.51.100.7", None, to));
    assert_eq!(end, "DROP unknown_port: 203.0.113.9 has 80/TCP; ICMP refuses");
    let (end, _) = answered(&seen, &[], &ask("198.51.100.7", None, "203.0.113.77:80"));
    assert_eq!(end, "not_ours: 203.0.113.77 is no Service's address, or a node's; it has no port");
    add(&mut seen, Set::Refused, port("10.96.0.10:80"));
    let (end, _) = answered(&seen, &[], &ask("10.1.0.7", Some("cni0"), "10.96.0.10:80"));
    assert_eq!(end, "DROP no_endpoint: 10.96.0.10:80/TCP has no usable endpoint; ICMP refuses");
}

#[test]
fn the_source_is_translated_unless_the_server_is_here_or_the_client_inside() {
    let mut seen = state();
    add(&mut seen, Set::Local, port("10.1.0.5:8080"));
    let paths = |question: &Question| -> Vec<String> {
        let steps = walk(&seen, &[], question).steps;
        steps.into_iter().filter(|step| step.step == "path").map(|step| step.found).collect()
    };
    let (here, there) = ("on this node; the client's address stays", "on another node; ");
    for (question, far) in [
        (ask("10.1.0.7", Some("cni0"), "10.96.0.10:80"), "the client's address stays"),
        (ask("10.1.9.7", Some("eth0"), "10.96.0.10:80"), "an address of this node is the source"),
        (ask("172.30.0.7", Some("docker0"), "10.96.0.10:80"), "an address of this node is the source"),
    ] {
        let expected = [format!("10.1.1.6:8080: {there}{far}"), format!("10.1.0.5:8080: {here}")];
        assert_eq!(paths(&question), expected, "{question:?}");
    }
    let process = Question { entry: Entry::Process, ..ask("10.1.0.7", None, "10.96.0.10:80") };
    assert_eq!(paths(&process)[1], "10.1.0.5:8080: on this node; an address of this node is the source");
    let hairpin = ask("10.1.0.5", Some("cni0"), "10.96.0.10:80");
    assert_eq!(paths(&hairpin)[1], "10.1.0.5:8080: the client itself; an address of this node is the source");
}

#[test]
fn what_ipvs_remembers_comes_before_the_scheduler() {
    let question = ask("10.1.0.7", Some("cni0"), "10.96.0.10:80");
    let flow = |kind: &'static str, source: &str, state: &str| FlowView {
        protocol: "TCP".to_owned(),
        kind,
        source: source.parse().unwrap(),
        destination: Some(question.to),
        mark: None,
        backend: "10.1.1.6:8080".parse().unwrap(),
        state: state.to_owned(),
        remaining_seconds: 80,
    };
    let template = flow("template", "10.1.0.7:0", "assured");
    let (end, steps) = answered(&state(), std::slice::from_ref(&template), &question);
    assert_eq!(end, "served_pod: 10.1.1.6:8080");
    assert_eq!(steps, ["client", "frontend", "affinity", "path"]);
    let known = [template, flow("connection", "10.1.0.7:40000", "established")];
    let (_, steps) = answered(&state(), &known, &question);
    assert_eq!(steps, ["client", "frontend", "flow", "path"]);
    let (end, steps) = answered(&state(), &known, &ask("10.1.0.8", Some("cni0"), "10.96.0.10:80"));
    assert_eq!(end, "served_local or served_pod: rr chooses one of 10.1.1.6:8080, 10.1.0.5:8080");
    assert_eq!(steps, ["client", "frontend", "schedule", "path", "path"]);

    let mut seen = state();
    add(&mut seen, Set::Refused, port("10.96.0.10:80"));
    let (end, _) = answered(&seen, &known, &question);
    assert_eq!(end, "served_pod: 10.1.1.6:8080", "only new connections are refused");
    for servers in seen.servers.values_mut() {
        for (_, server, _) in servers {
            server.weight = 0;
        }
    }
    let (end, _) = answered(&seen, &known, &question);
    assert_eq!(end, "served_pod: 10.1.1.6:8080", "a server that drains keeps its connections");
    seen.state.members.remove(&(Set::Refused, port("10.96.0.10:80")));
    let (end, steps) = answered(&seen, &known[..1], &question);
    assert_eq!(end, "DROP no_endpoint: TCP 10.96.0.10:80 has no server for new connections");
    assert_eq!(steps, ["client", "frontend", "schedule"], "and no clients");
}
