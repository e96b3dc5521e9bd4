//! Properties that hold whatever the monitor of a virtual machine sends and whatever a guest's
//! rings contain. The conversation ends, nothing of it remains, the next guest is served, valid
//! requests are answered, and blocks have the written content. The seeded test in this folder and
//! the fuzz target `vhost_user` run it.

#[path = "../nvme_tcp_machine/disk.rs"]
pub(crate) mod disk;
#[path = "here.rs"]
pub(crate) mod here;
#[path = "message.rs"]
pub(crate) mod message;
#[allow(dead_code, reason = "shared with the other protocol's conversations")]
#[path = "../nvme_tcp_machine/model.rs"]
pub(crate) mod model;
#[path = "rings.rs"]
mod rings;

use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_frontend::vhost_user::MonitorConnection;
use forebay_wire::virtio_blk::{Header, request};

use here::Here;
use message::Message;
use model::Model;
use rings::{Asked, LEFT, MOST_SECTORS, SLOT_BYTES, SLOTS, guest, page, places};

/// Blocks of the disk, of 512 bytes.
const DISK_BLOCKS: usize = 64;
/// Queues of a guest, and entries of each.
const QUEUES: usize = 2;
const ENTRIES: u16 = 16;
/// The guest's memory as a file: two regions, the first of which contains the queues and the
/// requests.
const FILE_BYTES: usize = 128 << 10;
const REGION_BYTES: u64 = FILE_BYTES as u64 / 2;
/// Bytes of an input; zeroes after the last.
pub(crate) struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn below(&mut self, below: u16) -> u16 {
        self.word() % below
    }
}

/// A monitor and its guest that follow an input.
struct Conversation<'t> {
    here: &'t Here,
    socket: UnixStream,
    talk: MonitorConnection,
    ended: bool,
    model: Model,
    /// Whether something was sent or written that makes the rings arbitrary.
    wild: bool,
    available: [u16; QUEUES],
    used: [u16; QUEUES],
    asked: [Option<Asked>; SLOTS as usize],
    value: u8,
    answered: usize,
    message: Message,
}

/// Runs the conversation of `input`. Returns the number of successful requests.
///
/// # Panics
/// If something of it remains, the next guest is not served, or an answer or a block is impossible.
pub(crate) fn any_conversation(here: &Here, input: &[u8]) -> usize {
    let mut script = Script(input);
    let mut talk = Conversation::new(here, Model::new(DISK_BLOCKS));
    let how = script.byte();
    // Some rings contain only requests.
    let orderly = how & 3 != 0;
    if how & 0x1c != 0 {
        talk.set_up(how & 0x20 != 0);
    }
    while !script.0.is_empty() && !talk.ended {
        talk.step(orderly, &mut script);
    }
    let (mut answered, model) = talk.end();
    // The next guest.
    here.slow(Duration::ZERO);
    let mut next = Conversation::new(here, model);
    next.set_up(false);
    next.ask(1, 0, (request::IN, 0, 1), 0, 1);
    here.settle();
    next.take_used();
    assert!(next.asked[0].is_none(), "a guest that behaves is served");
    let (one, model) = next.end();
    answered += one - 1;
    let bytes = here.end();
    for (block, bytes) in (0..).zip(bytes.chunks(512)) {
        let may = model.may_be(block, bytes, model.moment());
        assert!(may, "block {block} cannot hold {:?}", &bytes[..8]);
    }
    answered
}

impl<'t> Conversation<'t> {
    fn new(here: &'t Here, model: Model) -> Self {
        let (socket, talk) = here.connect();
        for slot in 0..SLOTS {
            here.put(page(slot), &[LEFT; SLOT_BYTES]);
        }
        for queue in 0..QUEUES {
            let [_, available, used] = places(queue);
            here.put(available, &[0; 4]);
            here.put(used, &[0; 4]);
        }
        Self {
            here,
            socket,
            talk,
            ended: false,
            model,
            wild: false,
            available: [0; QUEUES],
            used: [0; QUEUES],
            asked: Default::default(),
            value: 0,
            answered: 0,
            message: Message::default(),
        }
    }

    /// Disconnects. Returns the number of successful requests.
    fn end(mut self) -> (usize, Model) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if !self.ended {
            let ended = self.talk.receive();
            assert!(ended.is_some(), "a conversation does not end");
        }
        self.take_used();
        if !self.ended && !self.wild {
            // All started requests have ended with the queues.
            for asked in self.asked.iter().flatten() {
                assert!(!self.is_running(), "{:?} is not answered", asked.header);
            }
        }
        (self.answered, self.model)
    }

    /// Returns whether both queues have complete settings.
    fn is_running(&self) -> bool {
        self.message.untouched
    }

    /// Sends a message with descriptors, and receives the answer.
    fn say(&mut self, (number, flags, body): (u32, u32, &[u8]), files: &[i32]) {
        if self.ended {
            return;
        }
        here::send(&self.socket, &message::encode(number, flags, body), files);
        self.receive();
    }

    fn receive(&mut self) {
        self.ended = self.talk.receive().is_some();
        self.here.settle();
        while let Some((bytes, file)) = here::receive(&self.socket) {
            self.message.heard(&bytes, file);
        }
    }

    /// Sends the first messages of any monitor.
    fn set_up(&mut self, keeps_list: bool) {
        for said in message::SET_UP {
            self.truth(said, 0);
        }
        if keeps_list {
            self.truth(message::GET_INFLIGHT_FD, 0);
            self.truth(message::SET_INFLIGHT_FD, 0);
        }
        for queue in 0..QUEUES {
            for said in message::START_QUEUE {
                self.truth(said, queue);
            }
        }
        self.message.untouched = !self.ended;
    }

    /// Sends a valid message.
    fn truth(&mut self, number: u32, queue: usize) {
        let body = self.message.body(number, queue, self.available[queue]);
        let files = self.message.files(self.here, number, queue);
        self.say((number, 0, &body), &files);
    }

    fn step(&mut self, orderly: bool, script: &mut Script<'_>) {
        match script.byte() % 32 {
            0..4 => self.speak(script),
            4 => {
                let time = Duration::from_millis(u64::from(script.byte() / 8));
                self.here.slow(time);
            }
            5..7 => {
                let time = Duration::from_millis(u64::from(script.byte() / 8));
                self.here.pass(time);
            }
            7..20 if !orderly => self.scribble(script),
            _ => {
                let kind = [
                    request::IN,
                    request::OUT,
                    request::OUT,
                    request::FLUSH,
                    request::GET_ID,
                    request::DISCARD,
                    request::WRITE_ZEROES,
                    99,
                ][usize::from(script.byte() % 8)];
                let sector = match script.byte() {
                    far @ 250.. => u64::MAX >> (far & 15),
                    near => u64::from(near) % (DISK_BLOCKS as u64 + 4),
                };
                let sectors = u32::from(script.byte()) % MOST_SECTORS + 1;
                let (lie, pieces) = (script.byte(), script.byte() % 5 + 1);
                let (queue, slot) = (usize::from(lie & 1), u16::from(lie >> 1) % SLOTS);
                if self.asked[usize::from(slot)].is_none() {
                    self.ask(queue, slot, (kind, sector, sectors), lie, pieces);
                }
            }
        }
        self.here.settle();
        self.take_used();
    }

    /// Sends a message with mostly valid fields.
    fn speak(&mut self, script: &mut Script<'_>) {
        let number = u32::from(script.byte() % 40);
        let queue = usize::from(script.byte() & 1);
        let mut body = self.message.body(number, queue, self.available[queue]);
        let how = script.byte();
        if how < 0x80 && message::keeps_order(number) {
            // Stops and starts a queue, or sends a request.
            self.say(
                (number, u32::from(how & 8), &body),
                &self.message.files(self.here, number, queue),
            );
            if number == message::GET_VRING_BASE {
                for said in message::START_QUEUE {
                    self.truth(said, queue);
                }
            }
            return;
        }
        self.wild = true;
        self.model.anything = true;
        self.message.untouched = false;
        for _ in 0..how & 3 {
            let at = usize::from(script.byte());
            let value = script.byte();
            if let Some(byte) = body.get_mut(at) {
                *byte = value;
            }
        }
        if how & 0x30 == 0x30 {
            body.truncate(script.byte().into());
        }
        let files = match how & 0x0c {
            0 => Vec::new(),
            4 => vec![here::fd(&self.here.call); usize::from(how >> 6)],
            _ => self.message.files(self.here, number, queue),
        };
        if how & 0xc0 == 0xc0 {
            // Sends a wrong length or version, or stops in the middle.
            let mut bytes = message::encode(number, 0, &body);
            let (at, value) = (usize::from(script.byte() % 12), script.byte());
            bytes[at] = value;
            if how & 0x20 != 0 {
                bytes.truncate(script.byte().into());
            }
            if !bytes.is_empty() && !self.ended {
                here::send(&self.socket, &bytes, &files);
                // The rest does not arrive.
                let _ = self.socket.shutdown(std::net::Shutdown::Write);
                self.receive();
            }
            return;
        }
        self.say((number, u32::from(script.byte() & 12), &body), &files);
    }

    /// Writes anything anywhere into the first queue, or into pages.
    fn scribble(&mut self, script: &mut Script<'_>) {
        const LENS: [u32; 10] = [0, 1, 15, 16, 17, 512, 513, 4096, 1 << 31, u32::MAX];
        self.wild = true;
        self.model.anything = true;
        let [table, available, used] = places(0);
        match script.byte() % 8 {
            0..3 => {
                let address = match script.byte() % 16 {
                    0 => u64::MAX - u64::from(script.below(5000)),
                    // Near the end of a region.
                    1 => guest(REGION_BYTES - 1) + 1 - u64::from(script.below(600)),
                    2 => guest(REGION_BYTES) + u64::from(script.below(6000)),
                    _ => guest(page(0)) + u64::from(script.below(3000)),
                };
                let len = LENS[usize::from(script.byte()) % LENS.len()];
                let flags = u16::from(script.byte() & 7) | u16::from(script.byte() / 255) << 8;
                let next = script.below(ENTRIES + 4);
                let place = match script.byte() % 3 {
                    0 => page(0) + 2048,
                    _ => table,
                };
                let at = place + u64::from(script.below(ENTRIES)) * 16;
                self.put_descriptor(at, (address, len, flags, next));
            }
            3 => {
                let header = Header {
                    kind: u32::from(script.byte() % 16),
                    sector: u64::from(script.word()) << (script.byte() % 64),
                };
                let at = page(0) + u64::from(script.below(100));
                self.here.put(at, &header.encode());
            }
            4 => {
                let index = script.word();
                self.here.put(available + 2, &index.to_le_bytes());
                self.kick(0);
            }
            5 => {
                let at = used + u64::from(script.below(160));
                self.here.put(at, &[script.byte()]);
            }
            6 => self.message.scribble(script.word(), script.byte()),
            _ => {
                let head = script.below(ENTRIES + 2);
                self.offer(0, head);
            }
        }
    }
}
