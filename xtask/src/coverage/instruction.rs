//! One BPF instruction: its fields, its jump, and the registers that it reads and writes.

/// The size of an instruction in bytes.
pub const SIZE: usize = 8;
/// `r = 64-bit immediate`. It takes two instructions.
pub const LOAD_WIDE: u8 = 0x18;
/// `call`.
pub const CALL: u8 = 0x85;
/// The source register of a call of the object's own functions.
pub const OWN: u8 = 1;
/// `exit`.
const EXIT: u8 = 0x95;
/// `goto`.
pub const GOTO: u8 = 0x05;
/// `goto` with an offset of 32 bits.
const GOTO_FAR: u8 = 0x06;
/// `*(u8 *)(r + offset) = immediate`.
pub const STORE_BYTE: u8 = 0x72;
/// The helper that ends the program if it succeeds.
const TAIL_CALL: i32 = 12;

/// A set of registers, one bit each.
pub type Registers = u16;

const ALL: Registers = 0x3ff;
/// r1 to r5, which hold the arguments of a call.
const ARGUMENTS: Registers = 0x3e;

/// An instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u8,
    /// The first register.
    pub destination: u8,
    /// The second register.
    pub source: u8,
    /// The offset of a jump or of an address.
    pub offset: i16,
    /// The immediate value.
    pub immediate: i32,
}

/// Where the processor goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To the next instruction.
    Following,
    /// To the next instruction, unless the program ends here.
    FollowingOrEnd,
    /// To the instruction this far behind the next one.
    Jump(i64),
    /// To that one, or to the next instruction.
    Branch(i64),
    /// Nowhere: the function ends.
    End,
}

impl Instruction {
    /// Reads an instruction.
    pub fn decode(bytes: [u8; SIZE]) -> Self {
        let [code, registers, o0, o1, i0, i1, i2, i3] = bytes;
        Self {
            code,
            destination: registers & 0xf,
            source: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            immediate: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    /// Writes an instruction.
    pub fn encode(self) -> [u8; SIZE] {
        let [o0, o1] = self.offset.to_le_bytes();
        let [i0, i1, i2, i3] = self.immediate.to_le_bytes();
        [self.code, self.source << 4 | self.destination, o0, o1, i0, i1, i2, i3]
    }

    /// Returns the number of instructions that it takes.
    pub fn length(self) -> usize {
        if self.code == LOAD_WIDE { 2 } else { 1 }
    }

    /// Returns whether it calls a function of the object.
    pub fn is_own_call(self) -> bool {
        self.code == CALL && self.source == OWN
    }

    /// Returns where the processor goes next.
    pub fn next(self) -> Next {
        match self.code {
            EXIT => Next::End,
            GOTO => Next::Jump(self.offset.into()),
            GOTO_FAR => Next::Jump(self.immediate.into()),
            CALL if self.source == 0 && self.immediate == TAIL_CALL => Next::FollowingOrEnd,
            CALL => Next::Following,
            _ if self.is_of_class(&[5, 6]) => Next::Branch(self.offset.into()),
            _ => Next::Following,
        }
    }

    /// Returns the registers that it reads, or may read.
    pub fn reads(self) -> Registers {
        let (destination, source) = (bit(self.destination), bit(self.source));
        let by_register = if self.code & 8 == 0 { 0 } else { source };
        match self.code & 7 {
            // Old loads of packet bytes read more.
            0 if self.code != LOAD_WIDE => ALL,
            0 => 0,
            1 => source,
            2 => destination,
            // An atomic operation may compare with r0.
            3 => destination | source | bit(0),
            4 | 7 => match self.code & 0xf0 {
                0xb0 => by_register,
                // Negation, and the change of byte order, whose bit 8 names no register.
                0x80 | 0xd0 => destination,
                _ => destination | by_register,
            },
            _ if self.code == CALL => ARGUMENTS,
            _ if self.code == EXIT => bit(0),
            _ if matches!(self.code, GOTO | GOTO_FAR) => 0,
            _ => destination | by_register,
        }
    }

    /// Returns the registers whose former value is lost for sure.
    pub fn writes(self) -> Registers {
        match self.code & 7 {
            0 if self.code == LOAD_WIDE => bit(self.destination),
            1 | 4 | 7 => bit(self.destination),
            _ if self.code == CALL => ARGUMENTS | bit(0),
            _ => 0,
        }
    }

    fn is_of_class(self, classes: &[u8]) -> bool {
        classes.contains(&(self.code & 7))
    }
}

/// Returns the set with one register. The frame pointer is in no set.
fn bit(register: u8) -> Registers {
    if register < 10 { 1 << register } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_written_as_it_was_read() {
        // if r3 s> -7 goto -2
        let bytes = [0x65, 0x03, 0xfe, 0xff, 0xf9, 0xff, 0xff, 0xff];
        let read = Instruction::decode(bytes);
        assert_eq!((read.destination, read.offset, read.immediate), (3, -2, -7));
        assert_eq!((read.encode(), read.next()), (bytes, Next::Branch(-2)));
    }

    #[test]
    fn registers_are_those_of_the_operation() {
        let of = |code| {
            let one = Instruction { code, destination: 1, source: 2, ..Instruction::default() };
            (one.reads(), one.writes())
        };
        let (one, two) = (bit(1), bit(2));
        assert_eq!(of(0xbf), (two, one), "r1 = r2");
        assert_eq!(of(0xb7), (0, one), "r1 = 7");
        assert_eq!(of(0x0f), (one | two, one), "r1 += r2");
        assert_eq!(of(0x79), (two, one), "r1 = *(u64 *)(r2 + 0)");
        assert_eq!(of(0x7b), (one | two | bit(0), 0), "*(u64 *)(r1 + 0) = r2");
        assert_eq!(of(0xdc), (one, one), "r1 = be16 r1");
        assert_eq!(of(0x1d), (one | two, 0), "if r1 == r2 goto");
        assert_eq!(of(CALL), (ARGUMENTS, ARGUMENTS | bit(0)));
        assert_eq!(of(EXIT), (bit(0), 0));
    }
}
