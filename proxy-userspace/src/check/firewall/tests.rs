use std::io::Write as _;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

use super::*;

/// Returns what nft makes of these rules in a network namespace of their own, as the kernel has them.
fn rules_of(text: &'static str) -> Ruleset {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        // nft asks for a line's end behind a block.
        let text = ["} }", "} chain", "} table"]
            .iter()
            .fold(text.to_owned(), |text, end| text.replace(end, &end.replacen(' ', "\n", 1)));
        nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{text}");
        nftables::ruleset().unwrap()
    };
    std::thread::spawn(run).join().unwrap()
}

fn found(text: &'static str, change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = Facts::example();
    facts.firewall = Ok(Firewall { rules: rules_of(text), legacy: Vec::new() });
    change(&mut facts);
    rules(&facts)
}

/// Returns the outcome of a chain of the forward hook with these rules.
fn outcome(chain: &'static str) -> Outcome {
    let text = format!("table inet fw {{ chain f {{ type filter hook forward priority 0; {chain} }} }}");
    found(text.leak(), |_| {})[0].outcome
}

/// Gives the example a second endpoint, so that not all are dropped.
fn two(facts: &mut Facts) {
    let pins = facts.pins.as_mut().unwrap();
    let mut second = pins.backends[0].clone();
    second.address = "10.244.1.3:8080".parse().unwrap();
    pins.services[0].backends.push(second.address);
    pins.backends.push(second);
}

#[test]
fn a_rule_that_drops_an_endpoint_is_named_with_its_services() {
    let text = "table inet fw { chain f { type filter hook forward priority 0; counter; \
                ip daddr 10.244.1.2 tcp dport 8080 drop; } }";
    let found = found(text, two);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].outcome, Outcome::Warn);
    assert_eq!(
        found[0].found,
        "inet fw/f drops by rule 3 packets to 10.244.1.2:8080/TCP: an endpoint of shop/web"
    );
    assert_eq!(found[0].remedy, "nft -a list chain inet fw f; nft delete rule inet fw f handle 3");
}

#[test]
fn a_policy_that_drops_everything_is_a_fault_and_our_mark_gets_through() {
    let all = found("table ip fw { chain f { type filter hook forward priority 0; policy drop; } }", |_| {});
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all.iter().all(|one| one.outcome == Outcome::Fail));
    assert_eq!(
        all[0].found,
        "ip fw/f drops by its policy packets to 10.244.1.2:8080/TCP: an endpoint of shop/web"
    );
    assert!(all[1].found.contains("drops by its policy replies of"));
    assert!(all[0].remedy.starts_with("nft insert rule ip fw f meta mark and 0x1000 == 0x1000 accept;"));
    assert_eq!(
        outcome("policy drop; meta mark & 0x1000 == 0x1000 accept; ct state established,related accept;"),
        Outcome::Pass
    );
}

#[test]
fn rules_that_do_not_meet_an_endpoint_are_left_alone() {
    for chain in [
        "",
        "ip daddr 10.244.1.3 drop;",
        "tcp dport 80 drop;",
        "udp dport 8080 drop;",
        "meta l4proto udp drop;",
        "ip6 nexthdr tcp drop;",
        "iifname \"eth7\" drop;",
        "ct state invalid drop;",
        "tcp dport { 22, 80, 9000-9999 } drop;",
        "ip daddr 10.9.0.0/16 drop;",
        "ip daddr != 10.244.0.0/16 ip saddr != 10.244.0.0/16 drop;",
        "policy drop; ct state vmap { established : accept, related : accept, invalid : drop }; ip daddr 10.244.0.0/16 accept;",
        "policy drop; ip daddr { 10.244.0.0/16, 10.9.0.1 } accept; ip saddr 10.244.0.0/16 accept;",
        "policy drop; iifname eth0 accept; oifname eth0 accept;",
        "tcp dport 1-8079 drop; tcp dport 8081-65535 drop;",
    ] {
        assert_eq!(outcome(chain), Outcome::Pass, "{chain}");
    }
}

#[test]
fn rules_that_drop_an_endpoint_are_found_in_every_form() {
    for chain in [
        "drop;",
        "tcp dport 8080 reject;",
        "tcp sport 8080 drop;",
        "tcp dport 8000-8100 drop;",
        "tcp dport { 22, 8080 } drop;",
        "tcp dport { 22, 8000-8100 } drop;",
        "ip daddr 10.244.0.0/16 drop;",
        "ip daddr 10.244.0.0/16 tcp dport vmap { 22 : accept, 8080 : drop };",
        "iifname \"eth*\" ip daddr 10.244.1.2 drop;",
        "ct state new drop;",
        "ct state established drop;",
        "meta mark & 0x1000 == 0x1000 drop;",
        "tcp dport != 22 drop;",
    ] {
        assert_eq!(outcome(chain), Outcome::Fail, "{chain}");
    }
}

#[test]
fn what_depends_on_the_client_is_a_doubt() {
    assert_eq!(outcome("ip saddr 198.51.100.0/24 drop;"), Outcome::Pass);
    assert_eq!(outcome("ip saddr 198.51.100.0/24 accept; tcp dport 8080 drop;"), Outcome::Pass);
    assert_eq!(outcome("limit rate over 10/second drop;"), Outcome::Pass);
    let policy = found(
        "table inet fw { chain f { type filter hook forward priority 0; policy drop; \
         ip saddr 198.51.100.0/24 accept; ct state established accept; } }",
        |_| {},
    );
    assert_eq!(policy.len(), 1, "{policy:?}");
    assert_eq!(policy[0].outcome, Outcome::Warn);
    assert!(policy[0].found.starts_with("inet fw/f drops by its policy what no rule accepts;"));
}

#[test]
fn jumps_are_followed_and_returned_from() {
    let judge = |text: &'static str| found(text, |_| {})[0].outcome;
    assert_eq!(
        judge(
            "table inet fw { chain sub { tcp dport 8080 drop; } chain f { type filter hook forward priority 0; jump sub; } }"
        ),
        Outcome::Fail
    );
    assert_eq!(
        judge(
            "table inet fw { chain sub { ip daddr 10.244.1.2 return; drop; } \
             chain f { type filter hook forward priority 0; ip daddr 10.244.1.2 jump sub; } }"
        ),
        Outcome::Pass
    );
    assert_eq!(
        judge(
            "table inet fw { chain sub { accept; } \
             chain f { type filter hook forward priority 0; policy drop; goto sub; } }"
        ),
        Outcome::Pass
    );
    // Another base chain of the same hook sees what the first accepted.
    assert_eq!(
        judge(
            "table inet a { chain f { type filter hook forward priority 0; accept; } } \
             table inet b { chain f { type filter hook forward priority 1; tcp dport 8080 drop; } }"
        ),
        Outcome::Fail
    );
}

#[test]
fn the_input_hook_counts_for_an_endpoint_in_the_hosts_network() {
    let text = "table inet fw { chain i { type filter hook input priority 0; tcp dport 8080 drop; } }";
    assert_eq!(found(text, |_| {})[0].outcome, Outcome::Pass);
    let own = |facts: &mut Facts| {
        let pins = facts.pins.as_mut().unwrap();
        let address = "10.1.0.11:8080".parse().unwrap();
        pins.backends[0].address = address;
        pins.services[0].backends = vec![address];
    };
    assert_eq!(found(text, own)[0].outcome, Outcome::Fail);
}

#[test]
fn a_reply_that_conntrack_calls_invalid_is_dropped_with_dispatch_to_pods() {
    let text = "table inet fw { chain f { type filter hook forward priority 0; ct state invalid drop; } }";
    let found = found(text, |facts| {
        let pins = facts.pins.as_mut().unwrap();
        pins.backends[0].pod = true;
        pins.services[0].frontends[0].forwarding = "dsr".into();
    });
    assert_eq!(
        found[0].found,
        "inet fw/f drops by rule 2 replies of 10.244.1.2:8080/TCP, which conntrack calls invalid with --dsr-dispatch \
         pod: an endpoint of shop/web"
    );
}

#[test]
fn before_an_installation_a_policy_is_a_doubt_and_legacy_rules_are_named() {
    let bare = |facts: &mut Facts| facts.pins = Err("no data plane".to_owned());
    let policy = found("table ip fw { chain f { type filter hook forward priority 0; policy drop; } }", bare);
    assert_eq!((policy.len(), policy[0].outcome), (1, Outcome::Warn), "{policy:?}");
    let legacy = found("", |facts| {
        bare(facts);
        facts.firewall.as_mut().unwrap().legacy = vec!["filter".to_owned()];
    });
    assert!(legacy[0].found.starts_with("legacy iptables has rules (tables filter)"));
    let closed = found("", |facts| facts.firewall = Err("no".to_owned()));
    assert_eq!(closed, [Finding::skip("no")]);
}
