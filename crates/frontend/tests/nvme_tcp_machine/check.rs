//! What holds for every conversation with the NVMe/TCP target, whatever a host says: each connection ends when its
//! host has, nothing is left of it, and others are served. Run by the seeded test beside this file and by the fuzz
//! target `nvme_connection`.

#[allow(
    dead_code,
    reason = "shared with the tests of well-behaved hosts, which use more of it"
)]
#[path = "../nvme_tcp/initiator.rs"]
pub(crate) mod initiator;
#[path = "line.rs"]
pub(crate) mod line;
#[allow(dead_code, reason = "as above")]
#[path = "../nvme_tcp/target.rs"]
pub(crate) mod target;

use std::sync::Arc;
use std::time::{Duration, Instant};

use initiator::{Association, Identity, Style, With, command, on_blocks, words};
use line::{Asked, Line};
use target::{NQN, SECRET_HOST, SECRET_NQN, Target};

/// What takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections of one conversation.
const MOST_LINES: usize = 8;
/// Blocks of 512 bytes that a conversation is about.
const BLOCKS: u32 = 64;

/// Where the bytes of an input are taken from.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// The next byte; zero after the last.
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn below(&mut self, below: usize) -> usize {
        usize::from(self.byte()) % below
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// A host, or several, as an input wants them.
struct Conversation<'t> {
    target: &'t Target,
    lines: Vec<Line>,
    at: usize,
    /// The last controller that was made, and the host that has made it.
    controller: u16,
    host: u8,
}

/// Holds the conversation that `input` describes with the target. Returns how many commands the target has answered
/// well: what tells an input that comes to something from one that is refused at the door.
///
/// # Panics
/// If a connection does not end, something is left of it, or others are not served.
pub(crate) fn any_conversation(target: &Target, input: &[u8]) -> usize {
    let mut talk = Conversation {
        target,
        lines: Vec::new(),
        at: 0,
        controller: 1,
        host: 0,
    };
    let mut script = Script(input);
    while !script.0.is_empty() {
        talk.step(&mut script);
    }
    let mut answered = 0;
    for line in &talk.lines {
        line.say_no_more();
    }
    for line in talk.lines {
        answered += line.end(PATIENCE);
    }
    nothing_is_left(target);
    still_served(target);
    answered
}

/// Waits until no host has an association and no request is on its way.
pub(crate) fn nothing_is_left(target: &Target) {
    let begin = Instant::now();
    loop {
        // Each controller keeps its subsystem; each queue, and each command of it, its controller.
        let kept = |subsystem| Arc::strong_count(subsystem) - 2;
        let controllers = kept(&target.subsystem) + kept(&target.secret);
        let in_flight = target.volume.stats().in_flight;
        if controllers == 0 && in_flight == 0 {
            return;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{controllers} controllers and {in_flight} requests are left"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A host that behaves is served.
pub(crate) fn still_served(target: &Target) {
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    let read = on_blocks(0x02, 0, 1, 0);
    assert_eq!(queue.call(read, With::Room(512)).status, 0);
    drop((queue, host));
    nothing_is_left(target);
}

impl Conversation<'_> {
    fn step(&mut self, script: &mut Script<'_>) {
        // What ends a connection is drawn seldom: most is to come to something.
        let action = script.below(32);
        if self.lines.is_empty() || action < 4 {
            self.connect(action & 1, script);
            return;
        }
        let at = self.at % self.lines.len();
        let line = &mut self.lines[at];
        match action {
            4..=7 => self.at = script.below(MOST_LINES),
            8 => {
                let count = script.below(64);
                line.say(script.bytes(count));
            }
            9 => {
                let (entry, data) = io_command(script);
                line.command(entry, &data, Some((script.byte(), script.below(8))));
            }
            10 => line.say_no_more(),
            11 => self.lines.swap_remove(at).end_at_once(),
            12..=15 => line.command(admin_command(script), &[], None),
            16..=17 => line.pump(),
            18..=21 => {
                line.pump();
                answer(line, script);
            }
            22..=24 => {
                let (entry, data) = authentication(script);
                line.command(entry, &data, None);
            }
            _ => {
                let (entry, data) = io_command(script);
                line.command(entry, &data, None);
            }
        }
    }

    /// A new connection, and as far as the input wants on the way to a queue.
    fn connect(&mut self, action: usize, script: &mut Script<'_>) {
        if self.lines.len() >= MOST_LINES {
            self.lines.swap_remove(0).end_at_once();
        }
        let how = script.byte();
        let mut line = Line::open(self.target.address);
        if how & 0x0c == 0x0c {
            // It has said nothing yet.
            self.lines.push(line);
            return;
        }
        line.initialize(how & 1 != 0, how & 2 != 0);
        if action == 0 {
            // Mostly another host: one that comes back waits for what it has asked for before.
            self.host = if how < 0xf8 {
                self.host.wrapping_add(1)
            } else {
                0
            };
        }
        let (queue, controller) = match action {
            0 => (0, 0xffff),
            _ => (u16::from(how >> 4 & 3), self.controller),
        };
        // Some go where they have to prove themselves, and cannot.
        let who = match how % 7 {
            0 => (self.host, SECRET_NQN, SECRET_HOST),
            _ => (self.host, NQN, "nqn.2026-11.io.forebay:anybody"),
        };
        if let Some(controller) = line.connect(who, queue, controller) {
            self.controller = controller;
            if action == 0 && how & 0x70 != 0 {
                line.command(set_property(0x14, 0x46_0001), &[], None);
                line.pump();
            }
        }
        self.lines.push(line);
        self.at = self.lines.len() - 1;
    }
}

/// A command of an I/O queue with the data of its capsule: right in most of its fields.
fn io_command(script: &mut Script<'_>) -> ([u8; 64], Vec<u8>) {
    const OPCODES: [u8; 10] = [0x02, 0x01, 0x01, 0x00, 0x08, 0x09, 0x05, 0x0c, 0x7f, 0xc1];
    let how = script.byte();
    let opcode = OPCODES[script.below(OPCODES.len())];
    let first = u64::from(script.byte()) % u64::from(BLOCKS);
    let count = u32::from(script.byte()) % BLOCKS + 1;
    let mut entry = on_blocks(opcode, first, count, u32::from(how >> 7) << 30);
    entry[2] = how & 7;
    if how & 0x78 == 0x78 {
        entry[4] = script.byte();
    }
    let bytes = match script.below(8) {
        0 => script.byte().into(),
        _ if opcode == 0x09 => 16,
        _ => count as usize * 512,
    };
    let (kind, data) = match (opcode, script.below(8)) {
        (0x00 | 0x08 | 0x0c, 0..7) => (0x5a, None),
        (0x02, 0..7) | (_, 0..4) => (0x5a, Some(bytes)),
        (_, 4..7) => (0x01, Some(bytes.min(8192))),
        _ => (script.byte(), Some(bytes)),
    };
    let length = u32::try_from(data.unwrap_or(0)).expect("small");
    if opcode == 0x09 {
        // One range; deallocate.
        entry[40..48].copy_from_slice(&[0, 0, 0, 0, 4, 0, 0, 0]);
    }
    entry[32..36].copy_from_slice(&length.to_le_bytes());
    entry[39] = kind;
    let in_capsule = kind == 1 && length > 0;
    (
        entry,
        if in_capsule {
            vec![7; bytes.min(8192)]
        } else {
            vec![]
        },
    )
}

/// A command of authentication with its message: right in most of its fields, and without the secret.
fn authentication(script: &mut Script<'_>) -> ([u8; 64], Vec<u8>) {
    let (how, kind) = (script.byte(), script.below(10));
    let mut message = match kind {
        0..4 => Vec::new(),
        4..7 => {
            let mut offer = vec![0, 0, 0, 0, 9, 0, 0, 1, 1, 0, 1, 1, how % 4];
            offer.resize(72, 0);
            // Now and then a group, which costs time.
            offer[42] = u8::from(how > 0xf0);
            offer
        }
        7 | 8 => [
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
    entry[2] = how & 7;
    entry[32..36].copy_from_slice(&length.to_le_bytes());
    entry[39] = if message.is_empty() { 0x5a } else { 0x01 };
    (entry, message)
}

/// A command that sets a property of the controller.
fn set_property(offset: u32, value: u32) -> [u8; 64] {
    let mut entry = command(0x7f, 0, words(&[0, offset, value]));
    entry[39] = 0x5a;
    entry
}

/// A command of an admin queue.
fn admin_command(script: &mut Script<'_>) -> [u8; 64] {
    let value = u32::from(script.byte());
    let mut entry = match script.below(10) {
        0 => command(0x18, 0, [0; 6]),
        1 => command(0x0c, 0, [0; 6]),
        2 => command(0x08, 0, words(&[value & 3 | (value >> 2 & 7) << 16])),
        3 => set_property(0x14, 0x46_0001),
        4 => set_property(0x14, 0x46_0000),
        5 => set_property(0x14, 0x46_0001 | (value & 3) << 14),
        6 => command(0x06, value & 1, words(&[value >> 4])),
        7 => command(0x02, 0, words(&[value & 0x0f | 15 << 16])),
        8 => command(0x09, 0, words(&[value & 0x0f, 1])),
        _ => command(0x7f, 4, words(&[value & 1, value & 0x1c])),
    };
    entry[2] = script.byte() & 0x0f;
    if matches!(entry[0], 0x02 | 0x06) {
        let length = if entry[0] == 0x06 { 4096_u32 } else { 64 };
        entry[32..36].copy_from_slice(&length.to_le_bytes());
    }
    entry[39] = 0x5a;
    entry
}

/// Answers the oldest request for data, rightly or not.
fn answer(line: &mut Line, script: &mut Script<'_>) {
    let Some(Asked {
        cid,
        tag,
        offset,
        length,
    }) = line.asked.pop_front()
    else {
        return;
    };
    match script.below(20) {
        0 => line.data(cid, tag ^ u16::from(script.byte()), offset, length, true),
        1 => line.data(cid ^ 1, tag, offset, length, true),
        2 => line.data(cid, tag, offset + 512, length, true),
        3 => line.data(cid, tag, offset, length / 2, true),
        4 => line.data(cid, tag, offset, length, false),
        5 => line.data(cid, tag, offset, length / 2, false),
        6 => line.data_cut_off(cid, tag, length),
        _ => {
            let half = (length / 2) & !3;
            line.data(cid, tag, offset, half, false);
            line.data(cid, tag, offset + half, length - half, true);
        }
    }
}
