//! Set-up, build, tests, lints and virtual machines of the workspace: `cargo xtask --help`.

mod apt;
mod bench;
mod build;
mod cluster;
mod command;
mod coverage;
mod dashboard;
mod docs;
mod former;
mod image;
mod lint;
mod manifests;
mod object_check;
mod run;
mod setup;
mod slim;
mod soak;
mod stack_check;
mod test;
mod toolchain;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use workspace::Workspace;

/// Everything a developer of Millrace runs.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the missing needs of building, running and testing
    Setup(setup::Args),
    /// Build the BPF object, check that it can't panic, then build the agent, the test bed and the
    /// bench
    Build,
    /// Bring the test bed up and show every backend's view of real traffic; arguments go to the
    /// test bed
    Run(run::Args),
    /// Play faults on the test bed's running traffic and compare the losses with the allowed ones;
    /// arguments go to the test bed
    Drill(run::Args),
    /// Run traffic for an hour while Services, endpoints, nodes, settings and agents change, and draw
    /// what the agents hold
    Soak(soak::Args),
    /// Build container images without Docker: a static program in an archive that containerd, Docker
    /// and skopeo take
    Image(image::Args),
    /// Run all layers of tests, or the named ones; the last line counts passed, failed and skipped tests
    Test(test::Args),
    /// Build what layers of tests need, such as the API server, and run none of their tests
    Prepare(test::PrepareArgs),
    /// Run the checks that only read the code
    Lint,
    /// Show which lines and branches of the BPF programs the packet tests reach
    Coverage(coverage::Args),
    /// Write the reference pages in docs/reference, the dashboard and the alerts from the code
    Docs,
    /// Draw the dashboard from samples of the agents of `cargo xtask run`
    Dashboard(dashboard::Args),
    /// Load every BPF program on this machine's kernel and on others, and compare with the
    /// instruction budget
    Vm(vm::Args),
    /// Start, show or end a real Kubernetes cluster on this machine; arguments go to the test bed
    Cluster(cluster::Args),
    /// Build in release and run one of the benchmarks; arguments go to the bench
    Bench(bench::Args),
}

fn main() -> ExitCode {
    match Workspace::locate().and_then(|workspace| perform(&workspace, &Cli::parse().task)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(workspace: &Workspace, task: &Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::Setup(args) => setup::setup(workspace, args).map(|()| {
            println!("everything is installed");
            ExitCode::SUCCESS
        }),
        Task::Build => {
            setup::ensure(workspace, &[setup::Need::Build])?;
            build::everything(workspace).map(|()| ExitCode::SUCCESS)
        }
        Task::Run(args) => run::run(workspace, args),
        Task::Drill(args) => run::drill(workspace, args),
        Task::Soak(args) => soak::soak(workspace, args),
        Task::Image(args) => image::image(workspace, args).map(|()| ExitCode::SUCCESS),
        Task::Test(args) => test::test(workspace, args),
        Task::Prepare(args) => test::prepare(workspace, args).map(|()| ExitCode::SUCCESS),
        Task::Lint => lint::lint(workspace),
        Task::Coverage(args) => coverage::coverage(workspace, args),
        Task::Docs => docs::docs(workspace).map(|()| ExitCode::SUCCESS),
        Task::Dashboard(args) => dashboard::dashboard(workspace, args).map(|()| ExitCode::SUCCESS),
        Task::Vm(args) => vm::vm(workspace, args),
        Task::Cluster(args) => cluster::cluster(workspace, args),
        Task::Bench(args) => bench::bench(workspace, args),
    }
}
