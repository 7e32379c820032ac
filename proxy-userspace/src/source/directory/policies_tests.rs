use std::fs;

use super::*;
use crate::policy::Kind;

/// Writes files to a new directory and reads them. The directory's path is cut off in problems.
fn read_all(test: &str, files: &[(&str, &str)]) -> (Vec<String>, PolicyObjects, Vec<String>) {
    let directory = std::env::temp_dir().join(format!("millrace-policies-{test}-{}", std::process::id()));
    for (name, text) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let found = read_policies(&directory).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let keys = found.changes.iter().map(|change| match change {
        Change::Upsert { object, .. } => object.key().to_string(),
        Change::Delete(key) => panic!("{key}"),
    });
    let start = format!("{}/", directory.display());
    let problems = found.problems.iter().chain(&found.unread);
    let problems = problems.map(|problem| problem.to_string().replace(&start, ""));
    let (keys, problems) = (keys.collect(), problems.collect());
    (keys, found, problems)
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\n";

#[test]
fn objects_are_read_from_documents_lists_and_folders() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}},
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicyList", "items": [{"metadata": {"name": "p"}}]}
    ]}"#;
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, \
                address: 172.16.0.1}, {type: Hostname, address: node-1}]}\n";
    let pods = format!("{POD}---\n{}", POD.replace("web", "api"));
    let (keys, found, problems) =
        read_all("kinds", &[("a.yaml", &pods), ("b/c.json", list), ("b/node.yml", node), ("x.txt", "?")]);
    assert_eq!(keys, ["Pod shop/web", "Pod shop/api", "Namespace shop", "NetworkPolicy default/p"]);
    assert_eq!(problems, [""; 0]);
    assert_eq!(found.nodes["node-1"], ["172.16.0.1".parse().unwrap()].into());
}

#[test]
fn the_first_copy_counts_and_unreadable_parts_are_named() {
    let broken = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: 1}\n";
    let nameless = "apiVersion: v1\nkind: Pod\nmetadata: {}\n";
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n";
    let files = [
        ("a.yaml", POD),
        ("b.yaml", POD),
        ("c.yaml", broken),
        ("d.yaml", nameless),
        ("e.yaml", "a: ["),
        ("f.yaml", "apiVersion: extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: p}\n"),
        ("g.yaml", "apiVersion: v1\nmetadata: {name: p}\n"),
        ("h.yaml", node),
    ];
    let (keys, found, problems) = read_all("faults", &files);
    assert_eq!(keys, ["Pod shop/web"]);
    assert!(found.changes.iter().all(|change| match change {
        Change::Upsert { object, .. } => object.key().kind == Kind::Pod,
        Change::Delete(_) => false,
    }));
    let starts = [
        "b.yaml: Pod shop/web: is in a.yaml, too, which comes first; this copy is ignored",
        "h.yaml: Node node-1: is in h.yaml, too, which comes first; this copy is ignored",
        "c.yaml: p: spec.podSelector: ",
        "d.yaml: metadata.name: not set; takes the name of the object",
        "e.yaml: is not YAML: ",
        "f.yaml: apiVersion: \"extensions/v1beta1\" is not the version of a NetworkPolicy; takes networking.k8s.io/v1",
        "g.yaml: kind: not set; takes the kind of the object",
    ];
    assert_eq!(problems.len(), starts.len(), "{problems:?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem}");
    }
}

#[test]
fn a_field_that_is_spelled_wrong_opens_nothing() {
    let policy = |spec: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
        )
    };
    for (spec, field) in [
        ("{podSelector: {}, ingress: [{form: [{podSelector: {}}]}]}", "spec.ingress[0].form"),
        ("{podSelector: {}, policyType: [Egress]}", "spec.policyType"),
        (
            "{ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, excepts: [10.0.0.0/8]}}]}]}",
            "spec.ingress[0].from[0].ipBlock.excepts",
        ),
    ] {
        let (keys, _, problems) = read_all("fields", &[("a.yaml", &policy(spec))]);
        assert!(keys.is_empty(), "{spec}");
        assert_eq!(problems, [format!("a.yaml: p: {field}: is not a field of a NetworkPolicy")]);
    }
    let whole = "{podSelector: {matchLabels: {a: b}}, policyTypes: [Ingress, Egress], egress: [{}], ingress: [{ports: \
                 [{port: 80, endPort: 81, protocol: UDP}, {port: http}], from: [{namespaceSelector: {matchExpressions: \
                 [{key: a, operator: In, values: [b]}]}, podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8, except: \
                 [10.1.0.0/16]}}]}], ingres: null}";
    let (keys, _, problems) = read_all("fields", &[("a.yaml", &policy(whole))]);
    assert_eq!((keys, problems), (vec!["NetworkPolicy default/p".to_owned()], Vec::new()));
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    assert!(read_policies(Path::new("/nonexistent/manifests")).is_err());
}
