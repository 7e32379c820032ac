//! What of a file has no effect here, each said once.

use serde_json::{Value, json};

use super::{KubeProxyConfiguration, Origin};

/// Something a person should know of the configuration, for the log once it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// What is done with a value that means something else here.
    Info(String),
    /// A value that has no effect.
    Warning(String),
}

impl Remark {
    /// Tells the log.
    pub fn log(&self) {
        match self {
            Self::Info(text) => tracing::info!("{text}"),
            Self::Warning(text) => tracing::warn!("{text}"),
        }
    }
}

const NO_MASQUERADE: &str = "nothing here is masqueraded by a mark";
const NO_LOGGING: &str = "the environment's RUST_LOG decides what is logged, as text";
const NO_WINDOWS: &str = "it is for Windows";

/// Fields we can't honour, with what kube-proxy takes where they are not set (saying that is asking for nothing), and why.
const WITHOUT_EFFECT: &[(&str, &[&str], &str)] = &[
    ("bindAddress", &["0.0.0.0", "::"], "the node's addresses are its Node object's"),
    ("bindAddressHardFail", &[], "an address that can't be bound is tried again"),
    ("clientConnection.acceptContentTypes", &["application/json"], "the API server is asked for JSON"),
    (
        "clientConnection.contentType",
        &["application/json", "application/vnd.kubernetes.protobuf"],
        "the API server is asked for JSON",
    ),
    ("clientConnection.qps", &["5.0"], "nothing but Events is written, and these have a limit of their own"),
    ("clientConnection.burst", &["10"], "nothing but Events is written, and these have a limit of their own"),
    ("enableProfiling", &[], "there is no profiling over HTTP"),
    ("logging.flushFrequency", &["5s", "5000000000"], NO_LOGGING),
    ("logging.format", &["text"], NO_LOGGING),
    ("logging.options.json.infoBufferSize", &["0"], NO_LOGGING),
    ("logging.options.json.splitStream", &[], NO_LOGGING),
    ("logging.options.text.infoBufferSize", &["0"], NO_LOGGING),
    ("logging.options.text.splitStream", &[], NO_LOGGING),
    ("logging.verbosity", &[], NO_LOGGING),
    ("logging.vmodule", &[], NO_LOGGING),
    ("oomScoreAdj", &["-999"], "set it where the agent is started; the data path needs no agent"),
    ("showHiddenMetricsForVersion", &[], "no metric is hidden"),
    ("windowsRunAsService", &[], NO_WINDOWS),
    ("winkernel.enableDSR", &[], "it is for Windows; --forwarding dsr is ours"),
    ("winkernel.forwardHealthCheckVip", &[], NO_WINDOWS),
    ("winkernel.networkName", &[], NO_WINDOWS),
    ("winkernel.rootHnsEndpointName", &[], NO_WINDOWS),
    ("winkernel.sourceVip", &[], NO_WINDOWS),
];

/// The same in the section of the mode the file chooses; kube-proxy passes over the other modes' sections, too.
const WITHOUT_EFFECT_IN_MODE: &[(&str, &[&str], &str)] = &[
    ("masqueradeBit", &["14"], NO_MASQUERADE),
    ("masqueradeAll", &[], NO_MASQUERADE),
    ("localhostNodePorts", &["true"], "NodePorts are not served on loopback addresses"),
    ("snatNodeInternalIP", &[], "the source is the one that the route to the other node prefers"),
];

/// What of `configuration` is set and has no effect; `section` is that of its mode.
pub(super) fn remarks(
    configuration: &KubeProxyConfiguration,
    section: Option<&str>,
    origin: Origin<'_>,
) -> Vec<Remark> {
    let value = serde_json::to_value(configuration).unwrap_or_default();
    let mut remarks = Vec::new();
    let mut judge = |path: &str, defaults: &[&str], why: &str| {
        let found = lookup(&value, path);
        let text = show(found);
        if !is_zero(found) && !defaults.contains(&text.as_str()) {
            let place = origin.at(path);
            remarks.push(Remark::Warning(format!("{place}: {text} has no effect: {why}")));
        }
    };
    for (path, defaults, why) in WITHOUT_EFFECT {
        judge(path, defaults, why);
    }
    if let Some(section) = section {
        for (field, defaults, why) in WITHOUT_EFFECT_IN_MODE {
            judge(&format!("{section}.{field}"), defaults, why);
        }
    }
    let gates = configuration.feature_gates.iter().map(|(gate, is_on)| {
        let place = origin.at(&format!("featureGates.{gate}"));
        Remark::Warning(format!("{place}: {is_on} has no effect: there are no feature gates"))
    });
    remarks.extend(gates);
    remarks
}

fn lookup<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(value, |value, name| value.get(name)).unwrap_or(&Value::Null)
}

/// As it could stand in a file.
fn show(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_zero(value: &Value) -> bool {
    value.is_null()
        || value.as_f64() == Some(0.0)
        || [json!(false), json!(""), json!("0s"), json!([])].contains(value)
}

/// The paths of all fields we can't honour.
#[cfg(test)]
pub(super) fn paths_without_effect() -> Vec<String> {
    let of_modes = WITHOUT_EFFECT_IN_MODE.iter().map(|(field, ..)| format!("iptables.{field}"));
    WITHOUT_EFFECT.iter().map(|(path, ..)| (*path).to_owned()).chain(of_modes).collect()
}
