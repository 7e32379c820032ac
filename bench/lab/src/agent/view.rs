//! Reads the command line's JSON.

use anyhow::{Context, Result};
use millrace_views::{AttachedView, BackendView, CounterView, ServiceView, WayView};
use serde::Deserialize;
use serde_json::Value;

/// Returns the items of a list.
pub(super) fn items(json: &Value) -> Result<&Vec<Value>> {
    json.get("items").and_then(Value::as_array).with_context(|| format!("no list with items: {json}"))
}

/// Whether this is the Cluster list of the service `name` of one family.
pub(super) fn is_cluster_list(service: &ServiceView, name: &str, v4: bool) -> bool {
    service.name == name && service.list == "Cluster" && (service.family == "IPv4") == v4
}

pub(super) fn services(json: &Value) -> Result<Vec<ServiceView>> {
    let lists = items(json)?.iter().filter_map(|item| item.get("lists"));
    let lists: Result<Vec<Vec<ServiceView>>, _> = lists.map(Vec::deserialize).collect();
    Ok(lists.context("not what `millrace services` is to print")?.concat())
}

pub(super) fn backends(json: &Value) -> Result<Vec<BackendView>> {
    items(json)?
        .iter()
        .map(BackendView::deserialize)
        .collect::<Result<_, _>>()
        .context("not what `millrace backends` is to print")
}

pub(super) fn attached(json: &Value) -> Result<Vec<AttachedView>> {
    let attached = json.get("attached").context("the status has no `attached`")?;
    Vec::deserialize(attached).context("unexpected output of `millrace status`")
}

pub(super) fn ways(json: &Value) -> Result<Vec<WayView>> {
    let ways = json.get("ways").context("the status has no `ways`")?;
    Vec::deserialize(ways).context("unexpected output of `millrace status`")
}

pub(super) fn counters(json: &Value) -> Result<Vec<CounterView>> {
    let counters = json.get("counters").context("the status has no `counters`")?;
    Vec::deserialize(counters).context("unexpected output of `millrace status`")
}
