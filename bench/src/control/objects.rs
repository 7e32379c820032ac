//! The measured cluster: its objects as the API server sends them.
//!
//! Each of a hundred Services has one port. Their kinds are:
//!
//! - 1 LoadBalancer with Direct Server Return
//! - 4 LoadBalancers, two of them with externalTrafficPolicy Local
//! - 5 NodePorts
//! - 90 with a ClusterIP only
//!
//! The endpoints are spread over a hundred nodes. This node is the first.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use millrace::model::Kind;
use serde::Serialize;

/// This node's name.
pub const NODE: &str = "ip-192-168-0-0.eu-central-1.compute.internal";
/// The number of nodes.
pub const NODES: u32 = 100;

/// The size of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Scale {
    /// The number of Services.
    pub services: u32,
    /// The number of endpoints of each Service.
    pub endpoints: u32,
    /// Whether each Service has both families, or only IPv4.
    pub dual_stack: bool,
}

/// The present state of an EndpointSlice: a Service's endpoints of one family.
#[derive(Clone, Debug)]
pub struct Slice {
    service: u32,
    is_v6: bool,
    version: u64,
    endpoints: Vec<Pod>,
}

#[derive(Clone, Copy, Debug)]
struct Pod {
    number: u32,
    ready: bool,
}

impl Scale {
    /// Parses a size such as `10000x10`.
    pub fn parse(text: &str) -> Result<Self> {
        let (services, endpoints) = text.split_once('x').context("takes SERVICESxENDPOINTS")?;
        let scale = Self { services: services.parse()?, endpoints: endpoints.parse()?, dual_stack: false };
        // The limits of the address ranges below, and of a slice.
        anyhow::ensure!((1..=100_000).contains(&scale.services), "takes 1 to 100000 services");
        anyhow::ensure!((1..=100).contains(&scale.endpoints), "takes 1 to 100 endpoints");
        Ok(scale)
    }

    /// Returns the texts of all objects of a kind, made one by one.
    pub fn objects(self, kind: Kind) -> impl Iterator<Item = String> {
        let total = match kind {
            Kind::Node => NODES,
            Kind::Service => self.services,
            Kind::EndpointSlice => self.slices(),
        };
        (0..total).map(move |number| match kind {
            Kind::Node => node(number),
            Kind::Service => self.service(number),
            Kind::EndpointSlice => self.slice(number).text(),
        })
    }

    /// Returns the number of EndpointSlices.
    pub const fn slices(self) -> u32 {
        if self.dual_stack { self.services * 2 } else { self.services }
    }

    /// Returns an EndpointSlice as the API server lists it.
    pub fn slice(self, number: u32) -> Slice {
        let service = number % self.services;
        let first = service * self.endpoints;
        let endpoints = (first..first + self.endpoints).map(|number| Pod { number, ready: true }).collect();
        Slice { service, is_v6: number >= self.services, version: 1, endpoints }
    }

    fn service(self, number: u32) -> String {
        let (name, namespace, uid) = (service_name(number), namespace(number), uid(1, number));
        let role = Role::of(number);
        let cluster_ip = service_address(number, false);
        let (ips, families, policy) = if self.dual_stack {
            let second = service_address(number, true);
            (format!(r#""{cluster_ip}","{second}""#), r#""IPv4","IPv6""#, "RequireDualStack")
        } else {
            (format!(r#""{cluster_ip}""#), r#""IPv4""#, "SingleStack")
        };
        let (annotation, spec, port, status) =
            (role.annotation(), role.spec(), role.port(number), role.status(number));
        one_line(&format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{uid}","resourceVersion":"{version}",
"creationTimestamp":"2026-03-04T05:06:07Z","labels":{{"app.kubernetes.io/instance":"{name}",
"app.kubernetes.io/managed-by":"Helm","app.kubernetes.io/name":"{name}","app.kubernetes.io/version":"1.27.3",
"helm.sh/chart":"backend-4.2.0"}},"annotations":{{{annotation}"meta.helm.sh/release-name":"{name}",
"meta.helm.sh/release-namespace":"{namespace}"}},"managedFields":[{{"manager":"helm","operation":"Update",
"apiVersion":"v1","time":"2026-03-04T05:06:07Z","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:annotations":
{{".":{{}},"f:meta.helm.sh/release-name":{{}},"f:meta.helm.sh/release-namespace":{{}}}},"f:labels":{{".":{{}},
"f:app.kubernetes.io/instance":{{}},"f:app.kubernetes.io/managed-by":{{}},"f:app.kubernetes.io/name":{{}},
"f:app.kubernetes.io/version":{{}},"f:helm.sh/chart":{{}}}}}},"f:spec":{{"f:internalTrafficPolicy":{{}},"f:ports":
{{".":{{}},"k:{{\"port\":80,\"protocol\":\"TCP\"}}":{{".":{{}},"f:name":{{}},"f:port":{{}},"f:protocol":{{}},
"f:targetPort":{{}}}}}},"f:selector":{{}},"f:sessionAffinity":{{}},"f:type":{{}}}}}}}}]}},
"spec":{{"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":"http"{port}}}],
"selector":{{"app.kubernetes.io/instance":"{name}","app.kubernetes.io/name":"{name}"}},"clusterIP":"{cluster_ip}",
"clusterIPs":[{ips}],{spec}"sessionAffinity":"None","ipFamilies":[{families}],"ipFamilyPolicy":"{policy}",
"internalTrafficPolicy":"Cluster"}},"status":{{"loadBalancer":{{{status}}}}}}}"#,
            version = 100_000 + number,
        ))
    }
}

impl Slice {
    /// Replaces one of its pods by a new one. `number` must differ from all before.
    pub fn replace(&mut self, index: usize, number: u32) {
        self.version += 1;
        if let Some(pod) = self.endpoints.get_mut(index) {
            *pod = Pod { number, ready: true };
        }
    }

    /// Makes one of its pods unready, or ready again.
    pub fn flip(&mut self, index: usize) {
        self.version += 1;
        if let Some(pod) = self.endpoints.get_mut(index) {
            pod.ready = !pod.ready;
        }
    }

    /// Returns the number of pods.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Returns the object as in a list, without its kind. A watch adds `kind` and `apiVersion`.
    pub fn text(&self) -> String {
        let (name, namespace) = (service_name(self.service), namespace(self.service));
        let service_uid = uid(1, self.service);
        let (family, suffix) = if self.is_v6 { ("IPv6", "v6xyz") } else { ("IPv4", "k7dqz") };
        let mut endpoints = String::new();
        for (index, pod) in self.endpoints.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a String can't fail.
            let _ = write!(endpoints, "{comma}{}", pod.text(self.is_v6, &name, namespace));
        }
        one_line(&format!(
            r#"{{"metadata":{{"name":"{name}-{suffix}","generateName":"{name}-","namespace":"{namespace}",
"uid":"{slice_uid}","resourceVersion":"{version}","generation":{generation},
"creationTimestamp":"2026-03-04T05:06:08Z","labels":{{"app.kubernetes.io/instance":"{name}",
"app.kubernetes.io/managed-by":"Helm","app.kubernetes.io/name":"{name}","app.kubernetes.io/version":"1.27.3",
"endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","helm.sh/chart":"backend-4.2.0",
"kubernetes.io/service-name":"{name}"}},"annotations":{{"endpoints.kubernetes.io/last-change-trigger-time":
"2026-11-21T17:20:44Z"}},"ownerReferences":[{{"apiVersion":"v1","kind":"Service","name":"{name}",
"uid":"{service_uid}","controller":true,"blockOwnerDeletion":true}}],"managedFields":[{{"manager":
"kube-controller-manager","operation":"Update","apiVersion":"discovery.k8s.io/v1","time":"2026-11-21T17:20:44Z",
"fieldsType":"FieldsV1","fieldsV1":{{"f:addressType":{{}},"f:endpoints":{{}},"f:metadata":{{"f:annotations":{{".":{{}},
"f:endpoints.kubernetes.io/last-change-trigger-time":{{}}}},"f:generateName":{{}},"f:labels":{{".":{{}},
"f:app.kubernetes.io/instance":{{}},"f:app.kubernetes.io/managed-by":{{}},"f:app.kubernetes.io/name":{{}},
"f:app.kubernetes.io/version":{{}},"f:endpointslice.kubernetes.io/managed-by":{{}},"f:helm.sh/chart":{{}},
"f:kubernetes.io/service-name":{{}}}},"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"{service_uid}\"}}":{{}}}}}},
"f:ports":{{}}}}}}]}},"addressType":"{family}","endpoints":[{endpoints}],
"ports":[{{"name":"http","protocol":"TCP","port":8080}}]}}"#,
            slice_uid = uid(2, self.service),
            version = 10_000_000 + self.version,
            generation = self.version,
        ))
    }
}

impl Pod {
    fn text(self, is_v6: bool, service: &str, namespace: &str) -> String {
        let Self { number, ready } = self;
        let node = number % NODES;
        let zone = char::from(b'a' + u8::try_from(node % 3).unwrap_or(0));
        let address = address(POD, number, is_v6);
        format!(
            r#"{{"addresses":["{address}"],"conditions":{{"ready":{ready},"serving":{ready},"terminating":false}},
"nodeName":"{node}","targetRef":{{"kind":"Pod","name":"{service}-7d4b9c6f5d-{number:05x}","namespace":"{namespace}",
"uid":"{uid}"}},"zone":"eu-central-1{zone}"}}"#,
            node = node_name(node),
            uid = uid(3, number),
        )
    }
}

/// The kind of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Dsr,
    LoadBalancer,
    LocalLoadBalancer,
    NodePort,
    ClusterIp,
}

impl Role {
    const fn of(number: u32) -> Self {
        match number % 100 {
            0 => Self::Dsr,
            20 | 40 => Self::LoadBalancer,
            60 | 80 => Self::LocalLoadBalancer,
            10 | 30 | 50 | 70 | 90 => Self::NodePort,
            _ => Self::ClusterIp,
        }
    }

    const fn annotation(self) -> &'static str {
        match self {
            Self::Dsr => r#""millrace.dev/forwarding":"dsr","#,
            _ => "",
        }
    }

    const fn spec(self) -> &'static str {
        match self {
            Self::Dsr | Self::LoadBalancer => {
                r#""type":"LoadBalancer","externalTrafficPolicy":"Cluster","allocateLoadBalancerNodePorts":false,"#
            }
            Self::LocalLoadBalancer => {
                r#""type":"LoadBalancer","externalTrafficPolicy":"Local","allocateLoadBalancerNodePorts":false,"#
            }
            Self::NodePort => r#""type":"NodePort","externalTrafficPolicy":"Cluster","#,
            Self::ClusterIp => r#""type":"ClusterIP","#,
        }
    }

    fn port(self, number: u32) -> String {
        match self {
            Self::NodePort => format!(r#","nodePort":{}"#, 30_000 + number / 20),
            _ => String::new(),
        }
    }

    fn status(self, number: u32) -> String {
        match self {
            Self::Dsr | Self::LoadBalancer | Self::LocalLoadBalancer => {
                let vip = address(VIP, number, false);
                format!(r#""ingress":[{{"ip":"{vip}","ipMode":"VIP"}}]"#)
            }
            Self::NodePort | Self::ClusterIp => String::new(),
        }
    }
}

/// The first addresses of one kind.
#[derive(Clone, Copy)]
struct Net {
    v4: [u8; 4],
    v6: [u16; 4],
}

const SERVICE: Net = Net { v4: [172, 16, 0, 1], v6: [0xfd00, 0x172, 0, 0] };
const VIP: Net = Net { v4: [198, 18, 0, 1], v6: [0xfd00, 0x198, 0, 0] };
const POD: Net = Net { v4: [10, 0, 0, 1], v6: [0xfd00, 0x10, 0, 0] };
const HOST: Net = Net { v4: [192, 168, 0, 1], v6: [0xfd00, 0x192, 0, 0] };

/// Returns the addresses of this node.
pub fn own_addresses(dual_stack: bool) -> impl Iterator<Item = IpAddr> {
    [Some(address(HOST, 0, false)), dual_stack.then(|| address(HOST, 0, true))].into_iter().flatten()
}

fn address(net: Net, number: u32, is_v6: bool) -> IpAddr {
    if is_v6 {
        let [a, b, c, d] = net.v6;
        let (high, low) = ((number >> 16) as u16, number as u16);
        IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, high, low.wrapping_add(1)))
    } else {
        IpAddr::V4(Ipv4Addr::from(u32::from_be_bytes(net.v4) + number))
    }
}

fn service_address(number: u32, is_v6: bool) -> IpAddr {
    address(SERVICE, number, is_v6)
}

fn service_name(number: u32) -> String {
    format!("backend-{number:05}")
}

/// Returns the namespace of a Service: one for each team.
fn namespace(number: u32) -> &'static str {
    const TEAMS: [&str; 8] =
        ["checkout", "payments", "search", "catalogue", "identity", "shipping", "media", "platform"];
    TEAMS.get(number as usize / 5 % TEAMS.len()).copied().unwrap_or("default")
}

fn node_name(number: u32) -> String {
    format!("ip-192-168-0-{number}.eu-central-1.compute.internal")
}

fn uid(kind: u32, number: u32) -> String {
    let mixed = number.wrapping_mul(0x9e37_79b9);
    format!("{mixed:08x}-{:04x}-4{kind:03x}-9abc-0000{number:08x}", number & 0xffff)
}

fn node(number: u32) -> String {
    let (name, address, uid) = (node_name(number), address(HOST, number, false), uid(4, number));
    let v6 = self::address(HOST, number, true);
    let zone = char::from(b'a' + u8::try_from(number % 3).unwrap_or(0));
    one_line(&format!(
        r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{number}","labels":
{{"kubernetes.io/hostname":"{name}","topology.kubernetes.io/zone":"eu-central-1{zone}"}}}},
"spec":{{"podCIDR":"10.0.0.0/24"}},"status":{{"addresses":[{{"type":"InternalIP","address":"{address}"}},
{{"type":"InternalIP","address":"{v6}"}},{{"type":"Hostname","address":"{name}"}}]}}}}"#
    ))
}

/// Removes line breaks, which the API server does not send. They keep the lines of this file short.
fn one_line(text: &str) -> String {
    text.replace('\n', "")
}
