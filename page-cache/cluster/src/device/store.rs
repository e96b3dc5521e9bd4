//! A block device as the store: its pages are those of one file. A separate thread runs the
//! device's reactor.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Context, DeviceInfo, Error, ErrorKind, Result,
};
use forebay_io::answer::Answer;
use forebay_io::rt::{self, Remote};
use forebay_io::{Engine, spawn_reactor};
use forebay_pagecache::message::PageId;
use forebay_pagecache::store::Store;

use crate::PAGE_BYTES;

/// Inode number of the device's pages.
pub(super) const INODE: u64 = 1;

thread_local! {
    /// Device of the reactor on this thread.
    static DEVICE: RefCell<Option<Rc<dyn BlockDevice>>> = const { RefCell::new(None) };
}

/// A block device for all threads of a node. Each node opens it itself.
#[derive(Debug)]
pub struct DeviceStore {
    remote: Remote,
    info: DeviceInfo,
    /// Whether a flush has failed. Earlier writes may be lost then, and no later flush restores
    /// them.
    failed: AtomicBool,
    stop: Answer<()>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceStore {
    /// Starts a thread with a reactor, and opens the device there.
    ///
    /// # Errors
    /// Errors of `open`. `InvalidInput` if the device's blocks are larger than pages.
    pub fn open(
        open: impl AsyncFnOnce() -> Result<Rc<dyn BlockDevice>> + Send + 'static,
    ) -> Result<Self> {
        let stop = Answer::default();
        let (stopped, (send, receive)) = (stop.clone(), sync_channel(1));
        // Threads, since direct writes of io_uring may still be in flight when the process has
        // ended. A thread that writes ends before its process, and the directory waits for that.
        let thread = spawn_reactor("pagecache-device", Engine::Threads, move || async move {
            match open().await {
                Ok(device) => {
                    let info = device.info();
                    DEVICE.set(Some(device));
                    // The caller waits for this message.
                    let _ = send.send(Ok((rt::remote(), info)));
                    stopped.get().await;
                    DEVICE.set(None);
                }
                Err(error) => {
                    let _ = send.send(Err(error));
                }
            }
        })?;
        let opened = receive.recv().unwrap_or_else(|_| Err(gone("opening it")));
        let (remote, info) = opened?;
        let store = Self {
            remote,
            info,
            failed: AtomicBool::new(false),
            stop,
            thread: Some(thread),
        };
        let block = store.info.logical_block_bytes as usize;
        if block > PAGE_BYTES {
            let context = format!(
                "{}: its blocks have {block} bytes, and pages have {PAGE_BYTES}\n\
                 help: give a device of smaller blocks",
                store.info.name
            );
            return Err(Error::new(ErrorKind::InvalidInput, context));
        }
        Ok(store)
    }

    /// Returns the device info at the time of opening.
    #[must_use]
    pub const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Runs `body` with the device on its reactor, and waits for the result.
    fn ask<T: Send + 'static>(
        &self,
        what: &str,
        body: impl AsyncFnOnce(Rc<dyn BlockDevice>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (send, receive) = channel();
        self.remote.call(move || {
            if let Some(device) = DEVICE.with_borrow(Clone::clone) {
                rt::spawn(async move {
                    // The caller waits.
                    let _ = send.send(body(device).await);
                });
            }
        });
        let answer = receive.recv().unwrap_or_else(|_| Err(gone(what)));
        answer.context(|| format!("{what} {}", self.info.name))
    }

    /// Returns the first byte of a run of pages, and the length of the part that the device has.
    fn range(&self, first: PageId, bytes: usize) -> (u64, usize) {
        let start = first.index.saturating_mul(PAGE_BYTES as u64);
        let left = self.info.size_bytes.saturating_sub(start);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
        (start, len)
    }
}

fn gone(what: &str) -> Error {
    let context = format!("{what}: the thread of the device has ended");
    Error::new(ErrorKind::Disconnected, context)
}

impl Drop for DeviceStore {
    fn drop(&mut self) {
        self.stop.give(());
        if let Some(thread) = self.thread.take() {
            // It has reported its errors itself.
            let _ = thread.join();
        }
    }
}

impl Store for DeviceStore {
    fn name(&self, _: u64) -> String {
        self.info.name.clone()
    }

    fn read_pages(&self, first: PageId, into: &mut [u8]) -> Result<()> {
        let (start, len) = self.range(first, into.len());
        into[len..].fill(0);
        if len == 0 {
            return Ok(());
        }
        let bytes = self.ask("reading pages of", async move |device| {
            let buf = Buf::zeroed(len);
            device.read(start, buf.clone()).await?;
            Ok(buf.to_vec())
        })?;
        into[..len].copy_from_slice(&bytes);
        Ok(())
    }

    fn write_pages(&self, first: PageId, from: &[u8]) -> Result<()> {
        let (start, len) = self.range(first, from.len());
        if len == 0 {
            return Ok(());
        }
        let bytes = from[..len].to_vec();
        self.ask("writing pages of", async move |device| {
            device.write(start, Buf::copied(&bytes)).await
        })
    }

    fn sync(&self, _: u64) -> Result<()> {
        let flushed = self.ask("flushing", async move |device| device.flush().await);
        if flushed.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        if self.failed.load(Ordering::Relaxed) {
            let context = format!(
                "{}: a flush has failed: UNFLUSHED WRITES MAY BE LOST\n\
                 help: let the node leave and join, and write the data a second time",
                self.info.name
            );
            let source = flushed
                .err()
                .unwrap_or_else(|| Error::from(ErrorKind::Lost));
            return Err(Error::with_source(ErrorKind::Lost, context, source));
        }
        Ok(())
    }
}
