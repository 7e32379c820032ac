//! `millrace services`.

use clap::Args;

use super::shown::Shown;
use super::table::{Table, owners, ranges, service_port};
use super::{CliError, Show, ipvs, service_ports};
use crate::dataplane::ebpf::read::{FrontendView, PinnedMaps, ServiceView};

/// Arguments of `millrace services`.
#[derive(Args, Clone, Debug)]
pub struct ServicesArgs {
    #[command(flatten)]
    show: Show,
    /// A row for each frontend, with scope, algorithm and source ranges
    #[arg(long)]
    frontends: bool,
}

/// Prints the Services.
pub fn run(args: &ServicesArgs) -> Result<(), CliError> {
    let shown = Shown::read(&args.show, PinnedMaps::services, ipvs::services)?;
    let of_maps = if args.frontends { table } else { service_ports::table };
    args.show.print(&shown, |shown| shown.tables(|list| of_maps(list)))
}

/// Returns a row for each frontend. Packets are counted for each list, so frontends of one list show the same
/// number.
fn table(services: &[ServiceView]) -> Table {
    let mut table = Table::new(&[
        "SERVICE",
        "FAMILY",
        "PROTO",
        "FRONTEND",
        "SCOPE",
        "KIND",
        "LIST",
        "FORWARDING",
        "ALGORITHM",
        "SOURCES",
        "BACKENDS",
        "PACKETS",
    ]);
    for service in services {
        let name = service_port(&service.namespace, &service.name, &service.port);
        for frontend in &service.frontends {
            table.push([
                name.clone(),
                service.family.clone(),
                frontend.protocol.to_string(),
                frontend.address.to_string(),
                frontend.scope.to_string(),
                frontend.kind.to_string(),
                service.list.clone(),
                frontend.forwarding.to_string(),
                service.algorithm.to_string(),
                sources(frontend),
                owners(&service.backends, service.elsewhere),
                service.packets.to_string(),
            ]);
        }
    }
    table
}

fn sources(frontend: &FrontendView) -> String {
    if frontend.inside_only {
        return "cluster".to_owned();
    }
    ranges(frontend.source_ranges.as_deref())
}

#[cfg(test)]
mod tests {
    use millrace_views::Word;

    use super::*;

    #[test]
    fn a_service_has_a_row_for_each_frontend() {
        let frontend = |address: &str, kind, source_ranges, inside_only| FrontendView {
            address: address.parse().unwrap(),
            protocol: "TCP".into(),
            scope: "external".into(),
            kind: Word::Borrowed(kind),
            forwarding: "dsr".into(),
            affinity_seconds: 0,
            source_ranges,
            inside_only,
        };
        let service = ServiceView {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            port: "http".to_owned(),
            family: "IPv4".to_owned(),
            list: "Local".to_owned(),
            id: 1,
            algorithm: "maglev".into(),
            slots: 4093,
            elsewhere: true,
            frontends: vec![
                frontend("192.0.2.1:30080", "NodePort", None, false),
                frontend("203.0.113.9:80", "LoadBalancer", Some(vec!["10.0.0.0/8".parse().unwrap()]), false),
                frontend("10.96.0.9:80", "ClusterIP", None, true),
            ],
            backends: Vec::new(),
            packets: 7,
            bytes: 700,
        };
        let text = table(&[service]).to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[1][..4], ["default/web:http", "IPv4", "TCP", "192.0.2.1:30080"]);
        assert_eq!(
            rows[2][3..],
            [
                "203.0.113.9:80",
                "external",
                "LoadBalancer",
                "Local",
                "dsr",
                "maglev",
                "10.0.0.0/8",
                "none",
                "here",
                "7"
            ]
        );
        assert_eq!((rows[1][9], rows[3][9]), ("all", "cluster"));
    }
}
