//! Wakers that need no counting, and work that comes from other threads.
//!
//! A waker is a task's index and generation and its executor's number, packed into the data
//! pointer. Waking on the executor's own thread is a queue push; from another thread it goes
//! through the executor's shared queue and its `unpark`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{RawWaker, RawWakerVTable, Waker};

use super::try_with_current;

/// Executor number (8 bits), task generation (28 bits), task index (28 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data(u64);

pub(super) const INDEX_BITS: u32 = 28;
const MASK: u64 = (1 << INDEX_BITS) - 1;

impl Data {
    pub(super) fn new(executor: u8, generation: u32, index: u32) -> Self {
        debug_assert!(u64::from(index) <= MASK);
        Self(
            (u64::from(executor) << (2 * INDEX_BITS))
                | ((u64::from(generation) & MASK) << INDEX_BITS)
                | u64::from(index),
        )
    }

    pub(super) const fn index(self) -> u32 {
        (self.0 & MASK) as u32
    }

    pub(super) const fn generation(self) -> u32 {
        ((self.0 >> INDEX_BITS) & MASK) as u32
    }

    const fn executor(self) -> u8 {
        (self.0 >> (2 * INDEX_BITS)) as u8
    }
}

pub(super) enum Work {
    Wake(Data),
    Call(Box<dyn FnOnce() + Send>),
}

/// The part of an executor that other threads reach.
pub(super) struct Shared {
    id: u8,
    pending: AtomicBool,
    queue: Mutex<Vec<Work>>,
    unpark: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    pub(super) const fn id(&self) -> u8 {
        self.id
    }

    pub(super) fn pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes the queued work, and leaves the memory of `empty` for later work.
    pub(super) fn take(&self, empty: Vec<Work>) -> Vec<Work> {
        debug_assert!(empty.is_empty());
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::Release);
        std::mem::replace(&mut *queue, empty)
    }

    fn push(&self, work: Work) {
        let first = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push(work);
            !self.pending.swap(true, Ordering::AcqRel)
        };
        if first {
            (self.unpark)();
        }
    }
}

static REGISTRY: Mutex<[Option<Arc<Shared>>; 256]> = Mutex::new([const { None }; 256]);

pub(super) fn register(unpark: Box<dyn Fn() + Send + Sync>) -> Arc<Shared> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let free = registry
        .iter()
        .position(Option::is_none)
        .expect("at most 256 executors at a time");
    let shared = Arc::new(Shared {
        id: u8::try_from(free).expect("a position below 256"),
        pending: AtomicBool::new(false),
        queue: Mutex::new(Vec::new()),
        unpark,
    });
    registry[free] = Some(Arc::clone(&shared));
    shared
}

pub(super) fn unregister(id: u8) {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry[usize::from(id)] = None;
}

pub(super) fn waker(data: Data) -> Waker {
    // SAFETY: the vtable's functions only decode the number in the data pointer; nothing is owned.
    unsafe { Waker::from_raw(raw(data)) }
}

fn raw(data: Data) -> RawWaker {
    RawWaker::new(
        std::ptr::without_provenance(usize::try_from(data.0).expect("a 64-bit machine")),
        &VTABLE,
    )
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| raw(Data(data.addr() as u64)),
    |data| wake(Data(data.addr() as u64)),
    |data| wake(Data(data.addr() as u64)),
    |_| (),
);

fn wake(data: Data) {
    let here = try_with_current(|executor| {
        let own = executor.id == data.executor();
        if own {
            executor.wake(data);
        }
        own
    });
    if here == Some(true) {
        return;
    }
    let shared = {
        let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        registry[usize::from(data.executor())].clone()
    };
    if let Some(shared) = shared {
        shared.push(Work::Wake(data));
    }
}

/// Gives work to an executor from any thread.
#[derive(Clone)]
pub struct Remote(Arc<Shared>);

impl Remote {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Runs `call` on the executor's thread, after the work queued before it.
    pub fn call(&self, call: impl FnOnce() + Send + 'static) {
        self.0.push(Work::Call(Box::new(call)));
    }

    /// Returns whether this is the calling thread's executor.
    #[must_use]
    pub fn is_current(&self) -> bool {
        try_with_current(|executor| Arc::ptr_eq(&executor.remote, &self.0)) == Some(true)
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.0.id)
    }
}
