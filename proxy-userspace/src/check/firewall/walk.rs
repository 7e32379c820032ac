//! The walk of a packet through the base chains of a hook.

use super::packet::Packet;
use super::rule::{Truth, apply};
use crate::dataplane::ebpf::firewall::NEW_DEVICES;
use crate::dataplane::netlink::nftables::{Chain, INET, Ruleset, Set, Verdict};

/// The depth of jumps that is followed; the kernel's limit (NFT_JUMP_STACK_SIZE).
const DEPTH: usize = 16;

/// The place where a packet ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The table, in nft's words, such as `inet filter`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule's number; none for the policy of a base chain.
    pub rule: Option<u64>,
}

/// What becomes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Where it is dropped in any case.
    pub dropped: Option<Place>,
    /// Where it may be dropped, by what is not known of it.
    pub doubtful: Vec<Place>,
}

/// The end of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Accept,
    Drop,
    /// The chain is over without a verdict.
    Over,
}

struct Walk<'a> {
    ruleset: &'a Ruleset,
    packet: Packet,
    /// An earlier rule may have accepted the packet.
    may_be_over: bool,
    fate: Fate,
}

/// Walks through all base chains of these hooks, `NF_INET_*`. A chain of the packet's own family sees it, and
/// those of inet.
pub fn walk(ruleset: &Ruleset, packet: &Packet, hooks: &[u32]) -> Fate {
    let mut walk = Walk { ruleset, packet: packet.clone(), may_be_over: false, fate: Fate::default() };
    for hook in hooks {
        for chain in base_chains(ruleset, packet, *hook) {
            walk.may_be_over = false;
            let end = walk.chain(chain, false, 0);
            let drops = chain.base.as_ref().is_some_and(|base| base.drops);
            if end == End::Over && drops {
                walk.drop_at(chain, None, false);
            }
            if walk.fate.dropped.is_some() {
                return walk.fate;
            }
        }
    }
    walk.fate
}

fn base_chains<'a>(ruleset: &'a Ruleset, packet: &Packet, hook: u32) -> Vec<&'a Chain> {
    let own = if packet.is_v6 { 10 } else { 2 };
    let is_met = |chain: &&Chain| {
        let base = chain.base.as_ref();
        // The firewall's own rules drop what comes from pods that no agent has looked at, and no clients' packets.
        chain.table.name != NEW_DEVICES
            && [INET, own].contains(&chain.table.family)
            && base.is_some_and(|base| base.hook == hook && base.kind != "nat")
    };
    let mut chains: Vec<&Chain> = ruleset.chains.iter().filter(is_met).collect();
    chains.sort_by_key(|chain| chain.base.as_ref().map(|base| base.priority));
    chains
}

impl<'a> Walk<'a> {
    /// Walks through a chain. `is_doubtful` says that the packet may not come here.
    fn chain(&mut self, chain: &'a Chain, is_doubtful: bool, depth: usize) -> End {
        let mut is_doubtful = is_doubtful;
        let sets = &self.ruleset.sets;
        let set = |name: &str| -> Option<&'a Set> { sets.get(&(chain.table.clone(), name.to_owned())) };
        for rule in &chain.rules {
            let (truth, verdicts) = apply(rule, &mut self.packet, set);
            let is_unsure = is_doubtful || truth == Truth::Maybe || verdicts.len() > 1;
            for verdict in verdicts {
                match verdict {
                    Verdict::Drop => {
                        self.drop_at(chain, Some(rule.handle), is_unsure);
                        if !is_unsure {
                            return End::Drop;
                        }
                    }
                    Verdict::Accept | Verdict::Queue if is_unsure => self.may_be_over = true,
                    Verdict::Accept | Verdict::Queue => return End::Accept,
                    Verdict::Return if is_unsure => is_doubtful = true,
                    Verdict::Return => return End::Over,
                    Verdict::Jump(name) | Verdict::Goto(name) => {
                        let Some(next) = self.named(chain, name).filter(|_| depth < DEPTH) else {
                            self.may_be_over = true;
                            continue;
                        };
                        let end = self.chain(next, is_unsure, depth + 1);
                        if !is_unsure && (end != End::Over || matches!(verdict, Verdict::Goto(_))) {
                            return end;
                        }
                    }
                    Verdict::Continue => {}
                }
            }
        }
        End::Over
    }

    fn named(&self, beside: &Chain, name: &str) -> Option<&'a Chain> {
        self.ruleset.chains.iter().find(|chain| chain.table == beside.table && chain.name == name)
    }

    fn drop_at(&mut self, chain: &Chain, rule: Option<u64>, is_unsure: bool) {
        let place = Place { table: chain.table.words(), chain: chain.name.clone(), rule };
        if is_unsure || self.may_be_over {
            self.fate.doubtful.push(place);
        } else {
            self.fate.dropped = Some(place);
        }
        self.may_be_over |= is_unsure;
    }
}
