//! Properties of every conversation with the NVMe/TCP target, whatever a host sends. Each
//! connection ends when its host has closed it, nothing of it remains, other hosts are served,
//! answers are well-formed, and blocks have the written content. The seeded tests in this folder
//! and the fuzz target `nvme_connection` run it.

#[path = "disk.rs"]
pub(crate) mod disk;
#[path = "here.rs"]
pub(crate) mod here;
#[allow(
    dead_code,
    reason = "shared with the tests of well-behaved hosts, which use more of it"
)]
#[path = "../nvme_tcp/initiator.rs"]
pub(crate) mod initiator;
#[path = "line.rs"]
pub(crate) mod line;
#[path = "model.rs"]
pub(crate) mod model;
#[allow(dead_code, reason = "as above")]
#[path = "../nvme_tcp/target.rs"]
pub(crate) mod target;

use std::cell::RefCell;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_auth::{Question, Secrets, Side, augment};
use forebay_frontend::nvme_tcp::Subsystem;
use forebay_volume::VolumeHandle;
use forebay_wire::nvme::auth::{ControllerMessage, HostMessage};

use initiator::{command, on_blocks, words};
use line::{Asked, Line};
use model::Model;
use target::{HOST_SECRET, NQN, SECRET_HOST, SECRET_NQN};

/// Time after which the target counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of connections of a conversation.
const MOST_LINES: usize = 8;
/// Blocks of 512 bytes that a conversation uses.
const BLOCKS: u32 = 64;
/// Blocks of the disk. The unused ones must stay unchanged.
const DISK_BLOCKS: usize = 128;
/// Maximum data in a capsule, bytes.
const IN_CAPSULE_BYTES: usize = 8192;
/// Name of all hosts.
const ANYBODY: &str = "nqn.2026-11.io.forebay:anybody";

/// A target, in any environment.
pub(crate) trait Partner {
    /// Connects to it.
    fn call(&self) -> TcpStream;

    /// Returns the target's time.
    fn now(&self) -> Duration;

    /// Returns the time limit of a required answer, by the target's clock.
    fn answer_time(&self) -> Duration;

    /// Lets the target run for a moment.
    fn pause(&self);

    /// Advances the target's time, if its clock is virtual.
    fn pass(&self, _time: Duration) {}

    /// Sets the duration of the device's requests, if possible.
    fn slow(&self, _time: Duration) {}

    /// Returns the subsystems [`NQN`] and [`SECRET_NQN`].
    fn subsystems(&self) -> [&Arc<Subsystem>; 2];

    fn volume(&self) -> &VolumeHandle;

    /// Returns whether the disk has zeroes before a conversation.
    fn is_fresh(&self) -> bool {
        false
    }

    /// Returns the disk's content, if it is accessible, and zeroes the disk.
    fn take_contents(&self) -> Option<Vec<u8>> {
        None
    }
}

/// Bytes of an input.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Returns the next byte; zero after the last.
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

/// One or several hosts that follow an input.
struct Conversation<'t> {
    partner: &'t dyn Partner,
    model: Rc<RefCell<Model>>,
    lines: Vec<Line<'t>>,
    at: usize,
    /// Last created controller, and its host.
    controller: u16,
    host: u8,
    /// Whether raw bytes may be sent, whose effect on blocks is unknown.
    rude: bool,
    /// Number of commands so far.
    number: u16,
}

/// Runs the conversation of `input` with the target. Returns the number of successful commands,
/// which distinguishes useful inputs from refused ones.
///
/// # Panics
/// If a connection does not end, something of it remains, other hosts are not served, or an answer
/// or a block is impossible.
pub(crate) fn any_conversation(partner: &dyn Partner, input: &[u8]) -> usize {
    let model = Rc::new(RefCell::new(Model::new(DISK_BLOCKS)));
    model.borrow_mut().anything = !partner.is_fresh();
    let mut script = Script(input);
    let mut talk = Conversation {
        partner,
        model: Rc::clone(&model),
        lines: Vec::new(),
        at: 0,
        controller: 1,
        host: 0,
        rude: script.byte() & 1 != 0,
        number: 0,
    };
    while !script.0.is_empty() {
        talk.step(&mut script);
    }
    let mut answered = 0;
    for line in &talk.lines {
        line.say_no_more();
    }
    for line in talk.lines {
        answered += line.end();
    }
    nothing_is_left(partner);
    still_served(partner, &model);
    if let Some(bytes) = partner.take_contents() {
        let model = model.borrow();
        for (block, bytes) in (0..).zip(bytes.chunks(512)) {
            let may = model.may_be(block, bytes, model.moment());
            assert!(may, "block {block} cannot hold {:?}", &bytes[..8]);
        }
    }
    answered
}

/// Waits until no host has an association and no request is in flight.
pub(crate) fn nothing_is_left(partner: &dyn Partner) {
    let begin = partner.now();
    loop {
        // Each controller refers to its subsystem, and each queue and command to its controller.
        let kept = |subsystem| Arc::strong_count(subsystem) - 2;
        let controllers: usize = partner.subsystems().into_iter().map(kept).sum();
        let in_flight = partner.volume().stats().in_flight;
        if controllers == 0 && in_flight == 0 {
            return;
        }
        assert!(
            partner.now() - begin < PATIENCE,
            "{controllers} controllers and {in_flight} requests are left"
        );
        partner.pause();
    }
}

/// Checks that a well-behaved host is served.
fn still_served(partner: &dyn Partner, model: &Rc<RefCell<Model>>) {
    partner.slow(Duration::ZERO);
    let connect = |queue, controller| {
        let mut line = Line::open(partner, model);
        line.initialize(true, true);
        let number = line.connect((0xfe, NQN, ANYBODY), (queue, controller, 0));
        (line, number.expect("a host that behaves is served"))
    };
    let (mut admin, controller) = connect(0, 0xffff);
    assert!(admin.is_served(set_property(0x14, 0x46_0001)));
    let (mut queue, _) = connect(1, controller);
    let mut read = on_blocks(0x02, 0, 1, 0);
    read[32..36].copy_from_slice(&512_u32.to_le_bytes());
    read[39] = 0x5a;
    assert!(queue.is_served(read));
    for line in [queue, admin] {
        line.say_no_more();
        line.end();
    }
    nothing_is_left(partner);
}

impl Conversation<'_> {
    fn step(&mut self, script: &mut Script<'_>) {
        // Actions that end a connection are rare, so that most inputs have an effect.
        let action = script.below(32);
        if self.lines.is_empty() || action < 4 {
            self.connect(action & 1, script);
            return;
        }
        let at = self.at % self.lines.len();
        let rude = self.rude;
        match action {
            4..=6 => self.at = script.below(MOST_LINES),
            7 => match script.byte() {
                slow @ 0..128 => self.partner.slow(Duration::from_millis((slow / 4).into())),
                // One or two keep-alive timeouts.
                time => self
                    .partner
                    .pass(Duration::from_millis(u64::from(time) * 8)),
            },
            8 if rude => {
                let count = script.below(64);
                let line = &mut self.lines[at];
                line.say(script.bytes(count));
            }
            9 if rude => {
                let asked = io_command(self.next_number(), script);
                let spoil = (script.byte(), script.below(8));
                self.lines[at].spoilt(asked.entry, &asked.in_capsule, spoil);
            }
            10 => self.lines[at].say_no_more(),
            11 => self.lines.swap_remove(at).end_at_once(),
            12..=15 => {
                let entry = admin_command(self.next_number(), script);
                self.lines[at].command(entry, &[]);
            }
            16..=17 => self.lines[at].pump(),
            18..=21 => {
                self.lines[at].pump();
                answer(&mut self.lines[at], script);
            }
            22..=24 => {
                let number = self.next_number();
                let line = &mut self.lines[at];
                let (entry, data) = authentication(number, &line.heard, script);
                line.command(entry, &data);
                if entry[4] == 6 {
                    line.pump();
                }
            }
            _ => {
                let asked = io_command(self.next_number(), script);
                asked.put(&mut self.lines[at]);
            }
        }
    }

    fn next_number(&mut self) -> u16 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Opens a connection, with as many steps towards a queue as the input says.
    fn connect(&mut self, action: usize, script: &mut Script<'_>) {
        if self.lines.len() >= MOST_LINES {
            self.lines.swap_remove(0).end_at_once();
        }
        let how = script.byte();
        let mut line = Line::open(self.partner, &self.model);
        if how & 0x0c == 0x0c {
            // It has sent nothing yet.
            self.lines.push(line);
            return;
        }
        line.initialize(how & 1 != 0, how & 2 != 0);
        if action == 0 {
            // Usually another host: one that reconnects waits for its earlier commands.
            self.host = if how < 0xf8 {
                self.host.wrapping_add(1) % 0x80
            } else {
                0
            };
        }
        let (queue, controller) = match action {
            0 => (0, 0xffff),
            _ => (u16::from(how >> 4 & 3), self.controller),
        };
        // Some use the subsystem that requires authentication.
        let who = match how % 7 {
            0 => (self.host, SECRET_NQN, SECRET_HOST),
            _ => (self.host, NQN, ANYBODY),
        };
        let keep_alive_ms = if how.is_multiple_of(11) { 1000 } else { 0 };
        if let Some(controller) = line.connect(who, (queue, controller, keep_alive_ms)) {
            self.controller = controller;
            if action == 0 && how & 0x70 != 0 {
                line.command(set_property(0x14, 0x46_0001), &[]);
                line.pump();
            }
        }
        self.lines.push(line);
        self.at = self.lines.len() - 1;
    }
}

/// A command of an I/O queue.
struct AskedFor {
    entry: [u8; 64],
    /// First block and number of blocks.
    blocks: (u64, u64),
    /// Data to be sent later: bytes, or one value for all of them.
    data: Result<Vec<u8>, u8>,
    in_capsule: Vec<u8>,
}

impl AskedFor {
    fn put(self, line: &mut Line<'_>) {
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
fn io_command(number: u16, script: &mut Script<'_>) -> AskedFor {
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
fn authentication(number: u16, heard: &[u8], script: &mut Script<'_>) -> ([u8; 64], Vec<u8>) {
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
fn set_property(offset: u32, value: u32) -> [u8; 64] {
    let mut entry = command(0x7f, 0, words(&[0, offset, value]));
    entry[2] = 0xf0;
    entry[39] = 0x5a;
    entry
}

/// Returns an admin command.
fn admin_command(number: u16, script: &mut Script<'_>) -> [u8; 64] {
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
fn answer(line: &mut Line<'_>, script: &mut Script<'_>) {
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
