//! Commands that a host sends, and its answers to the target, as an input says.

use forebay_auth::{Question, Secrets, Side, augment};
use forebay_wire::nvme::auth::{ControllerMessage, HostMessage};

use super::Script;
use super::initiator::{command, on_blocks, words};
use super::line::{Asked, Line};
use super::target::{HOST_SECRET, SECRET_HOST, SECRET_NQN};

/// Blocks of 512 bytes that a conversation uses.
const BLOCKS: u32 = 64;
/// Maximum data in a capsule, bytes.
const IN_CAPSULE_BYTES: usize = 8192;

/// A command of an I/O queue.
pub(super) struct AskedFor {
    pub(super) entry: [u8; 64],
    /// First block and number of blocks.
    blocks: (u64, u64),
    /// Data to be sent later: bytes, or one value for all of them.
    data: Result<Vec<u8>, u8>,
    pub(super) in_capsule: Vec<u8>,
}

impl AskedFor {
    pub(super) fn put(self, line: &mut Line<'_>) {
        let value = |data: &Result<Vec<u8>, u8>| *data.as_ref().err().unwrap_or(&0);
        match self.entry[0] {
            0x02 => line.read_blocks(self.entry, self.blocks.0),
            // Compare takes data, too.
            0x01 | 0x05 | 0x08 | 0x09 => {
                let (first, count) = self.blocks;
                let blocks = (first, if self.entry[0] == 0x05 { 0 } else { count });
                let value = if self.entry[0] == 0x08 {
                    0
                } else {
                    value(&self.data)
                };
                line.write_blocks(self.entry, blocks, (value, self.data), &self.in_capsule);
            }
            _ => line.command(self.entry, &self.in_capsule),
        }
    }
}

/// Sets the identifier of a command, usually an unused one.
fn identify(entry: &mut [u8; 64], number: u16, how: u8) {
    let number = if how & 0x38 == 0x38 {
        u16::from(how & 7)
    } else {
        number
    };
    entry[2..4].copy_from_slice(&number.to_le_bytes());
}

/// Returns an I/O command with its in-capsule data, with mostly valid fields.
pub(super) fn io_command(number: u16, script: &mut Script<'_>) -> AskedFor {
    const OPCODES: [u8; 10] = [0x02, 0x01, 0x01, 0x00, 0x08, 0x09, 0x05, 0x0c, 0x7f, 0xc1];
    let how = script.byte();
    let opcode = OPCODES[script.below(OPCODES.len())];
    let first = match script.byte() {
        // Near the end of the disk, and of the number range.
        far @ 252.. => [127, 128, u64::MAX, u64::MAX - 5][usize::from(far & 3)],
        near => u64::from(near) % u64::from(BLOCKS),
    };
    let count = u32::from(script.byte()) % BLOCKS + 1;
    let mut entry = on_blocks(opcode, first, count, u32::from(how >> 7) << 30);
    identify(&mut entry, number, how);
    if how & 0x7c == 0x7c {
        entry[4] = script.byte();
    }
    let bytes = match script.below(8) {
        0 => script.byte().into(),
        _ if opcode == 0x09 => 16,
        _ => count as usize * 512,
    };
    let (kind, requested) = match (opcode, script.below(8)) {
        (0x00 | 0x08 | 0x0c, 0..7) => (0x5a, None),
        (0x02, 0..7) | (_, 0..4) => (0x5a, Some(bytes)),
        (_, 4..7) => (0x01, Some(bytes.min(IN_CAPSULE_BYTES))),
        _ => (script.byte(), Some(bytes)),
    };
    let length = u32::try_from(requested.unwrap_or(0)).expect("small");
    let data = if opcode == 0x09 {
        // One range; deallocate.
        entry[40..48].copy_from_slice(&[0, 0, 0, 0, 4, 0, 0, 0]);
        let mut range = vec![0; 4];
        range.extend(count.to_le_bytes());
        range.extend(first.to_le_bytes());
        Ok(range)
    } else {
        Err(number as u8)
    };
    entry[32..36].copy_from_slice(&length.to_le_bytes());
    entry[39] = kind;
    let in_capsule = match (kind, &data) {
        (1, Ok(range)) => range
            .iter()
            .copied()
            .chain([0; IN_CAPSULE_BYTES])
            .take(length as usize)
            .collect(),
        (1, Err(value)) => vec![*value; length as usize],
        _ => Vec::new(),
    };
    AskedFor {
        entry,
        blocks: (first, count.into()),
        data,
        in_capsule,
    }
}

/// Returns an authentication command with its message, with mostly valid fields, and sometimes with
/// the secret.
pub(super) fn authentication(
    number: u16,
    heard: &[u8],
    script: &mut Script<'_>,
) -> ([u8; 64], Vec<u8>) {
    let (how, kind) = (script.byte(), script.below(10));
    let mut message = match kind {
        0..4 => Vec::new(),
        4..6 => {
            let mut offer = vec![0, 0, 0, 0, 9, 0, 0, 1, 1, 0, 1, 1, how % 4];
            offer.resize(72, 0);
            // A supported group takes time and a thread.
            offer[42] = if how > 0xf0 { 9 } else { 0 };
            offer
        }
        6 | 7 => reply(heard).unwrap_or_default(),
        8 => [
            &[1, 2, 0, 0, 9, 0, 32, 0, how & 1, 0, 0, 0, 1, 0, 0, 0][..],
            &[how; 64],
        ]
        .concat(),
        _ => vec![1, 4, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    if script.below(8) == 0 {
        let at = script.below(message.len().max(1));
        message.truncate(at);
    }
    let length = if kind < 4 { 4096 } else { message.len() };
    let length = u32::try_from(length).expect("small");
    let mut entry = command(
        0x7f,
        if kind < 4 { 6 } else { 5 },
        words(&[0xe901_0100, length]),
    );
    identify(&mut entry, number, how);
    entry[32..36].copy_from_slice(&length.to_le_bytes());
    entry[39] = if message.is_empty() { 0x5a } else { 0x01 };
    (entry, message)
}

/// Returns the reply of the host with the secret, if it was challenged.
fn reply(heard: &[u8]) -> Option<Vec<u8>> {
    let (transaction, message) = ControllerMessage::decode(heard).ok()?;
    let ControllerMessage::Challenge {
        hash,
        sequence,
        value,
        ..
    } = message
    else {
        return None;
    };
    let secrets = Secrets::parse(&format!("{SECRET_HOST} {HOST_SECRET}")).expect("a line");
    let question = Question {
        side: Side::Host,
        hash,
        challenge: &augment(hash, value, None),
        sequence,
        transaction,
        host: SECRET_HOST,
        subsystem: SECRET_NQN,
    };
    let own = &secrets.of(SECRET_HOST)?.own;
    let reply = HostMessage::Reply {
        response: &question.answer(&own.key(SECRET_HOST)),
        challenge: None,
        public: &[],
    };
    Some(reply.encode(transaction))
}

/// Returns a command that sets a property of the controller.
pub(super) fn set_property(offset: u32, value: u32) -> [u8; 64] {
    let mut entry = command(0x7f, 0, words(&[0, offset, value]));
    entry[2] = 0xf0;
    entry[39] = 0x5a;
    entry
}

/// Returns an admin command.
pub(super) fn admin_command(number: u16, script: &mut Script<'_>) -> [u8; 64] {
    let value = u32::from(script.byte());
    // One of the last commands.
    let victim = u32::from(number.saturating_sub(1 + (value >> 2 & 7) as u16));
    let mut entry = match script.below(10) {
        0 => command(0x18, 0, [0; 6]),
        1 => command(0x0c, 0, [0; 6]),
        2 => command(0x08, 0, words(&[value & 3 | victim << 16])),
        3 => set_property(0x14, 0x46_0001),
        4 => set_property(0x14, 0x46_0000),
        5 => set_property(0x14, 0x46_0001 | (value & 3) << 14),
        6 => command(0x06, value & 1, words(&[value >> 4])),
        7 => command(0x02, 0, words(&[value & 0x0f | 15 << 16])),
        8 => command(0x09, 0, words(&[value & 0x0f, 1])),
        _ => command(0x7f, 4, words(&[value & 1, value & 0x1c])),
    };
    identify(&mut entry, number, script.byte());
    if matches!(entry[0], 0x02 | 0x06) {
        let length = if entry[0] == 0x06 { 4096_u32 } else { 64 };
        entry[32..36].copy_from_slice(&length.to_le_bytes());
    }
    entry[39] = 0x5a;
    entry
}

/// Answers the oldest R2T, correctly or not.
pub(super) fn answer(line: &mut Line<'_>, script: &mut Script<'_>) {
    let Some(asked) = line.asked.pop_front() else {
        return;
    };
    let Asked {
        cid,
        tag,
        offset,
        length,
    } = asked;
    let requested = |cid, tag, offset, length| Asked {
        cid,
        tag,
        offset,
        length,
    };
    match script.below(20) {
        0 => {
            let other = tag ^ u16::from(script.byte());
            line.data(cid, requested(cid, other, offset, length), true);
        }
        1 => line.data(cid, requested(cid ^ 1, tag, offset, length), true),
        2 => line.data(cid, requested(cid, tag, offset + 512, length), true),
        3 => line.data(cid, requested(cid, tag, offset, length / 2), true),
        4 => line.data(cid, requested(cid, tag, offset, length), false),
        5 => line.data(cid, requested(cid, tag, offset, length / 2), false),
        6 => line.data_cut_off(cid, tag, length),
        _ => {
            let half = (length / 2) & !3;
            line.data(cid, requested(cid, tag, offset, half), false);
            line.data(cid, requested(cid, tag, offset + half, length - half), true);
        }
    }
}
