//! Advice for each reason: what an operator does when its counter rises.

use proxy_common::verdict::Reason;

const NOTHING: &str = "Nothing: the packet was served.";

/// Returns what to do about packets with this reason. A reason without advice does not compile.
#[must_use]
pub const fn what_to_do(reason: Reason) -> &'static str {
    match reason {
        Reason::ServedLocal
        | Reason::SentDsr
        | Reason::ServedDsr
        | Reason::Reply
        | Reason::SentSnat
        | Reason::Echo
        | Reason::ReplySnat
        | Reason::IcmpError
        | Reason::ServedPod
        | Reason::Hairpin
        | Reason::Connected
        | Reason::Announced => NOTHING,
        Reason::NotOurs => {
            "Nothing. If a Service's packets are among them, check that `millrace services` on this node \
             lists their address and port."
        }
        Reason::SentOnward => {
            "Nothing while endpoints change. If the rate stays high, nodes disagree about endpoints: \
             compare `millrace status` on the nodes."
        }
        Reason::HandedToTc => {
            "Nothing: the TC program serves the packet. If the rate stays high, check in `millrace programs` \
             that XDP is attached to all uplinks."
        }
        Reason::FragmentHeld => {
            "Nothing. If the rate stays high, the network reorders fragments: let the sender use smaller packets."
        }
        Reason::Fragmented => "Nothing. To save the work, let the sender use smaller packets.",
        Reason::NoEndpoint => {
            "Check the Service's selector and its pods: none is ready. \
             `kubectl get endpointslices -l kubernetes.io/service-name=NAME` shows them."
        }
        Reason::NoLocalEndpoint => {
            "Send clients only to nodes with an endpoint, by the health check node port, \
             or set the traffic policy to Cluster."
        }
        Reason::NotPeer => {
            "If the sender is a node, check that its address is in its Node object, or in \
             `--dsr-outer-source` here. If it is none, filter its tunnels in the network."
        }
        Reason::NoBackendHere => {
            "Nothing while endpoints change. If the rate stays high, the director has old endpoints: \
             check `millrace status` there."
        }
        Reason::FragmentUnknown => {
            "Avoid fragments: lower the sender's MTU, or send smaller datagrams. Large fragments, \
             and many at once, are held only in order."
        }
        Reason::NoWay => {
            "Check `ip route get` and `ip neighbour` for the address of the backend's node; `millrace ways \
             --unresolved` lists the nodes without a resolved next hop."
        }
        Reason::HopLimit => "Look for a routing loop, or raise the hop limit of the client.",
        Reason::TooBig => {
            "Let ICMP errors through to the client, so that it learns the size. Else raise the MTU between \
             nodes, or lower the client's."
        }
        Reason::ReplyKeyInUse => {
            "Let the client use another source port. It reaches one backend by many frontends from one port."
        }
        Reason::NoRoom => {
            "Raise `--flow-table-size`. If only SCTP with Direct Server Return is concerned, switch \
             segmentation offload off at the sender."
        }
        Reason::NoBackend => {
            "Nothing while endpoints change. If the rate stays high, check the problems in `millrace status` and \
             `millrace_degraded_service_ports`."
        }
        Reason::SourceRefused => {
            "If the client may use the Service, add it to `loadBalancerSourceRanges`. For a ClusterIP, check \
             `--cluster-cidr` and `--cluster-ip-clients`."
        }
        Reason::UnknownPort => {
            "Check the port: `millrace services` lists those that are served. `--reject-unknown-ports` says \
             which addresses refuse others."
        }
        Reason::SnatPorts => {
            "Widen `--snat-ports`, add endpoints or nodes that take connections in, or use Direct Server Return."
        }
        Reason::IcmpUnknown => "Nothing: the connection has ended, or the error is forged.",
        Reason::UnknownProtocol => {
            "Check the protocol: `millrace services` lists those that are served. `--reject-unknown-ports` says \
             which addresses refuse others."
        }
        Reason::ForgedTunnel => {
            "Find the pod or process that sends these tunnel packets: they would pass the source ranges of Services."
        }
        Reason::Unserved => {
            "Check the Service, its port and its protocol. If it is gone, withdraw the route to its address."
        }
        Reason::LoopbackSource => {
            "Let the process connect without binding to 127.0.0.1 or ::1, or use the node's own address."
        }
    }
}
