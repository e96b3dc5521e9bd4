//! One queue: takes requests from the guest's ring, runs a task for each, and returns them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, mpsc};
use std::task::Poll;

use forebay_io::event::{self, Event};
use forebay_io::rt;
use forebay_io::sync::WaitList;
use virtio_queue::{DescriptorChain, Queue as Ring, QueueT as _};

use super::chain::Chain;
use super::command::Executor;
use super::export::{Export, MAX_SEGMENTS};
use super::inflight::Tracker;
use super::memory::{Memory, Ram};

/// Number of requests that are started before other tasks run.
const BURST: u32 = 8;

/// Parameters of a queue.
pub(super) struct Start {
    pub(super) id: u64,
    pub(super) export: Arc<Export>,
    pub(super) memory: Arc<Memory>,
    pub(super) ring: Ring,
    /// Tracker of its requests in flight, and the heads that an earlier process left.
    pub(super) tracker: Option<(Tracker, Vec<u16>)>,
    pub(super) kick: OwnedFd,
    pub(super) call: Option<OwnedFd>,
    /// Whether the guest sends flushes. If not, every write must be durable when it ends.
    pub(super) flushes: bool,
    /// Receives the next entry of the ring when the queue has ended.
    pub(super) ended: mpsc::Sender<u16>,
}

/// A queue in use.
pub(super) struct Queue {
    id: u64,
    ring: RefCell<Ring>,
    tracker: Option<RefCell<Tracker>>,
    executor: Executor,
    call: Option<OwnedFd>,
    /// Whether to notify the guest of requests that have ended.
    must_notify: Cell<bool>,
    in_flight: Cell<u64>,
    idle: WaitList,
    stopping: Cell<bool>,
    stop: WaitList,
    /// Memory of ended requests, for reuse.
    spare: RefCell<Vec<Chain>>,
}

thread_local! {
    /// Queues of this thread's reactor.
    static QUEUES: RefCell<Vec<(u64, Weak<Queue>)>> = const { RefCell::new(Vec::new()) };
}

/// Ends a queue of the calling reactor.
pub(super) fn stop(id: u64) {
    let found = QUEUES.with_borrow(|list| {
        let (_, found) = list.iter().find(|(known, _)| *known == id)?;
        found.upgrade()
    });
    if let Some(queue) = found {
        queue.stopping.set(true);
        queue.stop.wake_all();
    }
}

/// Starts a queue on the calling reactor.
pub(super) fn start(start: Start) {
    let (tracker, left) = start.tracker.unzip();
    let queue = Rc::new(Queue {
        id: start.id,
        ring: RefCell::new(start.ring),
        executor: Executor::new(start.export, start.memory, start.flushes, tracker.is_some()),
        tracker: tracker.map(RefCell::new),
        call: start.call,
        must_notify: Cell::new(false),
        in_flight: Cell::new(0),
        idle: WaitList::new(),
        stopping: Cell::new(false),
        stop: WaitList::new(),
        spare: RefCell::default(),
    });
    QUEUES.with_borrow_mut(|list| list.push((queue.id, Rc::downgrade(&queue))));
    let (kick, ended) = (start.kick, start.ended);
    rt::spawn(async move {
        queue.resume_inflight(&left.unwrap_or_default());
        if let Err(error) = queue.serve(kick).await {
            let (volume, why) = (queue.executor.export.volume().name(), error.report());
            tracing::debug!(volume, why, "a virtual machine's queue has ended");
        }
        queue.idle.until(|| queue.in_flight.get() == 0).await;
        queue.notify();
        QUEUES.with_borrow_mut(|list| list.retain(|(id, _)| *id != queue.id));
        // The monitor may be gone.
        let _ = ended.send(queue.ring.borrow().next_avail());
    });
}

impl Queue {
    async fn serve(self: &Rc<Self>, kick: OwnedFd) -> forebay_block::Result<()> {
        let kick = Event::adopt(kick)?;
        // An earlier owner of the ring may have answered requests without notifying the guest. This
        // queue has answered none yet, so it cannot tell from the ring whether the guest wants a
        // notification.
        let _ = (self.ring.borrow_mut()).needs_notification(self.executor.memory.ram());
        if let Some(call) = &self.call {
            event::signal(call.as_fd());
        }
        loop {
            self.take_all().await;
            let (mut kicked, mut stopped) = (pin!(kick.wait()), pin!(self.stop.wait()));
            poll_fn(|cx| {
                if self.stopping.get() || stopped.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                kicked.as_mut().poll(cx)
            })
            .await?;
            if self.stopping.get() {
                return Ok(());
            }
        }
    }

    /// Starts all requests in the ring. The guest kicks for later ones.
    async fn take_all(self: &Rc<Self>) {
        let mut begun = 0_u32;
        // A ring with invalid indices always claims to have more entries.
        let mut empty_handed = 0;
        while empty_handed < 2 {
            let _ = (self.ring.borrow_mut()).disable_notification(self.executor.memory.ram());
            empty_handed += 1;
            while !self.stopping.get()
                && let Some(chain) = self.next()
            {
                empty_handed = 0;
                self.begin(chain);
                begun = begun.wrapping_add(1);
                if begun.is_multiple_of(BURST) {
                    rt::yield_now().await;
                }
            }
            let more = (self.ring.borrow_mut()).enable_notification(self.executor.memory.ram());
            if self.stopping.get() || !more.unwrap_or(false) {
                return;
            }
        }
    }

    fn begin(self: &Rc<Self>, chain: Chain) {
        self.in_flight.set(self.in_flight.get() + 1);
        rt::spawn(Rc::clone(self).run(chain));
    }

    /// Starts the requests that an earlier process has not answered, as they are in the guest's
    /// memory.
    fn resume_inflight(self: &Rc<Self>, heads: &[u16]) {
        if heads.is_empty() {
            return;
        }
        let rings = self.executor.memory.with_heads(&self.ring.borrow(), heads);
        let Some((ram, mut ring)) = rings else {
            let volume = self.executor.export.volume().name();
            tracing::warn!(
                volume,
                "a virtual machine's requests in flight cannot be read from the ring"
            );
            return;
        };
        while let Some(descriptors) = ring.pop_descriptor_chain(&ram) {
            self.begin(self.chain(descriptors));
        }
    }

    /// Returns the next request in the ring.
    fn next(&self) -> Option<Chain> {
        let descriptors =
            (self.ring.borrow_mut()).pop_descriptor_chain(self.executor.memory.ram())?;
        if let Some(tracker) = &self.tracker {
            tracker.borrow_mut().take(descriptors.head_index());
        }
        Some(self.chain(descriptors))
    }

    fn chain(&self, descriptors: DescriptorChain<&Ram>) -> Chain {
        let mut chain = self.spare.borrow_mut().pop().unwrap_or_default();
        // A chain is as long as the ring at most (Virtual I/O Device 1.2, 2.7.5.3.1).
        let ring = usize::from(self.ring.borrow().size());
        chain.read(descriptors, ring.max(MAX_SEGMENTS as usize + 2));
        chain
    }

    async fn run(self: Rc<Self>, chain: Chain) {
        let written = match chain.sound {
            true => self.executor.run(&chain).await,
            false => Some(0),
        };
        let used = written.map(|written| self.answer(chain.head, written));
        self.spare.borrow_mut().push(chain);
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 {
            self.idle.wake_all();
        }
        if matches!(used, Some(Ok(()))) && !self.must_notify.replace(true) {
            // One notification covers all requests that end now.
            rt::yield_now().await;
            self.notify();
        }
    }

    /// Returns a request to the ring.
    fn answer(&self, head: u16, written: u32) -> Result<(), virtio_queue::Error> {
        let mut ring = self.ring.borrow_mut();
        let tracker = self.tracker.as_ref().map(RefCell::borrow);
        if let Some(tracker) = &tracker {
            tracker.answering(head);
        }
        ring.add_used(self.executor.memory.ram(), head, written)?;
        if let Some(tracker) = &tracker {
            tracker.answered(head, ring.next_used());
        }
        Ok(())
    }

    /// Notifies the guest of ended requests, if it wants that.
    fn notify(&self) {
        if !self.must_notify.replace(false) {
            return;
        }
        let wanted = (self.ring.borrow_mut()).needs_notification(self.executor.memory.ram());
        if wanted.unwrap_or(true)
            && let Some(call) = &self.call
        {
            event::signal(call.as_fd());
        }
    }
}
