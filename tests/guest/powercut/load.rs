//! The load: two connections that write, flush and read, and one log of all events.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use forebay_tests::client::Client;
use forebay_tests::stamp::{SECTOR_BYTES, Version, ZEROES, claimed_version, mix, stamp};
use forebay_wire::nbd::transmission::{command, flag};

use crate::history::Event;
use crate::mark::Marker;
use crate::number;

const CONNECTIONS: u64 = 2;
const QUEUE_DEPTH: usize = 4;
/// Bytes of a stripe. No request crosses a stripe, and each connection has its own.
const STRIPE_BYTES: u64 = 64 << 10;
/// Of this number of stripes of a connection, the last one is zeroed and discarded. It gets no FUA
/// write. Where a plain and an FUA write of one sector are close together, the record does not show
/// their order, and stamps show it best.
const ZEROED_SHARE: u64 = 8;

/// The log of all connections.
#[derive(Debug, Default)]
struct Log {
    lines: String,
    ids: u64,
    versions: Version,
    marks: u64,
}

impl Log {
    fn note(&mut self, event: Event) {
        self.lines.push_str(&event.encode());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Write { fua: bool },
    Discard,
    Flush,
    Read,
}

struct Connection<'a> {
    client: Client,
    index: u64,
    seed: u64,
    log: &'a Mutex<Log>,
    marker: &'a Marker,
    asked: HashMap<u64, (u64, Asked)>,
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `powercut load SOCKET EXPORT DM_DEVICE OPERATIONS SEED ACKNOWLEDGED`
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    let [socket, export, device, operations, seed, acknowledged] = *arguments else {
        return Err("load SOCKET EXPORT DM_DEVICE OPERATIONS SEED ACKNOWLEDGED".into());
    };
    let (operations, seed) = (number(operations)?, number(seed)?);
    let describe = |error: io::Error| error.to_string();
    let log = Mutex::default();
    let marker = Marker::new(device).map_err(describe)?;
    put_mark(&log, &marker).map_err(describe)?;
    let load = |index| -> io::Result<()> {
        let connection = Connection {
            client: Client::connect(Path::new(socket), export)?,
            index,
            seed: mix(seed ^ index),
            log: &log,
            marker: &marker,
            asked: HashMap::new(),
        };
        connection.run(operations / CONNECTIONS)
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..CONNECTIONS)
            .map(|index| scope.spawn(move || load(index)))
            .collect();
        running.into_iter().try_for_each(|one| {
            one.join()
                .map_err(|_| "a connection panicked".to_owned())?
                .map_err(describe)
        })
    })?;
    std::fs::write(acknowledged, &lock(&log).lines).map_err(describe)?;
    Ok(true)
}

fn put_mark(log: &Mutex<Log>, marker: &Marker) -> io::Result<()> {
    let mark = {
        let mut log = lock(log);
        log.marks += 1;
        let mark = log.marks;
        log.note(Event::Marking { mark });
        mark
    };
    marker.mark(mark)?;
    lock(log).note(Event::Marked { mark });
    Ok(())
}

impl Connection<'_> {
    fn run(mut self, operations: u64) -> io::Result<()> {
        for _ in 0..operations {
            while self.client.in_flight() >= QUEUE_DEPTH {
                self.receive()?;
            }
            self.send()?;
            // Sometimes one request at a time, as a client that waits for each answer.
            if self.draw(8) == 0 {
                self.drain()?;
            }
        }
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        while self.client.in_flight() > 0 {
            self.receive()?;
        }
        Ok(())
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = mix(self.seed);
        self.seed % below
    }

    fn send(&mut self) -> io::Result<()> {
        let kind = self.draw(24);
        let rounds = self.client.size_bytes / STRIPE_BYTES / CONNECTIONS;
        let near = self.draw(4) != 0;
        let mut round = self.draw(if near { rounds.div_ceil(16) } else { rounds });
        let zeroing = kind < 2;
        if zeroing || round % ZEROED_SHARE == ZEROED_SHARE - 1 {
            round |= ZEROED_SHARE - 1;
        }
        let zeroed = round % ZEROED_SHARE == ZEROED_SHARE - 1;
        let (asked, command) = match kind {
            0 => (Asked::Write { fua: false }, command::WRITE_ZEROES),
            1 => (Asked::Discard, command::TRIM),
            2 | 3 => (Asked::Flush, command::FLUSH),
            4..=6 => (Asked::Read, command::READ),
            7 | 8 => (Asked::Write { fua: !zeroed }, command::WRITE),
            _ => (Asked::Write { fua: false }, command::WRITE),
        };
        let block = u64::from(self.client.block_bytes);
        let length = match self.draw(8) {
            0 if asked != Asked::Read => 32 << 10,
            1 | 2 => block,
            3 => block * 3,
            _ => 4096,
        };
        let slots = (STRIPE_BYTES - length) / block + 1;
        let stripe = (round % rounds) * CONNECTIONS + self.index;
        let offset = stripe * STRIPE_BYTES + self.draw(slots) * block;
        self.note_and_send(asked, command, offset, length)
    }

    fn note_and_send(
        &mut self,
        asked: Asked,
        command: u16,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        let first = offset / SECTOR_BYTES as u64;
        let sectors = length / SECTOR_BYTES as u64;
        let mut payload = Vec::new();
        let id = {
            let mut log = lock(self.log);
            log.ids += 1;
            let id = log.ids;
            match asked {
                Asked::Write { fua } => {
                    let mut version = ZEROES;
                    if command == command::WRITE {
                        log.versions += 1;
                        version = log.versions;
                        payload.resize(length as usize, 0);
                        stamp(&mut payload, first, version);
                    }
                    log.note(Event::Write {
                        id,
                        first,
                        sectors,
                        version,
                        fua,
                    });
                }
                Asked::Discard => log.note(Event::Discard { id, first, sectors }),
                Asked::Flush => log.note(Event::Flush { id }),
                Asked::Read => {}
            }
            id
        };
        let (offset, length) = match asked {
            Asked::Flush => (0, 0),
            _ => (offset, u32::try_from(length).map_err(io::Error::other)?),
        };
        let flags = match asked {
            Asked::Write { fua: true } => flag::FUA,
            _ => 0,
        };
        let cookie = self.client.send(command, flags, offset, length, &payload)?;
        self.asked.insert(cookie, (id, asked));
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let reply = self.client.receive()?;
        let (id, asked) = self.asked.remove(&reply.cookie).expect("what was asked");
        if asked == Asked::Read {
            let good = |sector: &[u8]| {
                claimed_version(sector).is_some() || sector.iter().all(|byte| *byte == 0)
            };
            assert!(
                reply.data.chunks_exact(SECTOR_BYTES).all(good),
                "a read returned data that was never written"
            );
            return Ok(());
        }
        lock(self.log).note(Event::Acknowledged { id });
        // A mark for requests that promise durability, and for some of the others, which promise it
        // with `durability = "sync"`.
        let promises = matches!(asked, Asked::Flush | Asked::Write { fua: true });
        if promises || self.draw(3) == 0 {
            put_mark(self.log, self.marker)?;
        }
        Ok(())
    }
}
