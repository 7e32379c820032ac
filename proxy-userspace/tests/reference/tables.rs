//! The pages that are tables.

use std::fmt::Write as _;

use millrace::check::{self, Readiness, Turn};
use millrace::cli::ExitStatus;
use millrace::config::file::{API_VERSION, FIELDS, Field, KIND};
use millrace::metrics::{CATALOGUE, what_to_do};
use millrace::model::ANNOTATIONS;
use proxy_common::verdict::{Program, Reason};

use crate::markdown::{code, table, with_code};

/// configuration.md.
pub fn configuration() -> String {
    let rows = FIELDS.iter().map(|field| vec![code(field.path), flags(field), effect(field)]);
    format!(
        "\
# Configuration file

`--config FILE` takes the `config.conf` of a kube-proxy: a `{KIND}` of `{API_VERSION}`, as YAML or JSON.

- A [flag](flags.md) wins over the file. kube-proxy does it the other way round and ignores most flags beside a file.
- A field that does not exist is an error, for which kube-proxy only warns.
- Each value without effect is named in one warning. Zero values and kube-proxy's own defaults ask for nothing and are not.
- Of the sections `iptables`, `nftables` and `ipvs` only that of the chosen mode counts, as in kube-proxy. An empty `mode` has
  the section `iptables`.
- When the file changes, the agent ends with status 0, so that its DaemonSet starts it again. A changed ConfigMap counts. A
  changed file with an error is named in the log, and the agent goes on with the former content.

\"As the flag\" in the last column means: same values, same effect.

{}",
        table(&["Field", "Flag", "Effect"], rows)
    )
}

fn flags(field: &Field) -> String {
    let links = field.flags.iter().map(|flag| format!("[`{flag}`](flags.md#{flag})"));
    links.collect::<Vec<_>>().join(", ")
}

fn effect(field: &Field) -> String {
    let mut sentences = Vec::new();
    match field.flags.len() {
        0 => {}
        1 => sentences.push("As the flag.".to_owned()),
        _ => sentences.push("As the flags.".to_owned()),
    }
    if !field.effect.is_empty() {
        sentences.push(field.effect.to_owned());
    }
    if let Some(unheeded) = field.unheeded {
        let begin = if sentences.is_empty() { "No effect" } else { "Otherwise no effect" };
        let defaults: Vec<String> = unheeded.upstream.iter().map(|default| code(default)).collect();
        let unless = if defaults.is_empty() {
            String::new()
        } else {
            format!(", except for {}", defaults.join(" and "))
        };
        sentences.push(format!("{begin}, with a warning{unless}: {}.", with_code(unheeded.why)));
    }
    sentences.join(" ")
}

/// annotations.md.
pub fn annotations() -> String {
    let rows = ANNOTATIONS.iter().map(|annotation| {
        let flag = annotation.flag;
        vec![
            code(annotation.name),
            annotation.values.replace(" or ", ", "),
            format!("[`{flag}`](flags.md#{flag})"),
            annotation.effect.to_owned(),
        ]
    });
    format!(
        "\
# Annotations

Annotations of a Service decide for this Service; the flag decides for Services without the annotation. A value that is not
accepted leaves the flag's. It is named in a Warning Event on the Service and in the log, as is an unknown annotation that begins
with `millrace.dev/`. The former prefix `millrace/` is still taken, with a Warning. Where a Service has both names, that with
`millrace.dev/` counts.

{}",
        table(&["Annotation", "Values", "Flag", "Effect"], rows)
    )
}

/// checks.md.
pub fn checks() -> String {
    let rows = check::ALL.iter().map(|one| {
        let (reason, readiness) = match one.turn {
            Turn::Asked => (String::new(), String::new()),
            Turn::EachMinute { reason, readiness } => {
                (code(reason), if readiness == Readiness::Gates { "yes" } else { "no" }.to_owned())
            }
        };
        vec![code(one.id), format!("{}.", with_code(one.about)), reason, readiness]
    });
    format!(
        "\
# Checks

`millrace check` runs all of these, and `millrace check NAME...` some: a name, or the first part of names, such as `sysctl`.
[The guide](../operations.md#check-a-node) explains the results.

A running agent repeats those with a reason each minute. A warning or failure becomes an Event on the Node with this reason, a
line of the log, and a sample of [`millrace_check_findings`](metrics.md). \"Readiness\" says whether a failure makes `/readyz`
fail, by its condition `node-checks`.

{}",
        table(&["Check", "Looks at", "Reason", "Readiness"], rows)
    )
}

/// metrics.md.
pub fn metrics() -> String {
    let section = |prefix: &str| {
        let metrics = CATALOGUE.iter().filter(|metric| metric.base().starts_with(prefix));
        let rows = metrics.map(|metric| {
            let labels = metric.labels.iter().map(|label| code(label)).collect::<Vec<_>>().join(", ");
            let unit = metric.unit().unwrap_or_default().to_owned();
            vec![
                code(&metric.name()),
                metric.kind.name().to_owned(),
                unit,
                labels,
                format!("{}.", metric.help),
            ]
        });
        table(&["Name", "Type", "Unit", "Labels", "Meaning"], rows)
    };
    format!(
        "\
# Metrics

The agent serves them at `/metrics` of [`--metrics-bind-address`](flags.md#--metrics-bind-address), as OpenMetrics 1.0 or in
Prometheus' text format 0.0.4, as the client asks. A metric without samples is absent until it has one.

## Of Millrace

Packets and bytes are read from the pinned maps: they go on while no agent runs, and are not reset by its restart. The values of the
labels `program` and `reason` are on the page of [reasons](reasons.md). A pair of them that never occurs is absent while it is zero.

{}
## Of kube-proxy

These have kube-proxy's names, labels and buckets. One sync serves both address families, and is counted for each.

{}
## Of the API client

{}
## Of the process

{}",
        section("millrace_"),
        section("kubeproxy_"),
        section("rest_client_"),
        section("process_")
    )
}

/// reasons.md.
pub fn reasons() -> String {
    let section = |is_drop: bool| {
        let reasons = Reason::ALL.iter().filter(|reason| reason.is_drop() == is_drop);
        let rows = reasons.map(|reason| {
            let programs = Program::ALL.iter().filter(|program| program.can(*reason));
            vec![
                (*reason as u8).to_string(),
                code(reason.name()),
                reason.meaning().to_owned(),
                programs.map(|program| code(program.name())).collect::<Vec<_>>().join(", "),
                what_to_do(*reason).to_owned(),
            ]
        });
        table(&["No.", "Name", "Meaning", "Programs", "What to do"], rows)
    };
    let mut text = format!(
        "\
# Reasons

Each packet that a program sees is counted once by that program, under one reason. `millrace counters` shows them; the
[metrics](metrics.md) `millrace_packets_total` and `millrace_dropped_packets_total` have program and reason as labels. A packet that
XDP passes to the stack is counted by XDP and again by TC. Numbers are those of the map COUNTERS.

The socket hooks (`cg_*`) count connections and datagrams of unconnected sockets instead of packets.

## Not dropped

{}
## Dropped

",
        section(false)
    );
    write!(text, "{}", section(true)).unwrap();
    text
}

/// exit-statuses.md.
pub fn exit_statuses() -> String {
    let rows =
        ExitStatus::ALL.iter().map(|status| vec![status.number().to_string(), status.meaning().to_owned()]);
    format!(
        "# Exit statuses\n\nAll commands of `millrace` end with one of these.\n\n{}",
        table(&["Status", "Meaning"], rows)
    )
}
