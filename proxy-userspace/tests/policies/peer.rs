//! The other implementation's program.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Serialize;
use serde_json::json;

use crate::clusters::world::World;

/// The variable that names the program.
const PROGRAM: &str = "MILLRACE_POLICY_PEER";

/// The first packet of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct Question {
    /// The source's address.
    pub from: String,
    /// The destination's address.
    pub to: String,
    /// The protocol as the API writes it.
    pub protocol: &'static str,
    /// The destination port; 0 for ICMP.
    pub port: u16,
}

/// Whether the policies of each end allow it: egress, ingress. `None` at an end that is no pod.
pub type Answer = [Option<bool>; 2];

/// The program, which runs until it is dropped.
pub struct Peer {
    program: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the program.
    pub fn start() -> Self {
        let path = std::env::var_os(PROGRAM).unwrap_or_else(|| {
            panic!("{PROGRAM} names no program; `cargo xtask test --layer apiserver` builds it")
        });
        let mut program = Command::new(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = program.stdin.take().unwrap();
        let output = BufReader::new(program.stdout.take().unwrap());
        Self { program, input, output }
    }

    /// Asks questions about a cluster.
    pub fn judge(&mut self, world: &World, questions: &[Question]) -> Vec<Answer> {
        let World { namespaces, pods, policies } = world;
        let line =
            json!({"namespaces": namespaces, "pods": pods, "policies": policies, "questions": questions});
        // Text is written at once: a value would be written bit by bit.
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answers = String::new();
        self.output.read_line(&mut answers).unwrap();
        serde_json::from_str(&answers).unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
