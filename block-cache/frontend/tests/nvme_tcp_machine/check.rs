//! Properties of every conversation with the NVMe/TCP target, whatever a host sends. Each
//! connection ends when its host has closed it, and nothing of it remains. Other hosts are served.
//! Answers are well-formed, and blocks have the written content. The seeded tests in this folder
//! and the fuzz target `nvme_connection` run it.

#[path = "commands.rs"]
mod commands;
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

use forebay_frontend::nvme_tcp::Subsystem;
use forebay_volume::VolumeHandle;

use commands::{admin_command, answer, authentication, io_command, set_property};
use initiator::on_blocks;
use line::Line;
use model::Model;
use target::{NQN, SECRET_HOST, SECRET_NQN};

/// Time after which the target counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of connections of a conversation.
const MOST_LINES: usize = 8;
/// Blocks of the disk. The unused ones must stay unchanged.
const DISK_BLOCKS: usize = 128;
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
        let controllers = |subsystem| Arc::strong_count(subsystem) - 2;
        let controllers: usize = partner.subsystems().into_iter().map(controllers).sum();
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
