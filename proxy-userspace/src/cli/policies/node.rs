//! The pods of this node as the pod firewall knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;

use super::pods::{PodArgs, PolicyRow};
use crate::cli::error::CliError;
use crate::cli::output::{Column, Group, List, Row, some_of};
use crate::cli::place::Place;
use crate::cli::pod_devices::closed;
use crate::dataplane::ebpf::firewall::{DeviceView, FirewallView, PinnedFirewall, PodOnDevice, PolicyNames};
use crate::explain::CLOSED_BY_NFTABLES;
use crate::node::device_name;
use crate::policy::Direction;

/// A device with the firewall, as in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct DeviceRow {
    /// Empty if the pod is not known yet.
    namespace: String,
    /// Empty if the pod is not known yet.
    name: String,
    /// Whether the pod behind the device is known.
    known: bool,
    /// Index of the device.
    device: u32,
    /// Name of the device.
    device_name: String,
    addresses: Vec<IpAddr>,
    /// `isolated` or `open`; `closed` if the pod is not known yet and the cluster has policies; `closed_by_nftables` if no agent
    /// has looked at the device; `unguarded` if it has no program for this direction.
    ingress: &'static str,
    /// As `ingress`.
    egress: &'static str,
    policies: Vec<PolicyRow>,
    /// Further policies, whose names had no room in the map.
    policies_left_out: u32,
}

/// Returns the pods and devices of this node.
pub fn list(args: &PodArgs, place: &Place, is_wide: bool) -> Result<List, CliError> {
    let Some(firewall) = PinnedFirewall::find(&place.bpffs_path)? else {
        return Err(CliError::NoFirewall { path: place.bpffs_path.display().to_string() });
    };
    let view = firewall.view()?;
    let closed = if view.is_open_to_unknown { BTreeMap::new() } else { closed() };
    rows(args, &view, &closed, device_name, is_wide)
}

fn rows(
    args: &PodArgs,
    view: &FirewallView,
    closed: &BTreeMap<u32, String>,
    device_name: impl Fn(u32) -> Option<String>,
    is_wide: bool,
) -> Result<List, CliError> {
    // No packet comes from a device that is gone. An agent removes its entry.
    let row = |one: &DeviceView| {
        Some(if closed.contains_key(&one.device) {
            DeviceRow::new(one, device_name(one.device)?, |_| CLOSED_BY_NFTABLES)
        } else {
            DeviceRow::of(one, device_name(one.device)?, view.is_open_to_unknown)
        })
    };
    let mut rows: Vec<DeviceRow> = view.devices.iter().filter_map(row).collect();
    let seen: BTreeSet<u32> = view.devices.iter().map(|one| one.device).collect();
    for (device, name) in closed.iter().filter(|(device, _)| !seen.contains(device)) {
        let one = DeviceView { device: *device, pod: None, guarded: BTreeSet::new() };
        rows.push(DeviceRow::new(&one, name.clone(), |_| CLOSED_BY_NFTABLES));
    }
    rows.retain(|row| args.is_all() || row.known && args.names(&row.namespace, &row.name));
    if let (Some(pod), []) = (args.pod(), rows.as_slice()) {
        return Err(CliError::NotFound(format!("no pod of this node matches \"{pod}\"")));
    }
    rows.sort_by_cached_key(|row| (!row.known, row.namespace.clone(), row.name.clone(), row.device));
    Ok(List::new("FirewallPodList", vec![Group::of_node(&rows, is_wide)?]))
}

impl DeviceRow {
    fn of(view: &DeviceView, device_name: String, is_open_to_unknown: bool) -> Self {
        let state = |direction: Direction| {
            let is_isolated = view.pod.as_ref().map(|pod| pod.isolated.contains(&direction));
            match (view.guarded.contains(&direction), is_isolated) {
                (false, _) => "unguarded",
                (true, Some(true)) => "isolated",
                (true, Some(false)) => "open",
                (true, None) if is_open_to_unknown => "open",
                (true, None) => "closed",
            }
        };
        Self::new(view, device_name, state)
    }

    fn new(view: &DeviceView, device_name: String, state: impl Fn(Direction) -> &'static str) -> Self {
        let (ingress, egress) = (state(Direction::Ingress), state(Direction::Egress));
        let known = view.pod.is_some();
        let (names, addresses) = match view.pod.clone() {
            Some(PodOnDevice { names, addresses, .. }) => (names, addresses),
            None => Default::default(),
        };
        let policy = |policy: PolicyNames| PolicyRow::new(policy.name, &policy.directions);
        Self {
            namespace: names.namespace,
            name: names.name,
            known,
            device: view.device,
            device_name,
            addresses,
            ingress,
            egress,
            policies: names.policies.into_iter().map(policy).collect(),
            policies_left_out: names.left_out,
        }
    }

    /// Returns the names of the policies, and the number of those without one.
    fn policies(&self, is_wide: bool) -> String {
        let names: Vec<&str> = self.policies.iter().map(|policy| policy.name.as_str()).collect();
        match (is_wide, self.policies_left_out) {
            (false, 0) => some_of(&names),
            (true, 0) => names.join(","),
            (_, count) => format!("{},+{count}", names.join(",")),
        }
    }
}

impl Row for DeviceRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("NAMESPACE", "namespace"),
        Column::new("POD", "name"),
        Column::new("DEVICE", "device_name").spare(1),
        Column::new("INGRESS", "ingress"),
        Column::new("EGRESS", "egress"),
        Column::new("POLICIES", "policies"),
        Column::wide("ADDRESSES", "addresses"),
    ];

    fn cells(&self, is_wide: bool) -> Vec<String> {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        vec![
            self.namespace.clone(),
            if self.known { self.name.clone() } else { "unknown".to_owned() },
            self.device_name.clone(),
            self.ingress.to_owned(),
            self.egress.to_owned(),
            self.policies(is_wide),
            addresses.join(","),
        ]
    }

    fn name(&self) -> String {
        if self.known { format!("{}/{}", self.namespace, self.name) } else { self.device_name.clone() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::argument::parsed;
    use crate::cli::output::{Format, Style};
    use crate::cli::policies::PoliciesArgs;
    use crate::dataplane::ebpf::firewall::PodNames;

    const BOTH: [Direction; 2] = Direction::ALL;

    fn pod(name: &str, isolated: &[Direction], policies: &[(&str, &[Direction])]) -> PodOnDevice {
        let policies = policies.iter().map(|(name, directions)| PolicyNames {
            name: (*name).to_owned(),
            directions: directions.to_vec(),
            profiles: BTreeMap::new(),
        });
        let (namespace, name) = name.split_once('/').unwrap();
        PodOnDevice {
            names: PodNames {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                policies: policies.collect(),
                left_out: 0,
            },
            addresses: vec!["10.1.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            isolated: isolated.iter().copied().collect(),
        }
    }

    fn device(device: u32, pod: Option<PodOnDevice>, guarded: &[Direction]) -> DeviceView {
        DeviceView { device, pod, guarded: guarded.iter().copied().collect::<BTreeSet<_>>() }
    }

    fn view() -> FirewallView {
        let [ingress, egress] = BOTH;
        let web = pod("shop/web", &BOTH, &[("closed", &[ingress]), ("out", &[egress])]);
        let mut crowded = pod("shop/crowded", &[ingress], &[("a", &[ingress])]);
        crowded.names.left_out = 7;
        FirewallView {
            devices: vec![
                device(3, None, &BOTH),
                device(4, Some(web), &BOTH),
                device(5, Some(pod("data/db", &[], &[])), &[ingress]),
                device(6, Some(crowded), &BOTH),
                device(99, Some(pod("shop/gone", &[], &[])), &BOTH),
            ],
            is_open_to_unknown: false,
        }
    }

    fn render(arguments: &str, view: &FirewallView, format: &Format) -> Result<String, String> {
        render_with(arguments, view, &BTreeMap::new(), format)
    }

    fn render_with(
        arguments: &str,
        view: &FirewallView,
        closed: &BTreeMap<u32, String>,
        format: &Format,
    ) -> Result<String, String> {
        let args: PoliciesArgs = parsed(arguments);
        let name = |index: u32| (index < 99).then(|| format!("veth{index}"));
        let list = rows(&args.pods, view, closed, name, *format == Format::Wide)
            .map_err(|error| error.to_string())?;
        let node = || "node-a".to_owned();
        let style = Style { format, no_headers: false, width: None, node: &node };
        Ok(list.render(&style).unwrap())
    }

    #[test]
    fn devices_are_listed_with_their_pods_and_what_is_in_force() {
        assert_eq!(
            render("", &view(), &Format::Wide).unwrap(),
            "NAMESPACE  POD      DEVICE  INGRESS   EGRESS     POLICIES    ADDRESSES\n\
             data       db       veth5   open      unguarded  -           10.1.0.1,fd00::1\n\
             shop       crowded  veth6   isolated  open       a,+7        10.1.0.1,fd00::1\n\
             shop       web      veth4   isolated  isolated   closed,out  10.1.0.1,fd00::1\n\
             -          unknown  veth3   closed    closed     -           -\n"
        );
        let open = FirewallView { is_open_to_unknown: true, ..view() };
        let text = render("", &open, &Format::Table).unwrap();
        assert!(text.contains("unknown  veth3   open      open"), "{text}");
        let json: Value = serde_json::from_str(&render("web", &view(), &Format::Json).unwrap()).unwrap();
        assert_eq!(json["kind"], "FirewallPodList");
        assert_eq!(
            json["items"],
            json!([{
                "namespace": "shop", "name": "web", "known": true, "device": 4, "device_name": "veth4",
                "addresses": ["10.1.0.1", "fd00::1"], "ingress": "isolated", "egress": "isolated",
                "policies": [
                    {"name": "closed", "directions": ["ingress"]}, {"name": "out", "directions": ["egress"]},
                ],
                "policies_left_out": 0,
            }])
        );
    }

    #[test]
    fn a_device_that_no_agent_has_looked_at_is_shown_as_closed_by_nftables() {
        let closed = [(4, "veth4".to_owned()), (7, "veth7".to_owned())].into();
        let text = render_with("", &view(), &closed, &Format::Table).unwrap();
        for line in [
            "shop       web      veth4   closed_by_nftables  closed_by_nftables  closed,out",
            "-          unknown  veth3   closed              closed              -",
            "-          unknown  veth7   closed_by_nftables  closed_by_nftables  -",
        ] {
            assert!(text.lines().any(|one| one == line), "{text}");
        }
        let json: Value =
            serde_json::from_str(&render_with("", &view(), &closed, &Format::Json).unwrap()).unwrap();
        let new = &json["items"][4];
        assert_eq!((&new["device_name"], &new["known"]), (&json!("veth7"), &json!(false)));
        assert_eq!(
            (&new["ingress"], &new["egress"]),
            (&json!("closed_by_nftables"), &json!("closed_by_nftables"))
        );
    }

    #[test]
    fn pods_are_chosen_by_name_and_namespace() {
        for (arguments, expected) in [
            ("", &["data/db", "shop/crowded", "shop/web", "veth3"][..]),
            ("web", &["shop/web"]),
            ("data/db", &["data/db"]),
            ("-n shop", &["shop/crowded", "shop/web"]),
            ("-n nothing", &[]),
        ] {
            let names = render(arguments, &view(), &Format::Name).unwrap();
            assert_eq!(names.lines().collect::<Vec<_>>(), expected, "{arguments}");
        }
        assert_eq!(
            render("data/web", &view(), &Format::Name),
            Err("no pod of this node matches \"data/web\"".to_owned())
        );
    }

    #[test]
    fn a_node_without_the_firewall_is_told_apart_by_one_line_and_its_status() {
        let args: PoliciesArgs = parsed("--bpffs-path /nonexistent");
        let error = list(&args.pods, &args.place, false).unwrap_err();
        assert_eq!(error.status(), crate::cli::ExitStatus::NoDataplane);
        assert_eq!(
            error.to_string(),
            "the pod firewall is off at /nonexistent: no NetworkPolicy is in force on this node; agents with \
             --network-policy on carry them out"
        );
    }
}
