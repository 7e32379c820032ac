use clap::Args as _;
use serde_json::Value;

use super::*;
use crate::cli::argument::parsed;
use crate::cli::output::{Format, Style};
use crate::policy::{Change, Object};

const MANIFESTS: &str = r#"[
  {"kind": "Namespace", "metadata": {"name": "shop"}},
  {"kind": "Pod", "metadata": {"namespace": "shop", "name": "web", "labels": {"app": "web"}},
   "spec": {"nodeName": "node-1", "containers": []},
   "status": {"podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}]}},
  {"kind": "Pod", "metadata": {"namespace": "shop", "name": "api", "labels": {"app": "api"}},
   "spec": {"nodeName": "node-2", "containers": []}, "status": {"podIPs": [{"ip": "10.1.0.2"}, {"ip": "fd00::2"}]}},
  {"kind": "Pod", "metadata": {"namespace": "kube-system", "name": "agent"},
   "spec": {"nodeName": "node-1", "hostNetwork": true, "containers": []}, "status": {"podIP": "172.16.0.1"}},
  {"kind": "Pod", "metadata": {"namespace": "shop", "name": "new"}, "spec": {"containers": []}},
  {"kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "closed"},
   "spec": {"podSelector": {"matchLabels": {"app": "web"}}}},
  {"kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "from-api"},
   "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [
     {"from": [{"podSelector": {"matchLabels": {"app": "api"}}}], "ports": [{"port": 80}]}]}},
  {"kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "out"},
   "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}}
]"#;

fn cluster() -> Cluster {
    let mut index = Index::default();
    for value in serde_json::from_str::<Vec<Value>>(MANIFESTS).unwrap() {
        let object = match value["kind"].as_str().unwrap() {
            "Namespace" => Object::Namespace(serde_json::from_value(value).unwrap()),
            "Pod" => Object::Pod(serde_json::from_value(value).unwrap()),
            _ => Object::NetworkPolicy(serde_json::from_value(value).unwrap()),
        };
        index.apply(Change::Upsert { object, file: None });
    }
    let address = "172.16.0.1".parse().unwrap();
    Cluster { index, nodes: [("node-1".to_owned(), [address].into())].into(), problems: Vec::new() }
}

fn render(format: &Format, text: impl Fn(&Style<'_>) -> Result<String, CliError>) -> String {
    let node = || "node-a".to_owned();
    text(&Style { format, no_headers: false, width: None, node: &node }).unwrap()
}

fn table(arguments: &str, format: &Format) -> Result<String, String> {
    let args: PoliciesArgs = parsed(&format!("--manifests . {arguments}"));
    let list =
        args.pods.list(&cluster().index, *format == Format::Wide).map_err(|error| error.to_string())?;
    Ok(render(format, |style| list.render(style)))
}

fn answer(arguments: &str, format: &Format) -> Result<String, String> {
    let args: PoliciesArgs = parsed(&format!("--manifests . {arguments}"));
    let answer = args.question.asked().unwrap().answer(&cluster()).map_err(|error| error.to_string())?;
    Ok(render(format, |style| answer.render(style)))
}

#[test]
fn pods_are_listed_with_isolation_and_policies() {
    assert_eq!(
        table("", &Format::Wide).unwrap(),
        "NAMESPACE    POD    NODE    INGRESS       EGRESS        POLICIES             ADDRESSES\n\
         kube-system  agent  node-1  host network  host network  -                    172.16.0.1\n\
         shop         api    node-2  open          isolated      out                  10.1.0.2,fd00::2\n\
         shop         new    -       open          isolated      out                  -\n\
         shop         web    node-1  isolated      isolated      closed,from-api,out  10.1.0.1,fd00::1\n\
         By the manifests alone, and not what a node enforces.\n"
    );
    let json: Value = serde_json::from_str(&table("web", &Format::Json).unwrap()).unwrap();
    assert_eq!(json["kind"], "PodPolicyList");
    assert_eq!(
        json["items"],
        serde_json::json!([{
            "namespace": "shop", "name": "web", "node": "node-1", "addresses": ["10.1.0.1", "fd00::1"],
            "host_network": false, "ingress_isolated": true, "egress_isolated": true,
            "policies": [
                {"name": "closed", "directions": ["ingress"]},
                {"name": "from-api", "directions": ["ingress"]},
                {"name": "out", "directions": ["egress"]},
            ],
        }])
    );
}

#[test]
fn pods_are_chosen_by_name_namespace_and_node() {
    for (arguments, expected) in [
        ("web", &["shop/web"][..]),
        ("shop/web", &["shop/web"]),
        ("-n kube-system", &["kube-system/agent"]),
        ("--node node-1", &["kube-system/agent", "shop/web"]),
        ("--node node-1 -n shop", &["shop/web"]),
        ("--node node-9", &[]),
    ] {
        let names = table(arguments, &Format::Name).unwrap();
        assert_eq!(names.lines().collect::<Vec<_>>(), expected, "{arguments}");
    }
    assert_eq!(
        table("data/web", &Format::Name),
        Err("no pod in the manifests matches \"data/web\"".to_owned())
    );
}

#[test]
fn a_connection_is_judged_at_both_ends_and_in_each_family() {
    assert_eq!(
        answer("--from shop/api --to shop/web --port 80", &Format::Table).unwrap(),
        "connection  TCP 10.1.0.2 > 10.1.0.1, port 80\n\
         egress      allowed by shop/out egress[0]\n\
         ingress     allowed by shop/from-api ingress[0]\n\
         verdict     allowed, by the manifests alone\n\
         \n\
         connection  TCP fd00::2 > fd00::1, port 80\n\
         egress      allowed by shop/out egress[0]\n\
         ingress     allowed by shop/from-api ingress[0]\n\
         verdict     allowed, by the manifests alone\n"
    );
    assert_eq!(
        answer("--from 192.0.2.1 --to 10.1.0.1 --port 80/udp", &Format::Table).unwrap(),
        "connection  UDP 192.0.2.1 > 10.1.0.1, port 80\n\
         egress      192.0.2.1 is no pod that policies can select\n\
         ingress     denied: shop/closed, shop/from-api isolate shop/web for ingress, without a rule for this\n\
         verdict     denied, by the manifests alone\n"
    );
}

#[test]
fn a_judgement_in_json_has_a_reason_for_each_end() {
    let reasons = |arguments: &str| {
        let text = answer(arguments, &Format::Json).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["kind"], "PolicyJudgementList");
        let item = &json["items"][0];
        let reason = |side: &str| item[side]["reason"].as_str().unwrap_or("-").to_owned();
        (item["allowed"].as_bool().unwrap(), reason("egress"), reason("ingress"))
    };
    for (arguments, allowed, egress, ingress) in [
        ("--from kube-system/agent --to shop/web --port 1", true, "-", "own-node"),
        ("--from shop/web --to 10.1.0.1 --port 1", true, "itself", "itself"),
        ("--from 10.1.0.2 --to shop/web --port 81", false, "rule", "no-rule"),
        ("--from 192.0.2.1 --to shop/api --port 5/sctp", true, "-", "not-isolated"),
        ("--from 192.0.2.1 --to 192.0.2.2 --port 5", true, "-", "-"),
    ] {
        assert_eq!(reasons(arguments), (allowed, egress.to_owned(), ingress.to_owned()), "{arguments}");
    }
}

#[test]
fn ends_that_are_not_there_are_named() {
    for (arguments, message) in [
        ("--from shop/wep --to shop/web --port 1", "no pod in the manifests matches \"shop/wep\""),
        ("--from shop/new --to shop/web --port 1", "shop/new has no address in status.podIPs"),
        (
            "--from kube-system/agent --to fd00::1 --port 1",
            "kube-system/agent and fd00::1 have no addresses of the same family",
        ),
    ] {
        assert_eq!(answer(arguments, &Format::Table), Err(message.to_owned()));
    }
}

#[test]
fn a_question_needs_both_ends_and_a_port() {
    let command = || PoliciesArgs::augment_args(clap::Command::new("command").no_binary_name(true));
    let refused = |line: &str| {
        let words = format!("--manifests . {line}");
        command().try_get_matches_from(words.split_whitespace()).unwrap_err().to_string()
    };
    for line in ["--from 192.0.2.1", "--from 192.0.2.1 --to 192.0.2.2", "--port 80"] {
        assert!(refused(line).contains("required arguments were not provided"), "{line}");
    }
    // A node has no policies to ask, but only what became of them.
    for line in ["--from 192.0.2.1 --to 192.0.2.2 --port 80", "--node node-1"] {
        let error = command().try_get_matches_from(line.split_whitespace()).unwrap_err().to_string();
        assert!(error.contains("--manifests"), "{line}: {error}");
    }
    assert!(refused("web --from 192.0.2.1 --to 192.0.2.2 --port 1").contains("cannot be used with"));
    for (line, takes) in [
        (
            "--from web --to 192.0.2.2 --port 1",
            "takes an address such as 192.0.2.1, or NAMESPACE/NAME of a pod",
        ),
        (
            "--from 10.1.0.0/16 --to 192.0.2.2 --port 1",
            "takes an address such as 192.0.2.1, or NAMESPACE/NAME of a pod",
        ),
        ("--from 192.0.2.1 --to 192.0.2.2 --port 0", "takes a port such as 80, or 53/udp"),
        ("--from 192.0.2.1 --to 192.0.2.2 --port 80/icmp", "takes a port such as 80, or 53/udp"),
    ] {
        assert!(refused(line).contains(takes), "{line}: {}", refused(line));
    }
}

#[test]
fn of_pods_with_one_address_the_named_one_is_judged_and_else_one_that_denies() {
    let mut cluster = cluster();
    let old = serde_json::json!({"metadata": {"namespace": "shop", "name": "a-old"}, "spec": {"containers": []},
                                 "status": {"podIPs": [{"ip": "10.1.0.1"}]}});
    let object = Object::Pod(serde_json::from_value(old).unwrap());
    cluster.index.apply(Change::Upsert { object, file: None });
    let judged = |to: &str| {
        let args: PoliciesArgs = parsed(&format!("--manifests . --from 192.0.2.1 --to {to} --port 80"));
        let answer = args.question.asked().unwrap().answer(&cluster).unwrap();
        let json: Value = serde_json::from_str(&render(&Format::Json, |style| answer.render(style))).unwrap();
        let item = &json["items"][0];
        (item["ingress"]["pod"].as_str().unwrap().to_owned(), item["allowed"] == true)
    };
    assert_eq!(judged("shop/a-old"), ("shop/a-old".to_owned(), true));
    assert_eq!(judged("shop/web"), ("shop/web".to_owned(), false));
    assert_eq!(judged("10.1.0.1"), ("shop/web".to_owned(), false));
}

#[test]
fn manifests_that_can_not_be_read_are_no_base_for_an_answer() {
    let folder = std::env::temp_dir().join(format!("millrace-unread-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let policy =
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {ingres: []}\n";
    std::fs::write(folder.join("a.yaml"), policy).unwrap();
    let error = Cluster::read(&folder).err().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(error.status(), crate::cli::ExitStatus::Usage);
    assert!(error.to_string().contains("p: spec.ingres: is not a field of a NetworkPolicy"), "{error}");
}

#[test]
fn a_directory_that_can_not_be_read_is_a_wrong_flag() {
    let error = Cluster::read(Path::new("/nonexistent")).err().unwrap();
    assert_eq!(error.status(), crate::cli::ExitStatus::Usage);
    assert!(
        error.to_string().starts_with("--manifests: \"/nonexistent\" is not accepted; takes an existing")
    );
}
