//! `cargo xtask prepare`: what layers need, without their tests.

use anyhow::Result;

use super::layer::Layer;
use crate::build::{self, Warnings};
use crate::workspace::Workspace;
use crate::{image, manifests, setup, vm};

/// Arguments of `cargo xtask prepare`.
#[derive(clap::Args)]
pub struct PrepareArgs {
    /// Layer to prepare; may be given several times
    #[arg(long, value_enum, value_name = "NAME", required = true)]
    layer: Vec<Layer>,
}

/// Builds what layers need, and runs none of their tests.
pub fn prepare(workspace: &Workspace, args: &PrepareArgs) -> Result<()> {
    for layer in &args.layer {
        setup::ensure(workspace, layer.needs())?;
        match layer {
            Layer::Lint => {
                setup::ensure(workspace, &[setup::Need::Linters])?;
                build::bpf_object(workspace, Warnings::Allowed)?;
                image::check_source(workspace)?;
            }
            Layer::Manifests => manifests::prepare(workspace)?,
            Layer::Apiserver => {
                setup::ensure_apiserver(workspace)?;
                setup::ensure_kube_proxy(workspace)?;
                setup::ensure_policy_peer(workspace)?;
            }
            Layer::Trace => drop(build::trace_object(workspace)?),
            Layer::Bench => build::bench_object(workspace)?,
            Layer::Vm => {
                build::bpf_object(workspace, Warnings::Allowed)?;
                vm::prepare(workspace, &vm::Target::ALL)?;
            }
            _ => build::bpf_object(workspace, Warnings::Allowed)?,
        }
    }
    Ok(())
}
