//! A node, with a scripted directory.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Mutex, mpsc};

use forebay_pagecache::message::{Access, PageId, Place};

use super::*;
use crate::pool::Nodes;

const NONCE: u64 = 7;
const PAGES: u32 = 16;

/// A pool with such a directory.
struct Bed {
    top: PathBuf,
    pool: PathBuf,
    listener: UnixListener,
}

impl Bed {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let top = std::env::temp_dir().join(format!("forebay-node-{name}-{id}"));
        let path = PathBuf::from(format!("/dev/shm/forebay-node-{name}-{id}"));
        std::fs::create_dir_all(top.join("mapped")).expect("made");
        let pool = Pool::new(&path).expect("short");
        pool.make().expect("made").keep();
        drop(pool.open_frames(PAGES).expect("there is memory"));
        let nodes = Nodes {
            epoch: 1,
            boot: "0".repeat(32),
            pages: PAGES,
            source: top.display().to_string(),
            known: Vec::new(),
        };
        pool.save(&nodes).expect("saved");
        let listener = UnixListener::bind(pool.socket()).expect("it listens");
        Self {
            top,
            pool: path,
            listener,
        }
    }

    fn pool(&self) -> Pool {
        Pool::new(&self.pool).expect("short")
    }

    fn node(&self) -> JoinHandle<Result<()>> {
        let options = Options::new(&self.pool, id(), PAGES);
        std::thread::spawn(|| Node::join(options).map(drop))
    }

    /// Accepts a node's connection, and receives its join.
    fn accept(&self) -> Ear {
        let (stream, _) = self.listener.accept().expect("a node");
        let incoming = Incoming::new(stream.try_clone().expect("there is room"));
        let mut ear = Ear { stream, incoming };
        ear.say(ToNode::Hello { nonce: NONCE });
        ear.receive(|message| matches!(message, ToDirectory::Join { .. }));
        ear
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for path in [&self.top, &self.pool] {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

struct Ear {
    stream: UnixStream,
    incoming: Incoming,
}

impl Ear {
    fn say(&mut self, message: ToNode) {
        let mut bytes = Vec::new();
        encode(id(), &[message], &mut bytes);
        self.stream.write_all(&bytes).expect("it listens");
    }

    fn admit(&mut self) {
        self.say(ToNode::Joined {
            first_frame: 0,
            frames: PAGES,
            unpublished_pages: 0,
        });
    }

    /// Waits for a message or the end. Returns whether the message arrived.
    fn receives(&mut self, is_it: impl Fn(&ToDirectory) -> bool) -> bool {
        let mut found = false;
        while !found {
            let mut bytes = Vec::new();
            let take = |packets: &[u8]| bytes.extend_from_slice(packets);
            if !self.incoming.packets::<ToDirectory>(take).expect("packets") {
                return false;
            }
            let mut rest = &bytes[..];
            while let Some(packet) = Packet::<ToDirectory>::decode(rest).expect("a packet") {
                found |= packet
                    .messages()
                    .any(|said| said.is_ok_and(|said| is_it(&said)));
                rest = &rest[packet.size_bytes..];
            }
        }
        true
    }

    fn receive(&mut self, is_it: impl Fn(&ToDirectory) -> bool) {
        assert!(self.receives(is_it), "it has gone");
    }

    fn hear_leave(&mut self) {
        self.receive(|message| matches!(message, ToDirectory::Leave {}));
    }

    fn let_go(&mut self) {
        self.hear_leave();
        self.say(ToNode::Left {});
    }

    fn end(mut self) {
        assert!(!self.receives(|_| false));
    }
}

fn id() -> NodeId {
    NodeId::new(1).expect("a node")
}

/// A store whose writes wait.
struct SlowStore {
    begun: mpsc::Sender<()>,
    release: Mutex<mpsc::Receiver<()>>,
}

impl Store for SlowStore {
    fn read_pages(&self, _: PageId, into: &mut [u8]) -> Result<()> {
        into.fill(0);
        Ok(())
    }

    fn write_pages(&self, _: PageId, _: &[u8]) -> Result<()> {
        let _ = self.begun.send(());
        let _ = self.release.lock().expect("no panic").recv();
        Ok(())
    }

    fn sync(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_leave_is_recorded_after_the_last_io() {
    let bed = Bed::new("last-io");
    let options = Options::new(&bed.pool, id(), PAGES);
    let page = PageId { inode: 1, index: 0 };
    let (write, has_written) = mpsc::channel();
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let node = std::thread::spawn(move || {
        let release = Mutex::new(released);
        let (inner, _) = join(options, |_, _| Ok(SlowStore { begun, release })).expect("joined");
        inner.client().write(page, 0, &[1; 512]).expect("written");
        write.send(()).expect("it waits");
        has_begun.recv().expect("a write-back");
        drop(inner);
    });
    let mut ear = bed.accept();
    ear.admit();
    ear.receive(|message| matches!(message, ToDirectory::Lookup { .. }));
    let (place, access) = (
        Place {
            frame: 0,
            generation: 1,
        },
        Access::Write,
    );
    ear.say(ToNode::Fill {
        page,
        place,
        access,
    });
    has_written.recv().expect("a write");
    ear.say(ToNode::WriteBack { page, place });
    ear.let_go();
    let (ended, end) = mpsc::channel();
    let connection = std::thread::spawn(move || {
        ear.end();
        let _ = ended.send(());
    });
    // The directory would give the page to others now.
    let ended = end.recv_timeout(Duration::from_millis(300));
    assert!(ended.is_err() && !bed.pool().has_left(NONCE));
    release.send(()).expect("it waits");
    end.recv().expect("the end");
    assert!(bed.pool().has_left(NONCE));
    for thread in [node, connection] {
        thread.join().expect("no panic");
    }
}

#[test]
fn a_leave_is_recorded_before_the_connection_ends() {
    let bed = Bed::new("leaves");
    let node = bed.node();
    let mut ear = bed.accept();
    ear.admit();
    ear.hear_leave();
    // From here on it may record its leave at any moment.
    assert!(!bed.pool().has_left(NONCE));
    ear.say(ToNode::Left {});
    ear.end();
    assert!(bed.pool().has_left(NONCE));
    node.join().expect("it ended").expect("it joined");
}

#[test]
fn a_node_does_not_join_with_settings_of_an_earlier_directory() {
    let bed = Bed::new("settled");
    let node = bed.node();
    // It has checked, and another directory starts.
    drop(bed.accept());
    bed.pool().save_mapped(b"mapped\n").expect("saved");
    let mut ear = bed.accept();
    ear.admit();
    ear.let_go();
    ear.end();
    let refused = node.join().expect("it ended").expect_err("it has another");
    assert_eq!(refused.kind(), ErrorKind::Busy);
}

#[test]
fn a_refused_node_leaves_nothing_in_the_pool() {
    let bed = Bed::new("refused");
    let node = bed.node();
    let mut ear = bed.accept();
    let why = forebay_pagecache::message::Refusal::NumberInUse;
    ear.say(ToNode::Refused { why });
    ear.end();
    let refused = node.join().expect("it ended").expect_err("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Permission);
    assert!(!bed.pool().has_left(NONCE), "it never was in");
}
