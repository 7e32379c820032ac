//! The agent and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace::cli::run().into()
}
