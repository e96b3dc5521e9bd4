//! A volume on its engine reactor.

mod fence;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_block::{
    BlockDevice, BlockDeviceExt, Completion, DeviceInfo, Error, ErrorKind, Extents, ExtentsFuture,
    Op, Request, Result,
};
use forebay_io::log_limiter::LogLimiter;
use forebay_io::rt;
use forebay_io::sync::WaitList;

use crate::answer::{Answer, ExtentsAnswer, RemoteRequest};
use crate::deadline::{Deadlines, PendingRequest};
use crate::limit::{LimitQueue, Limits};
use crate::mailbox::Mailbox;
use crate::record::Recorder;
use crate::shared::Shared;
use crate::stats::{Counters, OpKind};

thread_local! {
    /// Volumes whose engine reactor runs on this thread.
    static VOLUMES: RefCell<Vec<Rc<Local>>> = const { RefCell::new(Vec::new()) };
}

fn find(id: u64) -> Option<Rc<Local>> {
    VOLUMES.with_borrow(|volumes| volumes.iter().find(|local| local.shared.id == id).cloned())
}

pub(crate) fn open(id: u64) -> Option<Rc<dyn BlockDevice>> {
    find(id).map(|local| Rc::new(LocalDevice(local)) as Rc<dyn BlockDevice>)
}

fn receive(remote: RemoteRequest) {
    match find(remote.volume) {
        Some(local) => local.submit(remote.request, Answer::Remote(remote.answer)),
        None => remote.answer.refuse(ErrorKind::ShuttingDown.into()),
    }
}

/// Answers a query for extents of the volume with this number, on its engine reactor.
pub(crate) fn answer_extents(id: u64, range: Range<u64>, answer: ExtentsAnswer) {
    match find(id) {
        Some(local) => rt::spawn(async move { answer.give(local.extents(range).await) }),
        None => answer.give(Err(ErrorKind::ShuttingDown.into())),
    }
}

/// State of a volume on its engine reactor.
struct Local {
    shared: Arc<Shared>,
    device: Rc<dyn BlockDevice>,
    /// Copy of `shared.info`, without the lock.
    info: RefCell<DeviceInfo>,
    /// Whether the device supports FUA.
    device_fua: bool,
    /// Whether new requests are refused. Each request checks this.
    refusing: Cell<bool>,
    /// Reason of the refusal; `None` while the volume is drained.
    fence: RefCell<Option<Error>>,
    idle: WaitList,
    /// Whether there is a recorder. Each request checks this.
    recorded: Cell<bool>,
    recorder: RefCell<Option<(Rc<Recorder>, u16)>>,
    /// Whether requests may have to wait for the limits. Each request checks this.
    limited: Cell<bool>,
    queue: RefCell<LimitQueue<QueuedRequest>>,
    deadlines: Deadlines,
    /// Limiter of the log messages on failed requests. Clients get a number, and no cause.
    log_limiter: LogLimiter,
}

/// An accepted request that was not submitted to the device yet.
struct QueuedRequest {
    request: Request,
    /// Arrival time, if its latency is measured.
    came: Option<Duration>,
    answer: Answer,
}

/// A volume on the reactor of its device. Dropping it ends the volume: handles stay valid and
/// answer `ShuttingDown`. Call [`Volume::drain`] first to wait for requests in flight.
pub struct Volume {
    local: Rc<Local>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("name", &self.local.shared.name)
            .finish_non_exhaustive()
    }
}

impl Volume {
    /// Creates a volume called `name` on `device`, which belongs to the calling reactor.
    ///
    /// # Panics
    /// If this thread runs no reactor.
    #[must_use]
    pub fn new(name: impl Into<String>, device: Rc<dyn BlockDevice>, read_only: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = name.into();
        let device_info = device.info();
        let device_fua = device_info.fua;
        let info = presented(&name, device_info);
        let engine = rt::remote();
        let local = Rc::new(Local {
            shared: Arc::new(Shared {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                name,
                read_only,
                engine: engine.clone(),
                info: Mutex::new(info.clone()),
                counters: Counters::new(),
                inbox: Mailbox::new(engine, receive),
            }),
            device,
            info: RefCell::new(info),
            device_fua,
            refusing: Cell::new(false),
            fence: RefCell::new(None),
            log_limiter: LogLimiter::default(),
            idle: WaitList::new(),
            recorded: Cell::new(false),
            recorder: RefCell::new(None),
            limited: Cell::new(false),
            queue: RefCell::new(LimitQueue::new()),
            deadlines: Deadlines::new(),
        });
        VOLUMES.with_borrow_mut(|volumes| volumes.push(Rc::clone(&local)));
        Self { local }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.local.shared
    }

    /// Sets the limits of later requests. Requests above the limits wait, in order of arrival.
    /// Waiting requests keep their times.
    pub fn limit(&self, limits: Limits) {
        let mut queue = self.local.queue.borrow_mut();
        queue.set(limits);
        self.local.limited.set(!queue.is_open());
    }

    /// Sets the time limit of later requests: a request that the device has for longer than
    /// `limit`, within a quarter, fails with `TimedOut`. Until the device completes it, requests
    /// that touch its range fail likewise. The device still has its buffer, which must not be
    /// reused.
    pub fn time_out(&self, limit: Duration) {
        self.local.deadlines.set(limit);
    }

    /// Describes the requests that the device has not completed, including late ones.
    #[must_use]
    pub fn unreaped(&self) -> Vec<String> {
        let name = &self.local.shared.name;
        let requests = self.local.deadlines.unreaped();
        let named = requests
            .iter()
            .map(|request| format!("volume {name}: {request}"));
        named.collect()
    }

    /// Refuses new requests (with `ShuttingDown`) and waits until none is in flight. Requests that
    /// wait for the limits begin at once.
    pub async fn drain(&self) {
        self.local.refusing.set(true);
        let waiting = self.local.queue.borrow_mut().take_all();
        for (_, queued) in waiting {
            self.local.run(queued);
        }
        let counters = &self.local.shared.counters;
        self.local.idle.until(|| counters.in_flight() == 0).await;
    }

    /// Records every later request as one of the volume with this number, in place of an earlier
    /// recorder. `None` stops recording.
    pub fn record(&self, recorder: Option<(Rc<Recorder>, u16)>) {
        if let Some((recorder, _)) = &recorder {
            recorder.begin();
        }
        self.local.recorded.set(recorder.is_some());
        self.local.recorder.replace(recorder);
    }

    /// Adopts the current size of a device that has grown. Returns the size, bytes. Later requests
    /// may use it; NBD clients learn of it when they reconnect.
    ///
    /// # Errors
    /// `Busy` if the device has become smaller: clients may hold data beyond its end.
    pub fn grow(&self) -> Result<u64> {
        let local = &self.local;
        let size_bytes = local.device.info().size_bytes;
        let mut info = local.info.borrow_mut();
        if size_bytes < info.size_bytes {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "volume {} has {} bytes and its device only {size_bytes}: a volume does not \
                     shrink while it is served\n\
                     help: detach it first",
                    local.shared.name, info.size_bytes
                ),
            ));
        }
        info.size_bytes = size_bytes;
        let shared = &local.shared;
        *shared.info.lock().unwrap_or_else(PoisonError::into_inner) = info.clone();
        Ok(size_bytes)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.local.refusing.set(true);
        let id = self.local.shared.id;
        // Removed first: dropping the last reference drops a device, which may run any code.
        let gone = VOLUMES.try_with(|volumes| {
            let mut volumes = volumes.borrow_mut();
            let at = volumes.iter().position(|local| local.shared.id == id)?;
            Some(volumes.swap_remove(at))
        });
        drop(gone);
        for remote in self.local.shared.inbox.close() {
            remote.answer.refuse(ErrorKind::ShuttingDown.into());
        }
    }
}

/// Returns the properties that clients see: the device's, under the volume's name, with FUA.
fn presented(name: &str, device: DeviceInfo) -> DeviceInfo {
    DeviceInfo {
        name: name.to_owned(),
        fua: true,
        ..device
    }
}

impl Local {
    fn admit(&self, request: &Request) -> Result<()> {
        if self.refusing.get() {
            return Err(self.refusal());
        }
        if self.shared.read_only && !matches!(request.op, Op::Read | Op::Flush) {
            return Err(ErrorKind::ReadOnly.into());
        }
        self.info.borrow().check(request)
    }

    /// Returns the allocation of a range, from its start. Data is always right. So it is the answer
    /// where a change that has timed out may still arrive, and where the device fails or is slow.
    async fn extents(&self, range: Range<u64>) -> Result<Extents> {
        let len = range.end.saturating_sub(range.start);
        if self.refusing.get() {
            return Err(self.refusal());
        }
        self.info
            .borrow()
            .check(&Request::discard(range.start, len))?;
        if self.deadlines.refuses(range.start, len) {
            return Ok(Extents::data(range));
        }
        let asked = self.device.extents(range.clone());
        let found = match self.deadlines.limit() {
            None => asked.await,
            Some(limit) => {
                (rt::at_most(limit, asked).await).unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))
            }
        };
        Ok(found.unwrap_or_else(|_| Extents::data(range)))
    }

    #[cold]
    fn is_quarantined(&self) -> Error {
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "volume {}: an earlier write to this range has timed out and is not completed",
                self.shared.name
            ),
        )
    }

    fn submit(self: &Rc<Self>, request: Request, answer: Answer) {
        let kind = OpKind::of(request.op);
        if let Err(refused) = self.admit(&request) {
            self.shared.counters.refuse(kind);
            answer.give(Err(refused));
            return;
        }
        if self.recorded.get() {
            self.record(&request);
        }
        let came = self.shared.counters.start(kind).then(rt::now);
        if self.limited.get() {
            self.enqueue(QueuedRequest {
                request,
                came,
                answer,
            });
        } else {
            self.start(kind, request, came, answer);
        }
    }

    #[cold]
    fn enqueue(self: &Rc<Self>, queued: QueuedRequest) {
        let now = rt::now();
        let mut queue = self.queue.borrow_mut();
        let begin = queue.charge(now, &queued.request);
        if let Some(queued) = queue.queue(now, begin, queued) {
            drop(queue);
            self.run(queued);
            return;
        }
        self.shared.counters.limit(begin.saturating_sub(now));
        if !std::mem::replace(&mut queue.attended, true) {
            rt::spawn(run_queue(Rc::downgrade(self)));
        }
    }

    /// Starts queued requests that may begin. Returns the time until the next one.
    fn serve_queue(self: &Rc<Self>) -> Option<Duration> {
        loop {
            let now = rt::now();
            let mut queue = self.queue.borrow_mut();
            let Some(queued) = queue.pop(now) else {
                let next = queue.next();
                queue.attended = next.is_some();
                self.limited.set(!queue.is_open());
                return next.map(|begin| begin - now);
            };
            drop(queue);
            self.run(queued);
        }
    }

    /// Submits a request that the limits have admitted.
    fn run(self: &Rc<Self>, queued: QueuedRequest) {
        let kind = OpKind::of(queued.request.op);
        self.start(kind, queued.request, queued.came, queued.answer);
    }

    /// Submits a request to the device.
    #[inline(always)]
    fn start(
        self: &Rc<Self>,
        kind: OpKind,
        mut request: Request,
        came: Option<Duration>,
        answer: Answer,
    ) {
        let (op, offset, len) = (request.op, request.offset, request.len);
        if self.deadlines.refuses(offset, len) {
            self.finish(kind, len, came, Err(self.is_quarantined()), answer);
            return;
        }
        let then_flush = !self.device_fua && strip_fua(&mut request.op);
        let mut io = self.device.start(request);
        // A device that has completed already (a memory device) needs no task.
        if !then_flush
            && let Poll::Ready(outcome) =
                Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop()))
        {
            self.finish(kind, len, came, outcome, answer);
            return;
        }
        let place = self.track(PendingRequest::new(op, offset, len, came, answer));
        let this = Rc::clone(self);
        rt::spawn(async move {
            let mut outcome = io.await;
            if then_flush && outcome.is_ok() {
                outcome = this.device.flush().await;
            }
            match this.deadlines.remove(place) {
                Some(pending) => this.finish(kind, len, pending.came, outcome, pending.answer),
                None => this.shared.counters.ended_late(),
            }
        });
    }

    /// Adds a request to the deadlines, and starts the task that counts time if necessary.
    fn track(self: &Rc<Self>, pending: PendingRequest) -> usize {
        let deadlines = &self.deadlines;
        let place = deadlines.add(pending);
        if deadlines.limit().is_some() && !deadlines.attended.replace(true) {
            rt::spawn(fail_late_requests(Rc::downgrade(self)));
        }
        place
    }

    /// Fails the requests that are late, after each part of the limit.
    fn count_time(&self) {
        let Some(limit) = self.deadlines.limit() else {
            return;
        };
        for pending in self.deadlines.count() {
            let error = pending.late(&self.shared.name, limit);
            self.shared.counters.is_late();
            self.finish(
                pending.kind,
                pending.len,
                pending.came,
                Err(error),
                pending.answer,
            );
        }
    }

    #[cold]
    fn record(&self, request: &Request) {
        let mut recorder = self.recorder.borrow_mut();
        let open = recorder
            .as_ref()
            .is_some_and(|(to, volume)| to.record(*volume, request));
        if !open {
            *recorder = None;
            self.recorded.set(false);
        }
    }

    fn finish(
        &self,
        kind: OpKind,
        len: u64,
        started: Option<Duration>,
        outcome: Result<()>,
        answer: Answer,
    ) {
        let counters = &self.shared.counters;
        let latency = started.map(|started| rt::now().saturating_sub(started));
        counters.end(kind, len, outcome.is_ok(), latency);
        if let Err(error) = &outcome {
            self.log_limiter.failure(&self.shared.name, error);
        }
        answer.give(outcome);
        if self.refusing.get() && counters.in_flight() == 0 {
            self.idle.wake_all();
        }
    }
}

/// Serves a volume's queue until it is empty. Does not keep the volume alive.
async fn run_queue(volume: Weak<Local>) {
    while let Some(pause) = volume.upgrade().and_then(|local| local.serve_queue()) {
        rt::sleep(pause).await;
    }
}

/// Fails late requests of a volume while its device has any requests. Does not keep the volume
/// alive.
async fn fail_late_requests(volume: Weak<Local>) {
    while let Some(pause) = volume.upgrade().and_then(|local| {
        let pause = local.deadlines.pause();
        local.deadlines.attended.set(pause.is_some());
        pause
    }) {
        rt::sleep(pause).await;
        if let Some(local) = volume.upgrade() {
            local.count_time();
        }
    }
}

/// Removes FUA from an operation. Returns whether it was set.
fn strip_fua(op: &mut Op) -> bool {
    match op {
        Op::Write { fua } | Op::WriteZeroes { fua, .. } => std::mem::take(fua),
        Op::Read | Op::Flush | Op::Discard => false,
    }
}

/// A volume as a device of its engine reactor.
struct LocalDevice(Rc<Local>);

impl BlockDevice for LocalDevice {
    fn info(&self) -> DeviceInfo {
        self.0.info.borrow().clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.0.submit(request, Answer::Local(done));
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        Box::pin(self.0.extents(range))
    }
}
