//! Storage of tasks: futures of any type in blocks of memory that are reused by size. So a server
//! in its steady state spawns a task for each request without the allocator.

use std::alloc::Layout;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use super::Polled;
use super::meter::Account;
use super::wake::{Data, INDEX_BITS};

/// Block sizes are `64 << class` bytes, up to 64 KiB.
const CLASSES: usize = 11;
const ALIGN: usize = 64;

fn class_of(size: usize, align: usize) -> usize {
    assert!(
        align <= ALIGN,
        "a future needs more alignment than tasks have"
    );
    let units = size.max(1).div_ceil(64).next_power_of_two();
    let class = units.trailing_zeros() as usize;
    assert!(
        class < CLASSES,
        "a future of {size} bytes is too large for a task: box its parts"
    );
    class
}

fn layout(class: usize) -> Layout {
    Layout::from_size_align(64 << class, ALIGN).expect("a small power of two")
}

/// A future in its own block of memory.
pub(super) struct Stored {
    block: NonNull<u8>,
    class: usize,
    /// The same memory as a trait object.
    future: NonNull<dyn Future<Output = ()>>,
    /// Not Send: futures hold `Rc`s of their thread.
    here: PhantomData<*const ()>,
}

impl Stored {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future lives in `block` until `drop`, is never moved, and `&mut self` makes
        // this the only reference.
        let future: Polled<'_> = unsafe { Pin::new_unchecked(self.future.as_mut()) };
        future.poll(cx)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        // SAFETY: the future is live and dropped once.
        unsafe { self.future.drop_in_place() }
        FREE_BLOCKS.with(|free| free.borrow_mut()[self.class].push(self.block));
    }
}

thread_local! {
    static FREE_BLOCKS: std::cell::RefCell<FreeBlocks> =
        const { std::cell::RefCell::new(FreeBlocks([const { Vec::new() }; CLASSES])) };
}

struct FreeBlocks([Vec<NonNull<u8>>; CLASSES]);

impl std::ops::Index<usize> for FreeBlocks {
    type Output = Vec<NonNull<u8>>;
    fn index(&self, class: usize) -> &Self::Output {
        &self.0[class]
    }
}

impl std::ops::IndexMut<usize> for FreeBlocks {
    fn index_mut(&mut self, class: usize) -> &mut Self::Output {
        &mut self.0[class]
    }
}

impl Drop for FreeBlocks {
    fn drop(&mut self) {
        for (class, blocks) in self.0.iter_mut().enumerate() {
            for block in blocks.drain(..) {
                // SAFETY: every block on this list came from `alloc` with this class's layout.
                unsafe { std::alloc::dealloc(block.as_ptr(), layout(class)) }
            }
        }
    }
}

fn store<F: Future<Output = ()> + 'static>(future: F) -> Stored {
    let class = class_of(size_of::<F>(), align_of::<F>());
    let block = FREE_BLOCKS
        .with(|free| free.borrow_mut()[class].pop())
        .unwrap_or_else(|| {
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { std::alloc::alloc(layout(class)) })
                .unwrap_or_else(|| std::alloc::handle_alloc_error(layout(class)))
        });
    let place: NonNull<F> = block.cast();
    // SAFETY: the block is large and aligned enough for an F (checked by `class_of`), and is ours.
    unsafe { place.write(future) }
    Stored {
        block,
        class,
        future: place,
        here: PhantomData,
    }
}

enum State {
    Free,
    /// Stored, or absent while it is being polled.
    Live(Option<Stored>),
}

struct Slot {
    generation: u32,
    queued: bool,
    account: Account,
    state: State,
}

/// The tasks of one executor.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
}

impl Tasks {
    pub(super) const fn len(&self) -> usize {
        self.live
    }

    /// Stores a task as queued; the caller puts its index on the ready queue.
    pub(super) fn insert(
        &mut self,
        future: impl Future<Output = ()> + 'static,
        account: Account,
    ) -> u32 {
        let stored = store(future);
        self.live += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.queued = true;
            slot.account = account;
            slot.state = State::Live(Some(stored));
            return index;
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^28 tasks");
        assert!(index < 1 << INDEX_BITS, "fewer than 2^28 tasks");
        self.slots.push(Slot {
            generation: 0,
            queued: true,
            account,
            state: State::Live(Some(stored)),
        });
        index
    }

    /// On whose account a task runs.
    pub(super) fn account(&self, index: u32) -> Account {
        self.slots[index as usize].account
    }

    /// Takes a task's future for polling. None if it has ended meanwhile.
    pub(super) fn begin(&mut self, index: u32, executor: u8) -> Option<(Stored, Data)> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.queued = false;
        let State::Live(stored) = &mut slot.state else {
            return None;
        };
        let stored = stored.take()?;
        Some((stored, Data::new(executor, slot.generation, index)))
    }

    /// Puts a future back, or frees its slot if it is done; then the future is returned, to be
    /// dropped when nothing is borrowed.
    pub(super) fn end(&mut self, index: u32, stored: Stored, done: bool) -> Option<Stored> {
        let slot = &mut self.slots[index as usize];
        if !done && matches!(slot.state, State::Live(_)) {
            slot.state = State::Live(Some(stored));
            return None;
        }
        if matches!(slot.state, State::Live(_)) {
            self.release(index);
        }
        Some(stored)
    }

    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.live -= 1;
    }

    /// Returns whether the wake-up is for a live task that is not queued already; then it counts as
    /// queued.
    pub(super) fn mark_queued(&mut self, data: Data) -> bool {
        let Some(slot) = self.slots.get_mut(data.index() as usize) else {
            return false;
        };
        let current = slot.generation & ((1 << INDEX_BITS) - 1) == data.generation();
        if !current || slot.queued || matches!(slot.state, State::Free) {
            return false;
        }
        slot.queued = true;
        true
    }

    /// Ends every task that is not being polled.
    pub(super) fn take_all(&mut self) -> Vec<Stored> {
        let mut taken = Vec::new();
        for index in 0..self.slots.len() {
            if let State::Live(stored) = &mut self.slots[index].state
                && let Some(stored) = stored.take()
            {
                taken.push(stored);
                self.release(u32::try_from(index).expect("fewer than 2^28 tasks"));
            }
        }
        taken
    }
}
