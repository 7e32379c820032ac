//! The next command after a verdict.

use proxy_common::verdict::Reason;

/// Returns a command that shows the cause; `None` if there is nothing to look for. `service` is
/// `namespace/name:port`, and `why` the cause of the verdict.
pub fn next(reason: Reason, why: &str, service: Option<&str>) -> Option<String> {
    let named = service.and_then(|label| label.split_once('/'));
    let (namespace, name) = named.unwrap_or(("NAMESPACE", "NAME"));
    let name = name.split(':').next().unwrap_or(name);
    Some(match reason {
        Reason::NoEndpoint | Reason::NoLocalEndpoint => {
            format!("kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={name} -o wide")
        }
        Reason::SourceRefused if why.contains("loadBalancerSourceRanges") => {
            format!(
                "kubectl -n {namespace} get service {name} -o jsonpath='{{.spec.loadBalancerSourceRanges}}'"
            )
        }
        Reason::NoWay => "millrace ways --unresolved".to_owned(),
        Reason::TooBig => "millrace ways".to_owned(),
        Reason::SnatPorts => "millrace flows --count-by backend".to_owned(),
        Reason::NoBackend => format!("millrace backends {namespace}/{name}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_the_service() {
        assert_eq!(
            next(Reason::NoEndpoint, "", Some("shop/web:http")).unwrap(),
            "kubectl -n shop get endpointslices -l kubernetes.io/service-name=web -o wide"
        );
        assert_eq!(next(Reason::ServedLocal, "", Some("shop/web")), None);
        assert_eq!(next(Reason::SourceRefused, "outside the cluster", Some("shop/web")), None);
    }
}
