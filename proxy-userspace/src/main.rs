//! The agent and its command line.
fn main() {}
