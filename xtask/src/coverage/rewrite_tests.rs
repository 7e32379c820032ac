//! Small programs, run by a small interpreter with and without probes.

use std::collections::BTreeSet;

use super::*;
use crate::coverage::instruction::{CALL, OWN};

const EXIT: u8 = 0x95;
const MOVE: u8 = 0xb7;
const ADD: u8 = 0x07;
const IF_EQUAL: u8 = 0x15;

fn one(code: u8, destination: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, destination, source: 0, offset, immediate }
}

fn call(distance: i32) -> Instruction {
    Instruction { code: CALL, source: OWN, immediate: distance, ..Instruction::default() }
}

/// Runs code from an instruction with a value in r1. Returns r0, and the probes that it passed.
fn run(code: &[Instruction], entry: usize, input: i32) -> (i64, BTreeSet<usize>) {
    let (mut registers, mut at, mut passed, mut callers) = ([0_i64; 11], entry, BTreeSet::new(), Vec::new());
    registers[1] = input.into();
    for _ in 0..1000 {
        let one = code[at];
        let register = usize::from(one.destination);
        let jump = |distance: i64| target(at, distance).unwrap();
        at = match one.code {
            LOAD_WIDE => {
                registers[register] = one.immediate.into();
                at + 2
            }
            STORE_BYTE => {
                assert_eq!(one.immediate, 1);
                passed.insert(usize::try_from(registers[register]).unwrap());
                at + 1
            }
            MOVE => {
                registers[register] = one.immediate.into();
                at + 1
            }
            ADD => {
                registers[register] += i64::from(one.immediate);
                at + 1
            }
            IF_EQUAL if registers[register] == i64::from(one.immediate) => jump(one.offset.into()),
            IF_EQUAL => at + 1,
            GOTO => jump(one.offset.into()),
            CALL => {
                callers.push((at + 1, registers));
                jump(one.immediate.into())
            }
            EXIT => match callers.pop() {
                Some((back, saved)) => {
                    // A function keeps r6 to r10, and may change all others.
                    let result = registers[0];
                    registers = [-1; 11];
                    registers[6..].copy_from_slice(&saved[6..]);
                    registers[0] = result;
                    back
                }
                None => return (registers[0], passed),
            },
            other => panic!("an operation that no test has: {other:#x}"),
        };
    }
    panic!("a loop without end");
}

fn rewritten(code: &[Instruction], entries: &[usize]) -> Rewritten {
    rewrite(code, &entries.iter().copied().collect(), |_| false, 0).unwrap()
}

/// Returns the ways of all jumps that the passed probes tell, as pairs of old instructions.
fn ways(of: &Rewritten, passed: &BTreeSet<usize>) -> Vec<(usize, usize)> {
    let is_passed = |outcome: &&Outcome| passed.contains(&outcome.probe.unwrap());
    of.outcomes.iter().filter(is_passed).map(|outcome| (outcome.jump, outcome.to)).collect()
}

#[test]
fn each_way_of_a_jump_has_a_probe_also_if_both_lead_to_one_place() {
    // r0 = 7; if r1 == 5 goto 3; r0 += 1; exit
    let code = [one(MOVE, 0, 0, 7), one(IF_EQUAL, 1, 1, 5), one(ADD, 0, 0, 1), one(EXIT, 0, 0, 0)];
    let with_probes = rewritten(&code, &[0]);
    for (input, result, way) in [(5, 7, (1, 3)), (6, 8, (1, 2))] {
        let (found, passed) = run(&with_probes.code, 0, input);
        assert_eq!((found, ways(&with_probes, &passed)), (result, vec![way]));
    }
    // if r1 == 5 goto the next instruction
    let code = [one(MOVE, 0, 0, 7), one(IF_EQUAL, 1, 0, 5), one(EXIT, 0, 0, 0)];
    let with_probes = rewritten(&code, &[0]);
    let probes = [5, 6].map(|input| run(&with_probes.code, 0, input).1);
    assert_eq!(probes[0].symmetric_difference(&probes[1]).count(), 2, "{probes:?}");
}

#[test]
fn a_loop_and_a_wide_load_run_as_before() {
    // r0 = 0; r3 = wide 9; 3: if r1 == 0 goto 7; r0 += 10; r1 += -1; goto 3; 7: exit
    let wide = one(LOAD_WIDE, 3, 0, 9);
    let code = [
        one(MOVE, 0, 0, 0),
        wide,
        Instruction::default(),
        one(IF_EQUAL, 1, 3, 0),
        one(ADD, 0, 0, 10),
        one(ADD, 1, 0, -1),
        one(GOTO, 0, -4, 0),
        one(EXIT, 0, 0, 0),
    ];
    let with_probes = rewritten(&code, &[0]);
    let (result, passed) = run(&with_probes.code, 0, 4);
    assert_eq!(result, run(&code, 0, 4).0);
    assert_eq!(ways(&with_probes, &passed), [(3, 4), (3, 7)]);
    assert_eq!(ways(&with_probes, &run(&with_probes.code, 0, 0).1), [(3, 7)]);
    assert_eq!(with_probes.code[with_probes.moved[1]], wide);
    assert_eq!(with_probes.moved.len(), code.len());
}

#[test]
fn a_call_leads_to_the_probe_of_its_function() {
    // r6 = 3; call 4; r0 += 1; exit; 4: r0 = 40; exit
    let code = [
        one(MOVE, 6, 0, 3),
        call(2),
        one(ADD, 0, 0, 1),
        one(EXIT, 0, 0, 0),
        one(MOVE, 0, 0, 40),
        one(EXIT, 0, 0, 0),
    ];
    let with_probes = rewritten(&code, &[0, 4]);
    let (result, passed) = run(&with_probes.code, 0, 0);
    assert_eq!((result, passed.len()), (41, 2));
    let relocated = rewrite(&code, &[0, 4].into(), |at| at == 1, 0).unwrap();
    assert_eq!(relocated.code[relocated.moved[1]], code[1], "the loader writes this one");
}

#[test]
fn a_register_in_use_is_left_alone_and_without_a_free_one_there_is_no_probe() {
    // A value in each register, a jump, and another value in each register.
    let set = |register| one(MOVE, register, 0, register.into());
    let mut code: Vec<Instruction> = (0..10).map(set).collect();
    code.push(one(IF_EQUAL, 9, 0, 9));
    code.extend((0..10).map(set));
    code.push(one(EXIT, 0, 0, 0));
    assert!(rewritten(&code, &[0]).outcomes.iter().all(|outcome| outcome.probe.is_some()));
    // The same with code behind the jump that reads all former values.
    let read_all = (1..10).map(|source| Instruction { code: 0x0f, source, ..Instruction::default() });
    code.splice(11..11, read_all);
    let with_probes = rewritten(&code, &[0]);
    assert!(with_probes.outcomes.iter().all(|outcome| outcome.probe.is_none()));
    assert!(with_probes.blocks.iter().any(|block| block.start == 0 && block.probe.is_some()));
}

#[test]
fn a_jump_that_leaves_the_code_is_refused() {
    assert!(rewrite(&[one(GOTO, 0, 9, 0)], &BTreeSet::new(), |_| false, 0).is_err());
    assert!(rewrite(&[one(GOTO, 0, -9, 0)], &BTreeSet::new(), |_| false, 0).is_err());
}
