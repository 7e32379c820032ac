use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;

use super::rules::{Apart, Folders, Layout, Never, Only, Uses};
use super::tree::Tree;
use super::{circles, layers};

/// Reads a library from texts; `src/lib.rs` is its root.
fn tree(files: &[(&str, &str)]) -> Tree {
    let texts: BTreeMap<&Path, &str> = files.iter().map(|(file, text)| (Path::new(*file), *text)).collect();
    let read = |file: &Path| texts.get(file).map(|text| (*text).to_owned()).context("no such file");
    let mut tree = Tree::default();
    tree.add_target(Path::new("src/lib.rs"), Some("some-crate"), &read).unwrap();
    tree
}

/// The imports as `from:line to`, without `src/` and endings.
fn imports(files: &[(&str, &str)]) -> Vec<String> {
    let short = |path: &Path| path.with_extension("").strip_prefix("src").unwrap().display().to_string();
    let imports = tree(files).imports();
    imports.iter().map(|i| format!("{}:{} {}", short(&i.from), i.line, short(&i.to))).collect()
}

fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let tree = tree(files);
    circles::faults(&tree.files(), &tree.imports())
}

#[test]
fn two_files_that_import_each_other_are_a_circle() {
    let faults = circles_of(&[
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "use crate::b::B;\npub struct A;"),
        ("src/b.rs", "pub struct B;\n\nfn f(_: super::a::A) {}"),
        ("src/c.rs", "use crate::a::A;"),
    ]);
    assert_eq!(
        faults,
        [
            "src/a.rs:1: imports crate::b::B (src/b.rs); this is part of a circle of 2 files",
            "src/b.rs:3: imports super::a::A (src/a.rs); this is part of a circle of 2 files",
        ]
    );
}

#[test]
fn of_a_large_circle_the_shortest_way_round_is_shown() {
    let faults = circles_of(&[
        ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("src/a.rs", "use crate::b::X;"),
        ("src/b.rs", "use crate::c::X; pub struct X;"),
        ("src/c.rs", "use crate::{a, d::X}; pub struct X;"),
        ("src/d.rs", "use crate::c; pub struct X;"),
    ]);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults.iter().all(|fault| fault.ends_with("a circle of 4 files")), "{faults:?}");
}

#[test]
fn a_tree_that_imports_downward_has_no_circle() {
    let files = [
        ("src/lib.rs", "mod high;\nmod low;"),
        ("src/high.rs", "use crate::low::{self, Low};\npub fn f(_: Low) { low::g() }"),
        ("src/low.rs", "pub struct Low;\npub fn g() {}"),
    ];
    assert_eq!(circles_of(&files), [""; 0]);
    assert_eq!(imports(&files), ["high:1 low"]);
}

#[test]
fn a_folder_and_its_files_are_no_circle_whatever_they_share() {
    let faults = circles_of(&[
        ("src/lib.rs", "mod a;"),
        ("src/a/mod.rs", "mod b; mod c;\npub use b::B;\nuse self::c::C;\npub struct A;"),
        ("src/a/b.rs", "use super::A; pub struct B;"),
        ("src/a/c.rs", "use super::{A, B}; pub struct C;"),
    ]);
    assert_eq!(faults, [""; 0]);
}

#[test]
fn a_re_export_hides_no_circle() {
    let faults = circles_of(&[
        ("src/lib.rs", "mod a;"),
        ("src/a/mod.rs", "mod b; mod c;\npub use self::{b::B, c::*};"),
        ("src/a/b.rs", "use super::C; pub struct B;"),
        ("src/a/c.rs", "use crate::a::B; pub struct C;"),
    ]);
    assert_eq!(faults.len(), 2, "{faults:?}");
}

#[test]
fn groups_aliases_self_and_super_lead_to_the_file_they_mean() {
    let files = [
        ("src/lib.rs", "pub mod a; mod b; pub mod c;"),
        ("src/a/mod.rs", "pub mod d; mod e; pub use self::d as other;"),
        ("src/a/d.rs", "pub struct D;"),
        (
            "src/a/e.rs",
            "use super::super::{b::{self as last, B}, c};\nuse std::fmt;\nfn f() { last::g(); c::h() }",
        ),
        ("src/b.rs", "use crate::a::other::D;\nuse some_crate::c::{self};"),
        ("src/c.rs", "mod inner { pub fn f() { super::super::b::g(); } }"),
    ];
    assert_eq!(
        imports(&files),
        ["a/e:1 b", "a/e:1 c", "a/mod:1 a/d", "b:1 a/d", "b:1 a/mod", "b:2 c", "c:1 b"]
    );
}

#[test]
fn paths_in_macros_count_and_those_in_comments_and_strings_do_not() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c;"),
        (
            "src/a.rs",
            "/// See [`crate::c::C`].\n// use crate::c::C;\nfn f() -> &'static str {\n    \"use crate::c::C;\"\n}",
        ),
        ("src/b.rs", "fn f() {\n    println!(\"{}\", crate::a::f());\n}"),
        ("src/c.rs", "#[doc = \"crate::a\"]\npub struct C;"),
    ];
    assert_eq!(imports(&files), ["b:2 a"]);
}

#[test]
fn test_code_is_left_out() {
    let files = [
        ("src/lib.rs", "mod a; mod b; #[cfg(test)] mod scratch;"),
        (
            "src/a.rs",
            "#[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod more;",
        ),
        (
            "src/b.rs",
            "pub struct B;\n#[cfg(all(test, unix))]\nuse crate::a;\n#[cfg(not(test))]\nuse crate::a::A;",
        ),
    ];
    assert_eq!(imports(&files), ["b:5 a"]);
}

const LAYOUT: Layout = Layout {
    package: "some-crate",
    roots: &["lib"],
    folders: Folders::Each(&[Uses { name: "low", may_use: &[] }, Uses { name: "high", may_use: &["low"] }]),
};

#[test]
fn an_import_of_a_folder_above_is_named_with_what_is_allowed() {
    let tree = tree(&[
        ("src/lib.rs", "mod high; mod low; mod stray;"),
        ("src/high.rs", "use crate::low::inner::L; pub struct H;"),
        ("src/low/mod.rs", "pub mod inner;"),
        ("src/low/inner.rs", "pub struct L;\nuse crate::high::H;"),
        ("src/stray.rs", ""),
    ]);
    assert_eq!(
        layers::folders(&tree.files(), &tree.imports(), &LAYOUT),
        [
            "src/stray.rs: this file's folder is in no rule",
            "src/low/inner.rs:2: imports crate::high::H (src/high.rs); low may use nothing of the others",
        ]
    );
}

#[test]
fn a_pure_folder_names_no_clock_and_a_crate_stays_in_its_folder() {
    let tree = tree(&[
        ("src/lib.rs", "mod pure; mod other;"),
        ("src/pure.rs", "use std::time::{self, Duration};\nfn f() {\n    time::Instant::now();\n}"),
        ("src/other.rs", "fn f() {\n    aya_obj::load();\n}"),
    ]);
    let (files, foreign) = (tree.files(), tree.foreign());
    let never = Never { package: "", folder: "pure", paths: &["std::time::Ins*"], why: "no clock" };
    assert_eq!(
        layers::never(&files, &foreign, &never),
        ["src/pure.rs:3: names std::time::Instant::now; pure must not: no clock"]
    );
    let only = Only { package: "", krate: "aya*", folders: &["pure"], why: "maps" };
    assert_eq!(
        layers::only(&files, &foreign, &only),
        ["src/other.rs:2: names aya_obj::load; only pure may: maps"]
    );
}

#[test]
fn folders_that_are_apart_meet_in_a_third_one() {
    let tree = tree(&[
        ("src/lib.rs", "mod plane; mod change;"),
        ("src/plane/mod.rs", "pub mod left; pub mod right; mod ground; pub use ground::G; pub use left::L;"),
        ("src/plane/ground.rs", "pub struct G;"),
        ("src/plane/left/mod.rs", "mod part; pub struct L; use crate::plane::G;"),
        ("src/plane/left/part.rs", "use crate::plane::right::R;"),
        ("src/plane/right.rs", "pub struct R;\nuse super::{G, L};"),
        ("src/change.rs", "use crate::plane::{left, right};"),
    ]);
    let folders = &["plane/left", "plane/right"];
    let apart = Apart { package: "", folders, why: "they are two" };
    assert_eq!(
        layers::apart(&tree.files(), &tree.imports(), &apart),
        [
            "src/plane/left/part.rs:1: imports crate::plane::right::R (src/plane/right.rs); plane/left must not: they are two",
            "src/plane/right.rs:2: imports super::L (src/plane/left/mod.rs); plane/right must not: they are two",
        ]
    );
}

#[test]
fn a_package_depends_on_what_its_rule_names() {
    let rules = [Uses { name: "top", may_use: &["ground"] }, Uses { name: "ground", may_use: &[] }];
    let of = |name: &str, dependency: &str| layers::packages(name, &[dependency.to_owned()], &rules);
    assert_eq!(of("top", "ground"), [""; 0]);
    assert_eq!(of("ground", "top"), ["ground: depends on top; it may depend on nothing of the others"]);
    assert_eq!(of("new", "top"), ["new: this package is in no rule"]);
}

#[test]
fn a_layer_may_use_itself_and_the_ones_below() {
    let layers = Folders::Layers(&[&["top"], &["left", "right"], &["ground"]]);
    assert_eq!(layers.below("top"), Some(vec!["left", "right", "ground"]));
    assert_eq!(layers.below("right"), Some(vec!["left", "ground"]));
    assert_eq!(layers.below("ground"), Some(vec![]));
    assert_eq!(layers.below("stray"), None);
}
