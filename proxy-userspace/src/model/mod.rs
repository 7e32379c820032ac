//! Services, EndpointSlices and Nodes in; frontends and backends out. Pure: no I/O, no clock, no aya.

mod desired;

pub use desired::{
    Algorithm, Desired, Dirty, Endpoint, EndpointAddress, Family, Forwarding, Frontend, FrontendKind, List,
    PortKey, Protocol, Scope, ServiceKey, ServicePort,
};
