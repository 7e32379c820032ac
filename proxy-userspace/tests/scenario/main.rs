//! Manifests in, desired state out, as text files for review.
//!
//! A case is a file in `cases/`: a first line of prose, `flags:` if the agent has any, then steps
//! that each begin with `--- `. [`script`] describes them.
//!
//! `MILLRACE_BLESS=1 cargo test --test scenario` writes the actual results into the cases. Read the
//! diff before you commit it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod dump;
mod maps;
mod script;
mod world;

use std::path::{Path, PathBuf};

use script::Script;
use similar::TextDiff;
use world::World;

#[test]
fn every_case_ends_in_the_state_that_is_written_down() {
    let bless = std::env::var_os("MILLRACE_BLESS").is_some_and(|value| value == "1");
    let cases = cases();
    assert!(!cases.is_empty());
    let failed: Vec<String> = cases.iter().filter_map(|case| run(case, bless)).collect();
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

/// Plays a case. Returns the difference between expected and actual text.
fn run(case: &Path, bless: bool) -> Option<String> {
    let written = std::fs::read_to_string(case).unwrap();
    let mut script = Script::parse(&written).unwrap_or_else(|error| panic!("{}: {error}", case.display()));
    let mut world = World::new(&script.flags);
    for step in &mut script.steps {
        world.play(step);
    }
    let played = script.to_string();
    if played == written {
        return None;
    }
    if bless {
        std::fs::write(case, played).unwrap();
        return None;
    }
    let diff = TextDiff::from_lines(&written, &played);
    Some(diff.unified_diff().header(&case.display().to_string(), "what came out").to_string())
}

fn cases() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenario/cases");
    let mut cases: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}
