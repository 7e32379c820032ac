use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::source::feed::Services;

type Manifest = super::Manifest<Services>;

fn parse(file: &Arc<Path>, text: &[u8]) -> Result<Manifest, String> {
    super::parse(file, text)
}

fn file(name: &str) -> Arc<Path> {
    Arc::from(Path::new(name))
}

fn read(text: &str) -> Manifest {
    parse(&file("web.yaml"), text.as_bytes()).unwrap()
}

fn keys(manifest: &Manifest) -> Vec<String> {
    manifest.objects.iter().map(|object| object.key().to_string()).collect()
}

fn problems(manifest: &Manifest) -> Vec<String> {
    manifest.problems.iter().map(ToString::to_string).collect()
}

const SERVICE: &str = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}}";

#[test]
fn documents_and_lists_of_both_sorts_give_their_objects() {
    let text = format!(
        "---\n{SERVICE}\n---\n# nothing\n---\napiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Node, \
         metadata: {{name: n1}}}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n- metadata: \
         {{name: web-1}}\n  addressType: IPv4\n  endpoints: []\n"
    );
    let manifest = read(&text);
    assert_eq!(problems(&manifest), [""; 0]);
    assert_eq!(keys(&manifest), ["Service shop/web", "Node n1", "EndpointSlice default/web-1"]);
}

#[test]
fn json_is_read_where_the_name_says_so() {
    let text = r#"{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"web"},"spec":{"ports":null}}]}"#;
    let manifest = parse(&file("web.json"), text.as_bytes()).unwrap();
    assert_eq!(keys(&manifest), ["Service default/web"]);
    let message = parse(&file("web.json"), b"{").unwrap_err();
    assert_eq!(message, "is not JSON: EOF while parsing an object at line 1 column 1");
}

#[test]
fn text_that_is_no_yaml_names_the_line() {
    let message = parse(&file("web.yaml"), b"kind: [").unwrap_err();
    assert!(message.starts_with("is not YAML: ") && message.contains("line 2"), "{message}");
}

#[test]
fn a_field_of_the_wrong_type_names_object_and_field_and_spares_the_others() {
    let wrong = "{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {ports: [{port: eighty}]}}";
    let manifest = read(&format!("{wrong}\n---\n{SERVICE}\n"));
    assert_eq!(keys(&manifest), ["Service shop/web"]);
    assert_eq!(
        problems(&manifest),
        ["web.yaml: Service default/bad: spec.ports[0].port: invalid type: string \"eighty\", expected i32"]
    );
    assert_eq!(manifest.broken.keys().map(ToString::to_string).collect::<Vec<_>>(), ["Service default/bad"]);
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    for name in ["web.yaml", "web.json"] {
        let text = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}"#;
        let manifest = parse(&file(name), format!("\u{feff}{text}").as_bytes()).unwrap();
        assert_eq!(keys(&manifest), ["Service default/web"]);
    }
}

#[test]
fn brackets_without_end_are_refused_before_they_are_parsed() {
    for bracket in ["[", "{", "[\n", "- ["] {
        let message = parse(&file("web.yaml"), bracket.repeat(100_000).as_bytes()).unwrap_err();
        assert_eq!(message, "nests more than 1000 brackets; no object does");
    }
    // Closed brackets do not count, however many there are.
    let annotation = "[{}]".repeat(100_000);
    let text = format!("{SERVICE}\n---\n{{apiVersion: v1, kind: Node, metadata: {{name: '{annotation}'}}}}");
    assert_eq!(read(&text).objects.len(), 2);
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let path = std::env::temp_dir().join(format!("millrace-{}-large.yaml", std::process::id()));
    // The file is sparse: it takes no disk space.
    File::create(&path).unwrap().set_len(LARGEST_FILE + 1).unwrap();
    let refusal = super::read(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(refusal, "it is larger than 256 MiB");
}

#[test]
fn what_is_not_read_names_its_place_and_what_is() {
    let manifest = read(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n---\napiVersion: v1\nkind: List\nitems:\n- \
         {apiVersion: v1, kind: Service}\n- {metadata: {name: x}}\n---\njust text\n---\napiVersion: v1\nkind: \
         List\nitems: 3\n",
    );
    let takes = "takes v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 Node and lists of them";
    let deployment = Foreign { count: 1, name: "web".to_owned(), place: "document 1: kind".to_owned() };
    assert_eq!(manifest.foreign, BTreeMap::from([("apps/v1 Deployment".to_owned(), deployment)]));
    assert_eq!(
        problems(&manifest),
        [
            "web.yaml: document 2: items[0]: metadata.name: not set; a Service has a name".to_owned(),
            format!("web.yaml: document 2: items[1]: kind: not set; {takes}"),
            format!("web.yaml: document 3: kind: not set; {takes}"),
            "web.yaml: document 4: items: is no list; takes a list of objects".to_owned(),
        ]
    );
}

/// Pieces of manifests, whole and torn.
const PIECES: [&str; 24] = [
    "---\n",
    "apiVersion: v1\n",
    "apiVersion: discovery.k8s.io/v1\n",
    "kind: Service\n",
    "kind: EndpointSlice\n",
    "kind: List\n",
    "kind: ServiceList\n",
    "items:\n",
    "- ",
    "metadata: {name: web}\n",
    "metadata:\n  name: 7\n",
    "spec: {ports: [{port: 99999999999}]}\n",
    "spec: [1, 2]\n",
    "  ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a\n",
    "? ",
    "!!binary x\n",
    "\t",
    "\u{feff}",
];

proptest! {
    #[test]
    fn whatever_a_file_says_is_objects_or_problems_and_never_a_panic(
        pieces in vec(select(&PIECES[..]), 0..20),
        noise in vec(any::<u8>(), 0..8),
        at in any::<prop::sample::Index>(),
    ) {
        let mut text = pieces.concat().into_bytes();
        let at = at.index(text.len() + 1);
        text.splice(at..at, noise);
        for name in ["a.yaml", "a.json"] {
            if let Ok(manifest) = parse(&file(name), &text) {
                prop_assert!(manifest.broken.len() <= manifest.problems.len());
                for problem in problems(&manifest) {
                    prop_assert_eq!(problem.lines().count(), 1, "one line: {}", problem);
                }
            }
        }
    }
}
