//! A device whose answers the test releases.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Op, Request};

/// Blocks of 512 bytes with a volatile cache. A request takes effect when it is let through.
#[derive(Clone)]
pub(super) struct Gate(Rc<Inner>);

struct Inner {
    info: DeviceInfo,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<(Request, Completion, u64)>,
    /// Content that a reader sees, and the durable part of it.
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Writes that took effect and are not durable, in their order: time, block, data.
    volatile: Vec<(u64, usize, Vec<u8>)>,
    time: u64,
}

impl State {
    /// Makes writes durable, by time and block.
    fn harden(&mut self, which: impl Fn(u64, usize) -> bool) {
        let durable = &mut self.durable;
        self.volatile.retain(|(at, block, bytes)| {
            let now = which(*at, *block);
            if now {
                durable[block * 512..(block + 1) * 512].copy_from_slice(bytes);
            }
            !now
        });
    }
}

impl Gate {
    pub(super) fn new(blocks: u64) -> Self {
        let bytes = vec![0; blocks as usize * 512];
        Self(Rc::new(Inner {
            info: DeviceInfo::new("gate", blocks * 512),
            state: RefCell::new(State {
                seen: bytes.clone(),
                durable: bytes,
                ..State::default()
            }),
        }))
    }

    pub(super) fn device(&self) -> Rc<dyn BlockDevice> {
        Rc::new(self.clone())
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> Vec<Op> {
        let state = self.0.state.borrow();
        state
            .waiting
            .iter()
            .map(|(request, ..)| request.op)
            .collect()
    }

    /// The block of a request that waits.
    pub(super) fn block_of(&self, index: usize) -> u64 {
        self.0.state.borrow().waiting[index].0.offset / 512
    }

    /// Returns the content of the first blocks after a power loss.
    pub(super) fn durable(&self) -> Vec<u8> {
        self.0.state.borrow().durable.clone()
    }

    /// Lets a request through.
    pub(super) fn pass(&self, index: usize) {
        let mut state = self.0.state.borrow_mut();
        let (request, done, arrived) = state.waiting.remove(index);
        state.time += 1;
        let now = state.time;
        let range = request.offset as usize..(request.offset + request.len) as usize;
        match request.op {
            Op::Read => {
                let buf = request.buf.as_ref().expect("a read has a buffer");
                buf.copy_from(0, &state.seen[range]);
            }
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard => {
                let bytes = match &request.buf {
                    Some(buf) => buf.to_vec(),
                    None => vec![0; range.len()],
                };
                state.seen[range.clone()].copy_from_slice(&bytes);
                for (index, bytes) in bytes.chunks(512).enumerate() {
                    let block = range.start / 512 + index;
                    state.volatile.push((now, block, bytes.to_vec()));
                    if request.op == (Op::Write { fua: true }) {
                        state.harden(|_, other| other == block);
                    }
                }
            }
            // Later changes are not covered.
            Op::Flush => state.harden(|at, _| at <= arrived),
        }
        drop(state);
        done.complete(Ok(()));
    }

    /// Has a request fail, without an effect.
    pub(super) fn refuse(&self, index: usize) {
        self.refuse_with(index, ErrorKind::Io);
    }

    /// As [`Gate::refuse`], with an error of this kind.
    pub(super) fn refuse_with(&self, index: usize, kind: ErrorKind) {
        let (_, done, _) = self.0.state.borrow_mut().waiting.remove(index);
        done.complete(Err(kind.into()));
    }
}

impl BlockDevice for Gate {
    fn info(&self) -> DeviceInfo {
        self.0.info.clone()
    }

    /// The first half of the device.
    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        let end = range.end.min(self.0.info.size_bytes / 2);
        Some(std::iter::once(range.start..end).collect())
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(self.0.info.size_bytes / 2)
    }

    fn submit(&self, request: Request, done: Completion) {
        let mut state = self.0.state.borrow_mut();
        let now = state.time;
        state.waiting.push((request, done, now));
    }
}
