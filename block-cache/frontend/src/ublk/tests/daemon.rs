//! A daemon for the tests of block devices, which may die.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Op, Request, Result};
use forebay_io::rt::{self, Remote};
use forebay_io::sync::Promise;
use forebay_io::{Engine, spawn_reactor};
use forebay_volume::{Volume, VolumeHandle};

use super::super::export::Export;
use super::super::handshake::{self, Attached, Patience};
use super::SIZE_BYTES;
use super::fake::Fake;
use crate::net::Spread;

const SOON: Patience = Patience {
    running: Duration::from_millis(100),
    dead: Duration::from_millis(300),
};

/// State that outlives the processes of a test.
pub(super) struct Media {
    info: Mutex<DeviceInfo>,
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
    log: Mutex<Vec<(Op, u64, u64)>>,
    /// Whether writes are held without an answer.
    pub(super) held: AtomicBool,
    pub(super) fails: Mutex<Option<ErrorKind>>,
}

impl Media {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            info: Mutex::new(DeviceInfo::new("media", SIZE_BYTES)),
            blocks: Mutex::default(),
            log: Mutex::default(),
            held: AtomicBool::new(false),
            fails: Mutex::default(),
        })
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut DeviceInfo)) {
        change(&mut self.info.lock().expect("whole"));
    }

    pub(super) fn log(&self) -> Vec<(Op, u64, u64)> {
        std::mem::take(&mut self.log.lock().expect("whole"))
    }
}

struct Disk(Arc<Media>, RefCell<Vec<Completion>>);

impl Drop for Disk {
    /// A killed process completes nothing.
    fn drop(&mut self) {
        self.1.take().into_iter().for_each(std::mem::forget);
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        self.0.info.lock().expect("whole").clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let what = (request.op, request.offset, request.len);
        self.0.log.lock().expect("whole").push(what);
        if let Some(kind) = *self.0.fails.lock().expect("whole") {
            return done.complete(Err(kind.into()));
        }
        let mut blocks = self.0.blocks.lock().expect("whole");
        match (request.op, &request.buf) {
            (Op::Write { .. }, Some(_)) if self.0.held.load(Ordering::Acquire) => {
                self.1.borrow_mut().push(done);
                return;
            }
            (Op::Write { .. }, Some(buf)) => _ = blocks.insert(request.offset, buf.to_vec()),
            (Op::Read, Some(buf)) => match blocks.get(&request.offset) {
                Some(data) => buf.copy_from(0, data),
                None => buf.fill(0),
            },
            _ => {}
        }
        drop(blocks);
        done.complete(Ok(()));
    }
}

/// A daemon: a reactor with a volume, and another reactor.
pub(super) struct Daemon {
    pub(super) volume: VolumeHandle,
    pub(super) spread: Arc<Spread>,
    /// Reactor of the volume.
    pub(super) engine: Remote,
    ends: Vec<(Remote, JoinHandle<()>)>,
}

thread_local! {
    static VOLUME: RefCell<Option<Volume>> = const { RefCell::new(None) };
}

impl Daemon {
    pub(super) fn start(media: &Arc<Media>, read_only: bool) -> Self {
        let (media, mut ends, mut remotes) = (Arc::clone(media), Vec::new(), Vec::new());
        let (sender, receiver) = mpsc::channel();
        let mut start = |name: &str, media: Option<Arc<Media>>| {
            let sender = sender.clone();
            let thread = spawn_reactor(name, Engine::Threads, move || async move {
                let volume = media.map(|media| {
                    let disk = Rc::new(Disk(media, RefCell::default()));
                    let volume = Volume::new("v", disk, read_only);
                    let handle = volume.handle();
                    VOLUME.set(Some(volume));
                    handle
                });
                let ended = Promise::new();
                ENDED.set(Some(ended.clone()));
                sender.send((rt::remote(), volume)).expect("the test waits");
                ended.get().await;
                VOLUME.set(None);
            });
            let (remote, volume) = receiver.recv().expect("it began");
            ends.push((remote.clone(), thread.expect("a reactor")));
            remotes.push(remote.clone());
            (remote, volume)
        };
        let (engine, volume) = start("engine", Some(media));
        start("net", None);
        Self {
            volume: volume.expect("it has one"),
            spread: Arc::new(Spread::new(remotes)),
            engine,
            ends,
        }
    }

    pub(super) fn attach(&self, driver: &Fake, gap: Option<&str>) -> Result<Attached<Fake>> {
        self.attach_as(driver, 0, gap)
    }

    pub(super) fn attach_as(
        &self,
        driver: &Fake,
        number: u32,
        gap: Option<&str>,
    ) -> Result<Attached<Fake>> {
        self.attach_within(driver, number, gap, SOON)
    }

    /// Like `attach`, with other time limits for another server of the device.
    pub(super) fn attach_within(
        &self,
        driver: &Fake,
        number: u32,
        gap: Option<&str>,
        patience: Patience,
    ) -> Result<Attached<Fake>> {
        let export = Export::new(self.volume.clone(), b"here", gap.map(str::to_owned));
        handshake::attach(driver, &Arc::new(export), number, &self.spread, patience)
    }

    /// Closes the volume, as an orderly shutdown does.
    pub(super) fn close_volume(&self) {
        let (sender, receiver) = mpsc::channel();
        self.engine.call(move || {
            VOLUME.set(None);
            let _ = sender.send(());
        });
        receiver.recv().expect("done");
    }

    /// Ends the reactors, that of the volume last, as the end of the process does.
    pub(super) fn die(self) {
        for (reactor, thread) in self.ends.into_iter().rev() {
            reactor.call(|| ENDED.with_borrow(|ended| ended.as_ref().expect("set").set(())));
            thread.join().expect("it ends");
        }
    }
}

thread_local! {
    static ENDED: RefCell<Option<Promise<()>>> = const { RefCell::new(None) };
}
