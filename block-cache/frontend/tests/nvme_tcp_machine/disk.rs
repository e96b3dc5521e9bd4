//! A disk in memory that reports a volatile cache, whose content is accessible, and that can be
//! slowed down.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Op, Request, Result};
use forebay_io::rt;

const BLOCK_BYTES: usize = 512;

/// The disk; a clone shares the content.
#[derive(Clone)]
pub(crate) struct Disk(Rc<State>);

struct State {
    bytes: RefCell<Vec<u8>>,
    time: Cell<Duration>,
}

impl Disk {
    /// Creates a disk of `blocks` blocks of zeroes.
    pub(crate) fn new(blocks: usize) -> Self {
        Self(Rc::new(State {
            bytes: RefCell::new(vec![0; blocks * BLOCK_BYTES]),
            time: Cell::default(),
        }))
    }

    /// Sets the duration of later requests.
    pub(crate) fn slow(&self, time: Duration) {
        self.0.time.set(time);
    }

    /// Returns the content, and zeroes the disk.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut bytes = self.0.bytes.borrow_mut();
        let zeroes = vec![0; bytes.len()];
        std::mem::replace(&mut *bytes, zeroes)
    }

    /// Changes a block directly.
    pub(crate) fn plant(&self, block: usize) {
        self.0.bytes.borrow_mut()[block * BLOCK_BYTES] ^= 1;
    }

    fn run(&self, request: &Request) -> Result<()> {
        self.info().check(request)?;
        let (mut bytes, at) = (self.0.bytes.borrow_mut(), request.offset as usize);
        let range = at..at + request.len as usize;
        match (request.op, &request.buf) {
            (Op::Read, Some(buf)) => buf.copy_from(0, &bytes[range]),
            (Op::Write { .. }, Some(buf)) => buf.copy_to(0, &mut bytes[range]),
            (Op::WriteZeroes { .. } | Op::Discard, _) => bytes[range].fill(0),
            (Op::Flush, _) => {}
            _ => return Err(ErrorKind::InvalidInput.into()),
        }
        Ok(())
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("memory", self.0.bytes.borrow().len() as u64)
    }

    fn submit(&self, request: Request, done: Completion) {
        let time = self.0.time.get();
        if time.is_zero() {
            return done.complete(self.run(&request));
        }
        let disk = self.clone();
        rt::spawn(async move {
            rt::sleep(time).await;
            done.complete(disk.run(&request));
        });
    }
}
