//! The reference pages in docs/reference and the files in manifests/monitoring, made from tables, and the links of
//! all documents.
//!
//! `cargo xtask docs` writes the pages (MILLRACE_WRITE=1). Otherwise a page that differs from the code fails.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod complete;
mod flags;
mod links;
mod markdown;
mod monitoring;
mod pages;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the path of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the path of a reference page.
fn page(name: &str) -> PathBuf {
    root().join("docs/reference").join(name)
}

/// Returns the text of a reference page in the repository.
fn text_of(name: &str) -> String {
    fs::read_to_string(page(name)).unwrap_or_else(|error| panic!("{name}: {error}; run: cargo xtask docs"))
}
