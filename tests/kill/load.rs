//! Writers: each has a connection, its own part of the volume, and a log of its requests.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_tests::client::Client;
use forebay_tests::stamp::{SECTOR_BYTES, ZEROES, mix, stamp};
use forebay_wire::nbd::transmission::{command, flag};

use crate::log::{self, Log, Mismatch};

/// Size of a stripe. The writers share the volume in stripes. No request crosses one.
pub(crate) const STRIPE_BYTES: u64 = 64 << 10;
const QUEUE_DEPTH: usize = 8;

/// Version numbers of all writers.
static NEXT_VERSION: AtomicU64 = AtomicU64::new(1);

/// One writer. Stripe `s` is its own where `s % writers == index`.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) index: u64,
    pub(crate) writers: u64,
    pub(crate) log: Log,
    seed: u64,
}

/// State shared by the writers and the code that kills the daemon.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Writes acknowledged so far.
    pub(crate) acknowledged: AtomicU64,
    /// Whether connections may break.
    pub(crate) killed: AtomicBool,
}

/// A request that waits for its reply.
enum Pending {
    Write(log::Write),
    Read(log::Read),
    Flush,
}

/// A drawn request.
#[derive(Debug)]
struct Draw {
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
}

impl Writer {
    pub(crate) fn new(index: u64, writers: u64, seed: u64) -> Self {
        Self {
            index,
            writers,
            log: Log::default(),
            seed: mix(seed ^ index),
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = mix(self.seed);
        self.seed % below
    }

    /// Three requests in four stay in the first sixteenth of the volume, which fits in the cache.
    /// The others go anywhere, which does not fit.
    fn draw_request(&mut self, client: &Client) -> Draw {
        let block = u64::from(client.block_bytes);
        let rounds = client.size_bytes / STRIPE_BYTES / self.writers;
        let near = self.draw(4) != 0;
        let round = self.draw(if near { rounds.div_ceil(16) } else { rounds });
        let stripe = round * self.writers + self.index;
        let (command, fua) = match self.draw(20) {
            0 => return Draw::flush(),
            1 => (command::WRITE_ZEROES, false),
            2..=4 => (command::READ, false),
            5 | 6 => (command::WRITE, true),
            _ => (command::WRITE, false),
        };
        let length = match self.draw(10) {
            // Replies that wait while this side sends must fit in the socket, so reads are small.
            0 if command != command::READ => STRIPE_BYTES,
            1 | 2 => block,
            3 => block * 3,
            _ => 4096.max(block),
        };
        let slots = (STRIPE_BYTES - length) / block + 1;
        Draw {
            command,
            flags: if fua { flag::FUA } else { 0 },
            offset: stripe * STRIPE_BYTES + self.draw(slots) * block,
            length: u32::try_from(length).expect("no longer than a stripe"),
        }
    }

    /// Loads the volume until the connection breaks, which must not happen before the kill. Every
    /// acknowledgement is in the log at the end.
    pub(crate) fn run(&mut self, socket: &Path, export: &str, progress: &Progress) {
        let mut pending = HashMap::new();
        let mut work = || -> io::Result<()> {
            let mut client = Client::connect(socket, export)?;
            loop {
                while client.in_flight() < QUEUE_DEPTH {
                    self.send(&mut client, &mut pending)?;
                }
                let reply = client.receive()?;
                let done = pending.remove(&reply.cookie);
                let done = done.expect("every request is noted");
                if matches!(done, Pending::Write(_)) {
                    progress.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                self.finish(done, &reply.data);
            }
        };
        if let Err(error) = work() {
            let broken = error.kind() != io::ErrorKind::InvalidData;
            assert!(
                broken && progress.killed.load(Ordering::SeqCst),
                "writer {}: {error}, but the daemon was not killed yet",
                self.index
            );
        }
    }

    fn send(&mut self, client: &mut Client, pending: &mut HashMap<u64, Pending>) -> io::Result<()> {
        let Draw {
            command,
            flags,
            offset,
            length,
        } = self.draw_request(client);
        let first = offset / SECTOR_BYTES as u64;
        let sectors = u64::from(length) / SECTOR_BYTES as u64;
        let mut payload = Vec::new();
        let noted = match command {
            command::WRITE => {
                let version = NEXT_VERSION.fetch_add(1, Ordering::Relaxed);
                payload.resize(length as usize, 0);
                stamp(&mut payload, first, version);
                Pending::Write(self.log.send_write(first, sectors, version))
            }
            command::WRITE_ZEROES => Pending::Write(self.log.send_write(first, sectors, ZEROES)),
            command::READ => Pending::Read(self.log.send_read(first, sectors)),
            _ => Pending::Flush,
        };
        // Noted before it is sent: the daemon may act on what it received before it died.
        let cookie = client.send(command, flags, offset, length, &payload)?;
        pending.insert(cookie, noted);
        Ok(())
    }

    fn finish(&mut self, done: Pending, data: &[u8]) {
        match done {
            Pending::Write(write) => self.log.acknowledge(&write),
            Pending::Read(read) => {
                let mismatches = self.log.finish_read(&read, data);
                assert!(mismatches.is_empty(), "while it ran: {mismatches:x?}");
            }
            Pending::Flush => {}
        }
    }

    /// Reads every stripe of this writer and checks it. The log continues from the contents found.
    pub(crate) fn verify(
        &mut self,
        mut read: impl FnMut(u64) -> Vec<u8>,
        size_bytes: u64,
    ) -> Vec<Mismatch> {
        let mut mismatches = Vec::new();
        let own = self.index * STRIPE_BYTES..size_bytes;
        for offset in own.step_by((STRIPE_BYTES * self.writers) as usize) {
            let first = offset / SECTOR_BYTES as u64;
            let expected = self
                .log
                .send_read(first, STRIPE_BYTES / SECTOR_BYTES as u64);
            let bytes = read(offset);
            mismatches.extend(self.log.finish_read(&expected, &bytes));
            self.log.restart(first, &bytes);
        }
        mismatches
    }
}

impl Draw {
    const fn flush() -> Self {
        Self {
            command: command::FLUSH,
            flags: 0,
            offset: 0,
            length: 0,
        }
    }
}
