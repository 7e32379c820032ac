//! The arguments that name Services.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::complete;
use super::error::CliError;
use super::service_port::ServicePort;
use crate::config::Refused;

const TAKES: &str = "NAME, NAMESPACE/NAME, NAMESPACE/NAME:PORT, or an address such as 192.0.2.10:80/udp";
/// The most changed letters of a name that is still meant.
const FARTHEST: usize = 3;

/// The Services to show.
#[derive(Args, Clone, Debug)]
pub struct SelectArgs {
    /// Services or addresses: NAME, NAMESPACE/NAME, NAMESPACE/NAME:PORT, ADDRESS, ADDRESS:PORT, ADDRESS:PORT/PROTOCOL
    #[arg(value_name = "SERVICE", value_parser = Selector::parse, add = ArgValueCompleter::new(complete::services))]
    services: Vec<Selector>,
    /// Namespace of the Services
    #[arg(
        short,
        long,
        value_name = "NAMESPACE",
        conflicts_with = "all_namespaces",
        add = ArgValueCompleter::new(complete::namespaces)
    )]
    namespace: Option<String>,
    /// Services of all namespaces, as without --namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

/// A Service, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A Service by its name.
    Name {
        namespace: Option<String>,
        name: String,
        /// Name or number of a port.
        port: Option<String>,
    },
    /// An address of a Service, an endpoint or a client.
    Address { ip: IpAddr, port: Option<u16>, protocol: Option<String> },
}

impl Selector {
    /// Parses an argument.
    pub fn parse(text: &str) -> Result<Self, Refused> {
        if let Some(address) = Self::address(text) {
            return Ok(address);
        }
        let refused = || Refused::new(text, TAKES);
        let (namespace, rest) = text.split_once('/').map_or((None, text), |(of, rest)| (Some(of), rest));
        let (name, port) = rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)));
        // RFC 1123's letters, as in names of objects.
        let is_word = |word: &str| {
            let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            !word.is_empty() && word.chars().all(is_letter)
        };
        let is_address = name.parse::<IpAddr>().is_ok();
        if is_address || ![Some(name), namespace, port].into_iter().flatten().all(is_word) {
            return Err(refused());
        }
        Ok(Self::Name {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            port: port.map(str::to_owned),
        })
    }

    fn address(text: &str) -> Option<Self> {
        let (address, protocol) = match text.split_once('/') {
            None => (text, None),
            Some((address, protocol)) => {
                let protocol = protocol.to_ascii_uppercase();
                (address, Some(protocol).filter(|name| ["TCP", "UDP", "SCTP"].contains(&name.as_str())))
            }
        };
        if text.contains('/') && protocol.is_none() {
            return None;
        }
        if let Ok(socket) = address.parse::<SocketAddr>() {
            return Some(Self::Address { ip: socket.ip(), port: Some(socket.port()), protocol });
        }
        let bare = address.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(address);
        let ip = bare.parse().ok()?;
        Some(Self::Address { ip, port: None, protocol })
    }

    /// Whether the Service port is meant.
    pub fn fits(&self, service: &ServicePort) -> bool {
        match self {
            Self::Name { namespace, name, port } => {
                let is_port = |port: &String| {
                    *port == service.port || service.ports.iter().any(|n| n.to_string() == *port)
                };
                namespace.as_ref().is_none_or(|namespace| *namespace == service.namespace)
                    && *name == service.name
                    && port.as_ref().is_none_or(is_port)
            }
            Self::Address { .. } => service.frontends().any(|one| self.is_at(one.address, &one.protocol)),
        }
    }

    /// Whether this is a name, not an address.
    pub const fn is_name(&self) -> bool {
        matches!(self, Self::Name { .. })
    }

    /// Whether an address with a protocol is meant.
    pub fn is_at(&self, address: SocketAddr, protocol: &str) -> bool {
        match self {
            Self::Name { .. } => false,
            Self::Address { ip, port, protocol: wanted } => {
                *ip == address.ip()
                    && port.is_none_or(|port| port == address.port())
                    && wanted.as_ref().is_none_or(|wanted| wanted == protocol)
            }
        }
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name { namespace, name, port } => {
                if let Some(namespace) = namespace {
                    write!(f, "{namespace}/")?;
                }
                f.write_str(name)?;
                port.as_ref().map_or(Ok(()), |port| write!(f, ":{port}"))
            }
            Self::Address { ip, port, protocol } => {
                match port {
                    Some(port) => write!(f, "{}", SocketAddr::new(*ip, *port))?,
                    None => write!(f, "{ip}")?,
                }
                protocol.as_ref().map_or(Ok(()), |protocol| write!(f, "/{}", protocol.to_lowercase()))
            }
        }
    }
}

impl SelectArgs {
    /// Whether every Service is meant.
    pub fn is_all(&self) -> bool {
        self.services.is_empty() && self.namespace.is_none()
    }

    /// Whether no address is among the arguments.
    pub fn has_names_alone(&self) -> bool {
        self.services.iter().all(Selector::is_name)
    }

    /// Whether a name of a Service is among the arguments.
    pub fn has_names(&self) -> bool {
        self.services.iter().any(Selector::is_name)
    }

    /// Returns the namespace that is meant as a whole.
    pub fn whole_namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|_| self.services.is_empty())
    }

    /// Whether one of the addresses among the arguments is meant.
    pub fn is_at(&self, address: SocketAddr, protocol: &str) -> bool {
        self.services.iter().any(|selector| selector.is_at(address, protocol))
    }

    /// Whether a Service port is named, rather than one of its addresses.
    pub fn names(&self, port: &ServicePort) -> bool {
        self.services.is_empty() || self.services.iter().any(|one| one.is_name() && one.fits(port))
    }

    /// Fails if an argument is a name.
    pub fn refuse_names(&self) -> Result<(), CliError> {
        if self.namespace.is_none() && !self.services.iter().any(Selector::is_name) {
            return Ok(());
        }
        Err(CliError::NotFound(
            "IPVS keeps no names of Services: name them by their addresses, such as 192.0.2.10:80".to_owned(),
        ))
    }

    /// Returns the chosen Service ports. Fails if an argument fits none, unless `is_known` accepts it.
    pub fn choose(
        &self,
        all: Vec<ServicePort>,
        is_known: impl Fn(&Selector) -> bool,
    ) -> Result<Vec<ServicePort>, CliError> {
        let of_namespace =
            |port: &ServicePort| self.namespace.as_ref().is_none_or(|wanted| *wanted == port.namespace);
        let (inside, outside): (Vec<_>, Vec<_>) = all.into_iter().partition(of_namespace);
        let fits_none =
            |selector: &&Selector| !inside.iter().any(|port| selector.fits(port)) && !is_known(selector);
        if let Some(selector) = self.services.iter().find(fits_none) {
            return Err(CliError::NotFound(not_found(selector, inside.iter().chain(&outside))));
        }
        let is_chosen = |port: &ServicePort| {
            self.services.is_empty() || self.services.iter().any(|selector| selector.fits(port))
        };
        Ok(inside.into_iter().filter(is_chosen).collect())
    }

    /// Whether a row of IPVS is chosen, by its frontends and their protocol.
    pub fn fits_places(&self, places: &[SocketAddr], protocol: &str) -> bool {
        self.is_all() || places.iter().any(|place| self.is_at(*place, protocol))
    }
}

impl SelectArgs {
    /// Fails if an argument is a name, or fits none of the places that IPVS serves.
    pub fn check_places(&self, places: &[(&SocketAddr, &str)]) -> Result<(), CliError> {
        self.refuse_names()?;
        let fits_none =
            |selector: &&Selector| !places.iter().any(|(place, protocol)| selector.is_at(**place, protocol));
        match self.services.iter().find(fits_none) {
            None => Ok(()),
            Some(selector) => Err(CliError::NotFound(format!("no Service matches \"{selector}\""))),
        }
    }
}

/// Returns the message for an argument that fits nothing, with the nearest that is there.
pub fn not_found<'a>(selector: &Selector, all: impl Iterator<Item = &'a ServicePort>) -> String {
    let nearest = match selector {
        Selector::Address { ip, .. } => {
            let here = all.filter(|port| port.frontends().any(|one| one.address.ip() == *ip));
            let ports: BTreeSet<String> = here
                .flat_map(|port| {
                    let at = port.frontends().filter(|one| one.address.ip() == *ip);
                    at.map(|one| format!("{}/{} ({})", one.address.port(), one.protocol, port.label()))
                })
                .collect();
            let ports: Vec<String> = ports.into_iter().take(FARTHEST).collect();
            (!ports.is_empty()).then(|| format!("; this address has {}", ports.join(", ")))
        }
        Selector::Name { namespace, name, .. } => nearest(namespace.as_deref(), name, all),
    };
    format!("no Service matches \"{selector}\"{}", nearest.unwrap_or_default())
}

fn nearest<'a>(
    namespace: Option<&str>,
    name: &str,
    all: impl Iterator<Item = &'a ServicePort>,
) -> Option<String> {
    let distance = |port: &ServicePort| {
        let of_namespace = namespace.map_or(0, |wanted| strsim::levenshtein(wanted, &port.namespace));
        let of_name = strsim::levenshtein(name, &port.name);
        // The right name in a namespace that is far away is meant, too.
        if of_name == 0 { of_namespace.min(1) } else { of_namespace + of_name }
    };
    let near = all.map(|port| (distance(port), format!("{}/{}", port.namespace, port.name)));
    let (_, label) = near.filter(|(distance, _)| *distance <= FARTHEST).min()?;
    Some(format!("; nearest: {label}"))
}

#[cfg(test)]
mod tests {
    use super::super::service_port::tests::shop;
    use super::*;

    fn args(services: &[&str], namespace: Option<&str>) -> SelectArgs {
        SelectArgs {
            services: services.iter().map(|text| Selector::parse(text).unwrap()).collect(),
            namespace: namespace.map(str::to_owned),
            all_namespaces: false,
        }
    }

    fn chosen(services: &[&str], namespace: Option<&str>) -> Result<Vec<String>, String> {
        let ports = args(services, namespace).choose(shop(), |_| false).map_err(|error| error.to_string())?;
        Ok(ports.iter().map(ServicePort::label).collect())
    }

    #[test]
    fn a_service_is_named_in_every_way() {
        let web = || Ok(vec!["shop/web:http".to_owned()]);
        for text in [
            "web",
            "shop/web",
            "shop/web:http",
            "web:80",
            "203.0.113.9",
            "203.0.113.9:80",
            "203.0.113.9:80/tcp",
            "fd96::9",
            "[fd96::9]:80",
            "[fd96::9]:80/TCP",
            "192.0.2.1:30080",
        ] {
            assert_eq!(chosen(&[text], None), web(), "{text}");
        }
        assert_eq!(chosen(&["web", "db"], None).unwrap().len(), 2);
        assert_eq!(chosen(&[], None).unwrap().len(), 2);
        assert_eq!(chosen(&["web"], Some("shop")), web());
        assert_eq!(chosen(&[], Some("elsewhere")), Ok(vec![]));
    }

    #[test]
    fn where_nothing_fits_the_nearest_is_named() {
        for (text, message) in [
            ("shop/wep", "no Service matches \"shop/wep\"; nearest: shop/web"),
            ("store/web", "no Service matches \"store/web\"; nearest: shop/web"),
            ("shop/web:https", "no Service matches \"shop/web:https\"; nearest: shop/web"),
            ("monitoring/grafana", "no Service matches \"monitoring/grafana\""),
            (
                "203.0.113.9:81",
                "no Service matches \"203.0.113.9:81\"; this address has 80/TCP (shop/web:http)",
            ),
            (
                "203.0.113.9:80/udp",
                "no Service matches \"203.0.113.9:80/udp\"; this address has 80/TCP (shop/web:http)",
            ),
            ("198.51.100.1", "no Service matches \"198.51.100.1\""),
        ] {
            assert_eq!(chosen(&[text], None), Err(message.to_owned()));
        }
        let outside = chosen(&["web"], Some("default")).unwrap_err();
        assert_eq!(outside, "no Service matches \"web\"; nearest: shop/web");
    }

    #[test]
    fn what_names_no_object_is_refused() {
        for text in
            ["", "/", "a/", "/a", "a/b/c", "a:", "a b", "a/b:", "192.0.2.1:80/icmp", "192.0.2.1:99999"]
        {
            let refused = Selector::parse(text).unwrap_err().to_string();
            assert!(refused.contains("takes NAME, NAMESPACE/NAME"), "{text}: {refused}");
        }
    }

    #[test]
    fn a_row_of_ipvs_is_found_by_an_address() {
        let places = ["192.0.2.1:80".parse().unwrap()];
        assert!(args(&["192.0.2.1"], None).fits_places(&places, "TCP"));
        assert!(args(&[], None).fits_places(&places, "TCP"));
        assert!(!args(&["192.0.2.1:80/udp"], None).fits_places(&places, "TCP"));
        let check = |services: &[&str], namespace| {
            let places: Vec<_> = places.iter().map(|place| (place, "TCP")).collect();
            args(services, namespace).check_places(&places).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[], None), Ok(()));
        assert_eq!(check(&["192.0.2.1:80"], None), Ok(()));
        assert_eq!(check(&["192.0.2.2"], None), Err("no Service matches \"192.0.2.2\"".to_owned()));
        assert!(check(&["web"], None).unwrap_err().contains("IPVS keeps no names"));
        assert!(check(&[], Some("shop")).unwrap_err().contains("IPVS keeps no names"));
    }
}
