//! `millrace counters`.

use clap::Args;

use super::error::CliError;
use super::output::{Column, Group, List, ListArgs, Row, mark};
use super::place::Place;
use crate::dataplane::ebpf::read::CounterView;

/// Arguments of `millrace counters`.
#[derive(Args, Clone, Debug)]
pub struct CountersArgs {
    /// Reasons of drops alone
    #[arg(long)]
    drops: bool,
    /// Reasons that no packet had, too
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// Prints packets by program and reason.
pub fn run(args: &CountersArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || {
        let counters = args.place.maps()?.counters()?.into_iter().filter(|one| args.keeps(one));
        let counters: Vec<CounterView> = counters.collect();
        Ok(List::new("CounterList", vec![Group::of("ebpf", &counters, args.list.is_wide())?]))
    })
}

impl CountersArgs {
    const fn keeps(&self, counter: &CounterView) -> bool {
        (self.all || counter.packets > 0) && (!self.drops || counter.drop)
    }
}

/// Packets with one reason in one program.
impl Row for CounterView {
    const COLUMNS: &'static [Column] = &[
        Column::new("PROGRAM", "program"),
        Column::new("COUNTER", "reason"),
        Column::new("DROP", "drop"),
        Column::new("PACKETS", "packets"),
        Column::new("BYTES", "bytes"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.program.to_string(),
            self.reason.to_string(),
            mark(self.drop),
            self.packets.to_string(),
            self.bytes.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.program, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::argument::parsed;

    fn kept(flags: &str) -> Vec<&'static str> {
        let args: CountersArgs = parsed(flags);
        let counter = |reason: &'static str, drop, packets| {
            (
                reason,
                CounterView { program: "xdp_ingress".into(), reason: reason.into(), drop, packets, bytes: 0 },
            )
        };
        let counters =
            [counter("not_ours", false, 3), counter("no_way", true, 2), counter("too_big", true, 0)];
        counters.iter().filter(|(_, view)| args.keeps(view)).map(|(reason, _)| *reason).collect()
    }

    #[test]
    fn reasons_that_no_packet_had_are_left_out() {
        assert_eq!(kept(""), ["not_ours", "no_way"]);
        assert_eq!(kept("--drops"), ["no_way"]);
        assert_eq!(kept("--all"), ["not_ours", "no_way", "too_big"]);
        assert_eq!(kept("--all --drops"), ["no_way", "too_big"]);
    }
}
