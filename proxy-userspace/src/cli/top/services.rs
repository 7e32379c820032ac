//! Rates of Service ports.

use millrace_views::{HandshakesView, Word};
use serde::{Deserialize, Serialize};

use super::Interval;
use super::rate::{rate, some_rate};
use crate::cli::output::{Column, Row, bucket_end};
use crate::cli::service_port::ServicePort;

/// The rates of a Service port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceRate {
    /// `namespace/name:port`.
    service: String,
    /// The widest kind of frontend.
    #[serde(rename = "type")]
    kind: String,
    /// `dsr` or `snat`.
    forwarding: String,
    /// Connections that were opened.
    connections_per_second: f64,
    /// Connections that are established now.
    active: u64,
    /// Packets from clients.
    packets_per_second: f64,
    /// Bits from clients.
    bits_per_second: f64,
    /// Connections that a backend refused.
    refused_per_second: f64,
    /// Connections of TCP and SCTP that found no answer.
    unanswered_per_second: Option<f64>,
    /// End of the bucket with the median time to the first answer.
    p50_microseconds: Option<u64>,
    /// The same for 99 of 100.
    p99_microseconds: Option<u64>,
    /// Dropped packets.
    drops_per_second: f64,
    /// The most frequent reason of them.
    drop_reason: Option<Word>,
}

/// Returns a row for each Service port that both readings have.
pub fn rows(interval: &Interval<'_>) -> Vec<ServiceRate> {
    let known = interval.now.services.iter();
    let both = known.filter_map(|(label, now)| Some((label, interval.before.services.get(label)?, now)));
    both.map(|(label, before, now)| ServiceRate::of(interval, label, before, now)).collect()
}

impl ServiceRate {
    fn of(interval: &Interval<'_>, label: &str, before: &ServicePort, now: &ServicePort) -> Self {
        let per_second = |before, now| interval.per_second(before, now);
        let (was, is) = (&before.connections, &now.connections);
        let times = difference(&before.handshakes, &now.handshakes);
        let dropped = now.dropped.iter().map(|(reason, packets)| {
            (per_second(before.dropped.get(reason).copied().unwrap_or(0), *packets), reason)
        });
        let dropped: Vec<(f64, &Word)> = dropped.filter(|(packets, _)| *packets > 0.0).collect();
        let most = dropped.iter().max_by(|one, other| one.0.total_cmp(&other.0));
        Self {
            service: label.to_owned(),
            kind: now.kind.clone(),
            forwarding: now.forwarding.clone(),
            connections_per_second: per_second(was.opened, is.opened),
            active: is.active,
            packets_per_second: per_second(before.packets, now.packets),
            bits_per_second: per_second(before.bytes, now.bytes) * 8.0,
            refused_per_second: per_second(was.refused, is.refused),
            // The number falls, too, when a late answer comes.
            unanswered_per_second: before
                .unanswered
                .zip(now.unanswered)
                .map(|(before, now)| per_second(before.min(now), now)),
            p50_microseconds: times.p50_microseconds,
            p99_microseconds: times.p99_microseconds,
            drops_per_second: dropped.iter().map(|(packets, _)| packets).sum(),
            drop_reason: most.map(|(_, reason)| (*reason).clone()),
        }
    }
}

/// Returns the times that came between two readings.
fn difference(before: &HandshakesView, now: &HandshakesView) -> HandshakesView {
    let earlier = before.buckets.iter().copied().chain(std::iter::repeat(0));
    HandshakesView::of(
        now.buckets.iter().zip(earlier).map(|(now, before)| now.saturating_sub(before)).collect(),
    )
}

impl Row for ServiceRate {
    const COLUMNS: &'static [Column] = &[
        Column::new("SERVICE", "service"),
        Column::new("TYPE", "type").spare(3),
        Column::new("FORWARD", "forwarding").spare(2),
        Column::new("CONN/S", "connections_per_second"),
        Column::new("ACTIVE", "active"),
        Column::new("PACKETS/S", "packets_per_second"),
        Column::new("BITS/S", "bits_per_second"),
        Column::new("REFUSED/S", "refused_per_second").spare(5),
        Column::new("SILENT/S", "unanswered_per_second").spare(6),
        Column::new("P50", "p50_microseconds").spare(4),
        Column::new("P99", "p99_microseconds").spare(1),
        Column::new("DROPS/S", "drops_per_second"),
        Column::new("WHY", "drop_reason"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.service.clone(),
            self.kind.clone(),
            self.forwarding.clone(),
            rate(self.connections_per_second),
            self.active.to_string(),
            rate(self.packets_per_second),
            rate(self.bits_per_second),
            some_rate(self.refused_per_second),
            some_rate(self.unanswered_per_second.unwrap_or(0.0)),
            bucket_end(self.p50_microseconds),
            bucket_end(self.p99_microseconds),
            some_rate(self.drops_per_second),
            self.drop_reason.as_ref().map(ToString::to_string).unwrap_or_default(),
        ]
    }

    fn name(&self) -> String {
        self.service.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{interval, reading};
    use super::*;

    #[test]
    fn rates_are_differences_by_time() {
        let (before, mut now) = (reading(), reading());
        let web = now.services.get_mut("shop/web:http").unwrap();
        web.packets += 400;
        web.bytes += 1000;
        web.connections.opened += 20;
        web.connections.refused += 4;
        web.connections.active = 7;
        *web.dropped.get_mut("no_endpoint").unwrap() += 2;
        web.dropped.insert("source_refused".into(), 6);
        web.unanswered = web.unanswered.map(|count| count + 2);
        web.handshakes = HandshakesView::of(vec![0, 3, 0, 5]);
        let rows = rows(&interval(&before, &now, 2.0));
        let row = rows.iter().find(|row| row.service == "shop/web:http").unwrap();
        assert_eq!((row.connections_per_second, row.packets_per_second), (10.0, 200.0));
        assert_eq!((row.bits_per_second, row.refused_per_second, row.active), (4000.0, 2.0, 7));
        assert_eq!((row.drops_per_second, row.drop_reason.as_deref()), (4.0, Some("source_refused")));
        assert_eq!(row.unanswered_per_second, Some(1.0));
        assert_eq!(row.p50_microseconds, Some(512), "only what came in between counts");
        let cells = ["shop/web:http", "LoadBalancer", "snat", "10", "7", "200", "4.0 k", "2.0", "1.0"];
        assert_eq!(row.cells(false)[..9], cells);
        assert_eq!(row.cells(false).len(), ServiceRate::COLUMNS.len());
        let idle = rows.iter().find(|row| row.service == "shop/db").unwrap();
        assert_eq!((idle.packets_per_second, idle.drops_per_second, &idle.drop_reason), (0.0, 0.0, &None));
    }

    #[test]
    fn a_service_that_only_one_reading_has_is_left_out() {
        let (mut before, now) = (reading(), reading());
        before.services.remove("shop/db");
        let rows = rows(&interval(&before, &now, 1.0));
        assert_eq!(rows.iter().map(|row| row.service.as_str()).collect::<Vec<_>>(), ["shop/web:http"]);
    }
}
