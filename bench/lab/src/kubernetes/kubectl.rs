//! kubectl, as a user would call it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// kubectl with a cluster's configuration.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
}

impl Kubectl {
    pub(super) const fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Returns the path of the program.
    #[must_use]
    pub const fn program(&self) -> &PathBuf {
        &self.program
    }

    /// Runs kubectl and returns what it prints.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with_input(arguments, "")
    }

    /// Runs kubectl with this text on its standard input.
    pub fn run_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("can't run {}", self.program.display()))?;
        child.stdin.take().context("kubectl has no input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            bail!("`kubectl {}`: {}", arguments.join(" "), reason.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs kubectl and parses the JSON that it prints.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--output", "json"]).collect();
        Ok(serde_json::from_str(&self.run(&arguments)?)?)
    }

    /// Applies objects.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        self.run_with_input(&["apply", "--server-side", "--filename", "-"], &list(objects)).map(drop)
    }

    /// Creates objects, which takes half as long as applying them.
    pub fn create(&self, objects: &[Value]) -> Result<()> {
        self.run_with_input(&["create", "--filename", "-"], &list(objects)).map(drop)
    }
}

fn list(objects: &[Value]) -> String {
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// Returns the value at a JSON pointer, and null where there is none.
#[must_use]
pub fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}
