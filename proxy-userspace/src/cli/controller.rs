//! `millrace controller`.

use std::io;

use tokio::sync::watch;
use tracing::{error, info};

use super::error::CliError;
use super::{log, runtime};
use crate::agent::stop_signal;
use crate::config::ControllerArgs;
use crate::controller::plan::Classes;
use crate::controller::{self, Settings};

/// Runs the controller until a signal.
pub fn run(args: &ControllerArgs) -> Result<(), CliError> {
    let settings = settings(args);
    let level = log::to_stderr(args.log_format);
    let runtime = runtime()?;
    runtime.spawn(level.follow_signal());
    runtime.block_on(async {
        let (stop, stopped) = watch::channel(());
        tokio::spawn(async move {
            match stop_signal().await {
                Ok(name) => info!(signal = name, "the controller stops; the addresses stay"),
                Err(error) => error!(%error, "the controller stops, because it can't receive signals"),
            }
            drop(stop);
        });
        Ok(controller::run(settings, stopped).await?)
    })
}

fn settings(args: &ControllerArgs) -> Settings {
    Settings {
        kubeconfig: args.kubeconfig.clone(),
        classes: Classes { name: args.service_lb_class.clone(), is_default: args.service_lb_default },
        service_proxy_name: args.service_proxy_name.clone(),
        lease_namespace: args.lease_namespace.clone(),
        bind_address: args.bind_address.0,
        identity: identity(),
    }
}

/// Returns a name that no other process has: the pod's, or the host's, and a random number.
fn identity() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let name = pod.unwrap_or_else(crate::config::this_node);
    let random = |path| -> io::Result<String> { Ok(std::fs::read_to_string(path)?.trim().to_owned()) };
    let random = random("/proc/sys/kernel/random/uuid").unwrap_or_else(|_| std::process::id().to_string());
    format!("{name}_{random}")
}
