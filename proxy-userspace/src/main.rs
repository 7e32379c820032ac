//! The agent and its command line.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    if millrace::kubectl::is_called(env::args_os().next().as_deref()) {
        return millrace::kubectl::run().into();
    }
    millrace::cli::run().into()
}
