//! Puts probes into code: one at the beginning of each block, and one on each way of a conditional jump.
//!
//! A probe is three instructions. They load the address of its byte in the map of probes into a
//! register that is not in use, and store 1 there. Programs with probes decide as before: no value in use
//! changes, and the stack is left alone.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::flow::{Flow, target};
use super::instruction::{GOTO, Instruction, LOAD_WIDE, Next, Registers, STORE_BYTE};

/// Code with probes. Indices of the code before are called old.
#[derive(Debug, Default)]
pub struct Rewritten {
    /// The instructions.
    pub code: Vec<Instruction>,
    /// The new index of each old instruction.
    pub moved: Vec<usize>,
    /// The new index to which a jump or call of each old instruction leads: the probe in front of it.
    pub entry: Vec<usize>,
    /// The new index of each probe's load.
    pub loads: Vec<usize>,
    /// The blocks.
    pub blocks: Vec<Covered>,
    /// The two ways of each conditional jump.
    pub outcomes: Vec<Outcome>,
}

/// A block with its probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The first old instruction.
    pub start: usize,
    /// The old instruction behind the last one.
    pub end: usize,
    /// The number of its probe; `None` if all registers are in use.
    pub probe: Option<usize>,
}

/// One way of a conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The old jump.
    pub jump: usize,
    /// The old instruction to which it leads.
    pub to: usize,
    /// The number of its probe; `None` if all registers are in use.
    pub probe: Option<usize>,
}

/// Puts probes into a section. `is_relocated` tells the calls whose target the loader writes. The first probe has
/// the number `first`.
pub fn rewrite(
    code: &[Instruction],
    entries: &BTreeSet<usize>,
    is_relocated: impl Fn(usize) -> bool,
    first: usize,
) -> Result<Rewritten> {
    let flow = Flow::of(code, entries)?;
    let mut writer = Writer { first, out: Rewritten::default(), jumps: Vec::new() };
    for block in &flow.blocks {
        writer.out.entry.push(writer.out.code.len());
        let probe = writer.probe(flow.live(block.start));
        writer.out.blocks.push(Covered { start: block.start, end: block.end, probe });
        for at in block.start..block.end {
            // Other instructions of the block have no probe in front.
            if at > block.start {
                writer.out.entry.push(writer.out.code.len());
            }
            writer.out.moved.push(writer.out.code.len());
            let one = *code.get(at).context("a block leaves its section")?;
            match block.branch {
                Some(taken) if at == block.last => writer.branch(one, (at, taken, block.end), &flow),
                _ => writer.copy(one, at, &is_relocated)?,
            }
        }
    }
    // A block's probe tells also about the only way to it.
    let probe_of = |start: usize| {
        let index = writer.out.blocks.binary_search_by_key(&start, |block| block.start).ok()?;
        writer.out.blocks.get(index)?.probe
    };
    let found: Vec<Option<usize>> = writer.out.outcomes.iter().map(|outcome| probe_of(outcome.to)).collect();
    for (outcome, found) in writer.out.outcomes.iter_mut().zip(found) {
        if flow.has_one_way_in(outcome.to) {
            outcome.probe = found;
        }
    }
    writer.finish()
}

struct Writer {
    first: usize,
    out: Rewritten,
    /// Jumps and calls by their new index, with their old target.
    jumps: Vec<(usize, usize)>,
}

impl Writer {
    /// Writes a probe, and returns its number.
    fn probe(&mut self, live: Registers) -> Option<usize> {
        let register = (0..10).find(|register| live & 1 << register == 0)?;
        let number = self.first + self.out.loads.len();
        self.out.loads.push(self.out.code.len());
        let immediate = i32::try_from(number).ok()?;
        let load =
            Instruction { code: LOAD_WIDE, destination: register, immediate, ..Instruction::default() };
        let store =
            Instruction { code: STORE_BYTE, destination: register, immediate: 1, ..Instruction::default() };
        self.out.code.extend([load, Instruction::default(), store]);
        Some(number)
    }

    fn copy(&mut self, one: Instruction, at: usize, is_relocated: impl Fn(usize) -> bool) -> Result<()> {
        let distance = match one.next() {
            Next::Jump(distance) => Some(distance),
            _ if one.is_own_call() && !is_relocated(at) => Some(one.immediate.into()),
            _ => None,
        };
        if let Some(distance) = distance {
            self.jumps.push((self.out.code.len(), target(at, distance)?));
        }
        self.out.code.push(one);
        Ok(())
    }

    /// Writes a conditional jump. A way that is not the only one to its block gets a probe of its own.
    fn branch(&mut self, one: Instruction, (jump, taken, otherwise): (usize, usize, usize), flow: &Flow) {
        let at = self.out.code.len();
        self.out.code.push(one);
        let needs_own = !flow.has_one_way_in(otherwise);
        let probe = needs_own.then(|| self.probe(flow.live(otherwise))).flatten();
        self.out.outcomes.push(Outcome { jump, to: otherwise, probe });
        if flow.has_one_way_in(taken) {
            self.jumps.push((at, taken));
            return self.out.outcomes.push(Outcome { jump, to: taken, probe: None });
        }
        // The jump leads to a probe behind the other way, which passes over it.
        let skip = self.out.code.len();
        self.out.code.push(goto(0));
        let before = self.out.code.len();
        let probe = self.probe(flow.live(taken));
        self.jumps.push((self.out.code.len(), taken));
        self.out.code.push(goto(0));
        self.set_distance(at, before);
        self.set_distance(skip, self.out.code.len());
        self.out.outcomes.push(Outcome { jump, to: taken, probe });
    }

    /// Sets the offset of a jump over a probe, which is short.
    fn set_distance(&mut self, at: usize, to: usize) {
        let distance = i16::try_from(to - at - 1).unwrap_or(i16::MAX);
        if let Some(jump) = self.out.code.get_mut(at) {
            jump.offset = distance;
        }
    }

    /// Gives each jump and call its distance in the new code.
    fn finish(mut self) -> Result<Rewritten> {
        for (at, target) in self.jumps {
            let to = *self.out.entry.get(target).context("a jump leaves its section")?;
            let distance = i64::try_from(to)? - i64::try_from(at)? - 1;
            let one = self.out.code.get_mut(at).context("a jump is not in the code")?;
            match one.next() {
                Next::Jump(_) if one.code != GOTO => one.immediate = i32::try_from(distance)?,
                Next::Jump(_) | Next::Branch(_) => {
                    one.offset = i16::try_from(distance).context("a jump is too far with probes")?;
                }
                _ => one.immediate = i32::try_from(distance)?,
            }
        }
        Ok(self.out)
    }
}

fn goto(offset: i16) -> Instruction {
    Instruction { code: GOTO, offset, ..Instruction::default() }
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
