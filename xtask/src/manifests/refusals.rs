//! Wrong values of the chart: each is refused, by one line that says what is wrong.

use anyhow::{Context, Result, bail};

use super::render::Renderer;

/// An address of the API server, where that is not the question.
const ADDRESS: &str = "k8sServiceHost=192.0.2.10";
const BESIDE: &str = "kubeProxyReplacement=false,serviceProxyName=millrace";

/// Values, and words of the only line about them.
const REFUSED: [(&[&str], &[&str]); 18] = [
    (&[], &["k8sServiceHost is missing", "--set k8sServiceHost=192.0.2.10", "kubeProxyReplacement=false"]),
    (&[ADDRESS, "mode=epbf"], &["/mode", "'auto', 'ebpf', 'ipvs', 'none'"]),
    (&[ADDRESS, "modus=ebpf"], &["additional properties 'modus' not allowed"]),
    (&[ADDRESS, "image.name=x"], &["/image", "additional properties 'name' not allowed"]),
    (&[ADDRESS, "clusterCIDR=10.244.0.0/16"], &["/clusterCIDR", "want array"]),
    (&[ADDRESS, "forwarding.dsrEncap={gre}"], &["/forwarding/dsrEncap/0", "'ipip', 'fou'"]),
    (&[ADDRESS, "snatPorts=61000-"], &["/snatPorts", "does not match pattern"]),
    (&[ADDRESS, "extraArgs={drain}"], &["/extraArgs/0", "does not match pattern"]),
    (&[ADDRESS, "hostPaths.bpffs=sys/fs/bpf"], &["/hostPaths/bpffs", "does not match pattern"]),
    (&["k8sServiceHost=https://192.0.2.10"], &["/k8sServiceHost", "does not match pattern"]),
    (
        &[ADDRESS, "metrics.podMonitor.enabled=true"],
        &["metrics.podMonitor.enabled", "loopback address", "metrics.bindAddress=0.0.0.0"],
    ),
    (
        &[ADDRESS, "metrics.podMonitor.interval=soon"],
        &["/metrics/podMonitor/interval", "does not match pattern"],
    ),
    (&["kubeProxyReplacement=false"], &["serviceProxyName is missing", "two proxies", "service-proxy-name"]),
    (&[BESIDE, "healthz.port=10256"], &["healthz.port", "10256 is kube-proxy's", "0 for 10266"]),
    (&[BESIDE, "metrics.port=10249"], &["metrics.port", "10249 is kube-proxy's", "0 for 10269"]),
    (
        &[ADDRESS, "networkPolicy.enabled=true", "forwarding.dsrDispatch=pod"],
        &["networkPolicy.enabled", "forwarding.dsrDispatch=pod", "set forwarding.dsrDispatch=node"],
    ),
    (
        &[ADDRESS, "networkPolicy.enabled=true", "mode=ipvs"],
        &["networkPolicy.enabled", "mode=ipvs", "set mode=auto"],
    ),
    (
        &["kubeProxyConfigMap=kube-proxy,config.clusterCIDR=10.244.0.0/16"],
        &["config and kubeProxyConfigMap are both set"],
    ),
];

pub fn check(renderer: &Renderer<'_>) -> Result<()> {
    REFUSED.iter().try_for_each(|(values, words)| {
        refused(renderer, values, words).with_context(|| format!("--set {}", values.join(" --set ")))
    })
}

fn refused(renderer: &Renderer<'_>, values: &[&str], words: &[&str]) -> Result<()> {
    let mut helm = renderer.helm_template();
    let output = helm.args(values.iter().flat_map(|value| ["--set", value])).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        bail!("helm takes it");
    }
    let lines: Vec<&str> = said.lines().filter(|line| is_about_values(line)).collect();
    let [line] = lines[..] else { bail!("helm says it in {} lines: {said}", lines.len()) };
    match words.iter().find(|word| !line.contains(*word)) {
        Some(missing) => bail!("{missing:?} is not in {line:?}"),
        None => Ok(()),
    }
}

/// Returns whether a line is more than helm's words around each error.
fn is_about_values(line: &str) -> bool {
    let around = ["Use --debug flag", "Error: values don't meet the specifications", "millrace:"];
    !line.trim().is_empty() && !around.iter().any(|words| line.starts_with(words))
}
