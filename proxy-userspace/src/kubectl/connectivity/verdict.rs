//! Replies become findings: one for each test.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Case, Client, Expected};
use crate::check::Finding;
use crate::echo::Reply;

/// The lines of a finding that name what went wrong.
const MOST_LINES: usize = 5;
/// So many answers of one server alone are no chance where there are several.
const FEW: usize = 20;

/// Returns what the cases of a test found.
pub fn judge(cases: &[(&Case, &[Reply])]) -> Finding {
    let wrong: Vec<(&Case, String)> =
        cases.iter().filter_map(|(case, replies)| Some((*case, wrong(case, replies)?))).collect();
    let Some((first, _)) = wrong.first() else { return all_right(cases) };
    let mut lines = vec![format!("{} of {} probes went wrong:", wrong.len(), cases.len())];
    lines.extend(wrong.iter().take(MOST_LINES).map(|(case, reason)| {
        let protocol = case.probe.protocol.name();
        format!("{} > {}/{protocol}: {reason}", case.client, case.probe.target)
    }));
    if wrong.len() > MOST_LINES {
        lines.push(format!("and {} more", wrong.len() - MOST_LINES));
    }
    Finding::fail(lines.join("\n"), remedy(first))
}

/// Returns the finding of a test whose cases are all right, one by one.
fn all_right(cases: &[(&Case, &[Reply])]) -> Finding {
    let (mut answered, mut refused, mut silent) = (0, 0, 0);
    let mut met = BTreeSet::new();
    for reply in cases.iter().flat_map(|(_, replies)| replies.iter()) {
        match reply {
            Reply::Answered { server, .. } => {
                answered += 1;
                met.insert(server);
            }
            Reply::Refused => refused += 1,
            Reply::Silent | Reply::Failed { .. } => silent += 1,
        }
    }
    let has_choice = |(case, _): &(&Case, &[Reply])| matches!(&case.expected, Expected::Answer { servers, is_one: false, .. } if servers.len() > 1);
    if let (Some((case, _)), Some(server), 1) =
        (cases.iter().find(|one| has_choice(one)), met.first(), met.len())
        && answered >= FEW
    {
        return Finding::fail(format!("{server} alone answered all {answered} requests"), remedy(case));
    }
    let servers = if met.len() == 1 { "1 server".to_owned() } else { format!("{} servers", met.len()) };
    let parts = [
        (answered, format!("answered by {servers}")),
        (refused, "refused, as is right".to_owned()),
        (silent, "not answered, as is right".to_owned()),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    Finding::pass(parts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", "))
}

/// Returns what was wrong with the replies to a probe.
fn wrong(case: &Case, replies: &[Reply]) -> Option<String> {
    let requests = usize::from(case.probe.requests);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for reply in replies {
        if let Some(reason) = wrong_reply(&case.expected, reply) {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    if replies.len() < requests {
        reasons.insert("the client did not say what it met".to_owned(), requests - replies.len());
    }
    if let Expected::Answer { is_one: true, .. } = case.expected {
        let met: BTreeSet<&str> = replies
            .iter()
            .filter_map(|reply| match reply {
                Reply::Answered { server, .. } => Some(server.as_str()),
                _ => None,
            })
            .collect();
        if met.len() > 1 {
            let met: Vec<&str> = met.into_iter().collect();
            reasons.insert(format!("{} answered, where one was to answer all", met.join(", ")), requests);
        }
    }
    let shown = reasons.into_iter().map(|(reason, count)| {
        if count == requests { reason } else { format!("{reason} ({count} of {requests})") }
    });
    Some(shown.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
}

fn wrong_reply(expected: &Expected, reply: &Reply) -> Option<String> {
    match (expected, reply) {
        (Expected::Answer { servers, .. }, Reply::Answered { server, .. }) if !servers.contains(server) => {
            Some(format!("{server} answered, which is no choice here"))
        }
        (Expected::Answer { is_source_kept: true, .. }, Reply::Answered { seen, own, .. })
            if seen.ip() != own.ip() =>
        {
            Some(format!("the server saw {} in the place of {}", seen.ip(), own.ip()))
        }
        (Expected::Answer { .. }, Reply::Answered { .. })
        | (Expected::Refusal | Expected::NoAnswer, Reply::Refused)
        | (Expected::NoAnswer, Reply::Silent) => None,
        (Expected::Answer { .. }, Reply::Refused) => Some("refused".to_owned()),
        (Expected::Answer { .. }, Reply::Silent) => Some("no answer".to_owned()),
        (Expected::Refusal, Reply::Silent) => Some("no answer in the place of a refusal".to_owned()),
        (Expected::Refusal | Expected::NoAnswer, Reply::Answered { server, .. }) => {
            Some(format!("{server} answered, where nobody was to"))
        }
        (_, Reply::Failed { why }) => Some(why.clone()),
    }
}

/// Returns the command that explains the way of a case.
fn remedy(case: &Case) -> String {
    let (node, from) = match &case.client {
        Client::Pod { node } => (format!(" --on {node}"), " --from-pod"),
        Client::Host { node } => (format!(" --on {node}"), " --from-host"),
        Client::Here => (String::new(), ""),
    };
    let protocol = case.probe.protocol.name();
    format!("kubectl millrace explain{node} {}/{protocol}{from}", case.probe.target)
}

#[cfg(test)]
mod tests {
    use super::super::plan::ALL;
    use super::*;
    use crate::check::Outcome;
    use crate::echo::{Probe, Protocol};

    fn case(expected: Expected, requests: u16) -> Case {
        Case {
            test: ALL[0],
            client: Client::Pod { node: "node-1".to_owned() },
            probe: Probe {
                protocol: Protocol::Udp,
                target: "10.96.0.1:80".parse().unwrap(),
                requests,
                bytes: 64,
            },
            expected,
        }
    }

    fn answer(is_one: bool, is_source_kept: bool) -> Expected {
        Expected::Answer { servers: ["a", "b"].map(str::to_owned).into(), is_one, is_source_kept }
    }

    fn answered(server: &str, seen: &str) -> Reply {
        Reply::Answered {
            server: server.to_owned(),
            seen: seen.parse().unwrap(),
            own: "10.0.0.1:5".parse().unwrap(),
        }
    }

    fn found(expected: Expected, replies: &[Reply]) -> (Outcome, String) {
        let case = case(expected, replies.len().try_into().unwrap());
        let finding = judge(&[(&case, replies)]);
        (finding.outcome, finding.found.lines().last().unwrap().to_owned())
    }

    #[test]
    fn what_was_expected_passes_with_counts() {
        let (a, b) = (answered("a", "10.0.0.9:6"), answered("b", "10.0.0.1:5"));
        for (expected, replies, line) in [
            (answer(false, false), vec![a.clone(), b.clone()], "2 answered by 2 servers"),
            (answer(true, false), vec![a.clone(), a.clone()], "2 answered by 1 server"),
            (answer(false, true), vec![b], "1 answered by 1 server"),
            (Expected::Refusal, vec![Reply::Refused], "1 refused, as is right"),
            (
                Expected::NoAnswer,
                vec![Reply::Silent, Reply::Refused],
                "1 refused, as is right, 1 not answered, as is right",
            ),
        ] {
            assert_eq!(found(expected, &replies), (Outcome::Pass, line.to_owned()));
        }
    }

    #[test]
    fn what_went_wrong_is_named_with_client_target_and_reason() {
        let (a, b) = (answered("a", "10.0.0.9:6"), answered("b", "10.0.0.1:5"));
        let failed = Reply::Failed { why: "a answered in part".to_owned() };
        for (expected, replies, reason) in [
            (answer(false, false), vec![answered("c", "10.0.0.1:5")], "c answered, which is no choice here"),
            (answer(false, false), vec![a.clone(), Reply::Silent], "no answer (1 of 2)"),
            (
                answer(false, false),
                vec![Reply::Refused, failed],
                "a answered in part (1 of 2); refused (1 of 2)",
            ),
            (answer(true, false), vec![a.clone(), b], "a, b answered, where one was to answer all"),
            (answer(false, true), vec![a.clone()], "the server saw 10.0.0.9 in the place of 10.0.0.1"),
            (Expected::Refusal, vec![Reply::Silent], "no answer in the place of a refusal"),
            (Expected::NoAnswer, vec![a], "a answered, where nobody was to"),
        ] {
            let line = format!("a pod on node-1 > 10.96.0.1:80/udp: {reason}");
            assert_eq!(found(expected, &replies), (Outcome::Fail, line));
        }
    }

    #[test]
    fn a_client_that_says_nothing_and_a_server_that_takes_all_are_wrong() {
        let silent = case(answer(false, false), 4);
        let finding = judge(&[(&silent, &[])]);
        assert!(finding.found.ends_with("the client did not say what it met"), "{}", finding.found);
        assert_eq!(finding.remedy, "kubectl millrace explain --on node-1 10.96.0.1:80/udp --from-pod");
        let alone = vec![answered("a", "10.0.0.1:5"); FEW];
        assert_eq!(
            found(answer(false, false), &alone),
            (Outcome::Fail, "a alone answered all 20 requests".to_owned())
        );
        let case = case(answer(false, false), 1);
        let many = vec![(&case, [].as_slice()); 7];
        assert_eq!(judge(&many).found.lines().count(), 1 + MOST_LINES + 1);
    }
}
