//! The blocks of a section of code, the ways between them, and the registers in use.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::instruction::{Instruction, Next, Registers};

/// Instructions that run one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first instruction.
    pub start: usize,
    /// The instruction behind the last one.
    pub end: usize,
    /// The last instruction.
    pub last: usize,
    /// The target of its conditional jump; the other way leads to `end`.
    pub branch: Option<usize>,
    /// The blocks that may follow.
    next: Vec<usize>,
}

/// The blocks of a section.
pub struct Flow {
    /// The blocks, in their order.
    pub blocks: Vec<Block>,
    ways_in: BTreeMap<usize, usize>,
    live: BTreeMap<usize, Registers>,
}

impl Flow {
    /// Reads a section. Functions begin at `entries`.
    pub fn of(code: &[Instruction], entries: &BTreeSet<usize>) -> Result<Self> {
        let starts = starts(code, entries)?;
        let mut blocks = Vec::new();
        let ends = starts.iter().skip(1).copied().chain([code.len()]);
        for (start, end) in starts.iter().copied().zip(ends) {
            blocks.push(block(code, start, end)?);
        }
        let mut ways_in: BTreeMap<usize, usize> = entries.iter().map(|entry| (*entry, 1)).collect();
        for next in blocks.iter().flat_map(|block| &block.next) {
            *ways_in.entry(*next).or_default() += 1;
        }
        let live = live(code, &blocks);
        Ok(Self { blocks, ways_in, live })
    }

    /// Returns whether a jump is the only way to a block.
    pub fn has_one_way_in(&self, start: usize) -> bool {
        self.ways_in.get(&start) == Some(&1)
    }

    /// Returns the registers whose values are in use at the beginning of a block.
    pub fn live(&self, start: usize) -> Registers {
        self.live.get(&start).copied().unwrap_or(Registers::MAX)
    }
}

/// Returns the indices of all instructions, without the second halves of wide ones.
fn indices(code: &[Instruction], start: usize, end: usize) -> impl Iterator<Item = (usize, Instruction)> {
    let step = move |at: usize| code.get(at).map(|one| (at, *one)).filter(|(at, _)| *at < end);
    std::iter::successors(step(start), move |(at, one)| step(at + one.length()))
}

fn starts(code: &[Instruction], entries: &BTreeSet<usize>) -> Result<BTreeSet<usize>> {
    let mut starts = entries.clone();
    starts.insert(0);
    for (at, one) in indices(code, 0, code.len()) {
        match one.next() {
            Next::Following => continue,
            Next::Jump(distance) | Next::Branch(distance) => {
                starts.insert(target(at, distance)?);
            }
            Next::FollowingOrEnd | Next::End => {}
        }
        starts.insert(at + 1);
    }
    starts.remove(&code.len());
    ensure!(starts.last().is_none_or(|last| *last < code.len()), "a jump leaves its section");
    Ok(starts)
}

fn block(code: &[Instruction], start: usize, end: usize) -> Result<Block> {
    let (last, one) = indices(code, start, end).last().context("a block is empty")?;
    let mut next = Vec::new();
    let mut branch = None;
    match one.next() {
        Next::End => {}
        Next::Jump(distance) => next.push(target(last, distance)?),
        Next::Branch(distance) => {
            branch = Some(target(last, distance)?);
            next.extend(branch);
            next.push(end);
        }
        Next::Following | Next::FollowingOrEnd => next.push(end),
    }
    Ok(Block { start, end, last, branch, next })
}

/// Returns the target of a jump at `at`.
pub fn target(at: usize, distance: i64) -> Result<usize> {
    (at + 1).checked_add_signed(isize::try_from(distance)?).context("a jump leaves its section")
}

/// Returns the registers in use at the beginning of each block.
fn live(code: &[Instruction], blocks: &[Block]) -> BTreeMap<usize, Registers> {
    let mut live: BTreeMap<usize, Registers> = BTreeMap::new();
    loop {
        let mut is_stable = true;
        for block in blocks.iter().rev() {
            let after = block.next.iter().filter_map(|next| live.get(next)).fold(0, |all, one| all | one);
            let instructions: Vec<_> = indices(code, block.start, block.end).collect();
            let before =
                instructions.iter().rev().fold(after, |after, (_, one)| after & !one.writes() | one.reads());
            is_stable &= live.insert(block.start, before) == Some(before);
        }
        if is_stable {
            return live;
        }
    }
}
