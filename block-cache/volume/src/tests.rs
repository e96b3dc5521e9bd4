mod extents;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use forebay_block::{
    BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, Error, ErrorKind, Op, Request, Result,
};
use forebay_io::rt::{self, Executor};
use forebay_io::sync::Promise;

use crate::{Volume, VolumeHandle, record};

const SIZE_BYTES: u64 = 1 << 20;

/// A device in DRAM that logs its requests, and completes them at once or on demand.
struct Fake {
    fua: bool,
    held: Cell<bool>,
    size_bytes: Cell<u64>,
    data: RefCell<Vec<u8>>,
    log: RefCell<Vec<Op>>,
    waiting: RefCell<Vec<(Request, Completion)>>,
}

impl Fake {
    fn new() -> Rc<Self> {
        Self::with_fua(true)
    }

    fn with_fua(fua: bool) -> Rc<Self> {
        Rc::new(Self {
            fua,
            held: Cell::new(false),
            size_bytes: Cell::new(SIZE_BYTES),
            data: RefCell::new(vec![0; usize::try_from(SIZE_BYTES).expect("small")]),
            log: RefCell::default(),
            waiting: RefCell::default(),
        })
    }

    fn run(&self, request: &Request) {
        let at = usize::try_from(request.offset).expect("small");
        match (request.op, &request.buf) {
            (Op::Read, Some(buf)) => buf.copy_from(0, &self.data.borrow()[at..at + buf.len()]),
            (Op::Write { .. }, Some(buf)) => {
                buf.copy_to(0, &mut self.data.borrow_mut()[at..at + buf.len()]);
            }
            _ => {}
        }
    }

    fn release(&self) {
        self.held.set(false);
        for (request, done) in self.waiting.take() {
            self.run(&request);
            done.complete(Ok(()));
        }
    }
}

impl BlockDevice for Fake {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            fua: self.fua,
            ..DeviceInfo::new("fake", self.size_bytes.get())
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        self.log.borrow_mut().push(request.op);
        if self.held.get() {
            self.waiting.borrow_mut().push((request, done));
        } else {
            self.run(&request);
            done.complete(Ok(()));
        }
    }
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().as_ref().map(Error::kind)
}

/// Runs a future on a new executor of this thread, and counts its wake-ups from other threads.
fn run<T: 'static>(wakes: &Arc<AtomicUsize>, future: impl Future<Output = T> + 'static) -> T {
    let (thread, counted) = (thread::current(), Arc::clone(wakes));
    let executor = Executor::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        thread.unpark();
    });
    let _entered = executor.enter();
    let result = Rc::new(RefCell::new(None));
    let slot = Rc::clone(&result);
    executor.spawn(async move {
        let value = future.await;
        *slot.borrow_mut() = Some(value);
    });
    loop {
        if let Some(value) = result.borrow_mut().take() {
            executor.clear();
            return value;
        }
        if executor.collect() {
            executor.run_ready(64);
        } else {
            thread::park_timeout(std::time::Duration::from_millis(100));
        }
    }
}

/// A reactor with a volume, on its own thread, until it is stopped.
struct Engine {
    handle: VolumeHandle,
    wakes: Arc<AtomicUsize>,
    hold: rt::Remote,
    thread: Option<thread::JoinHandle<Vec<Op>>>,
    stop: Arc<AtomicBool>,
}

thread_local! {
    static FAKE: RefCell<Option<(Rc<Fake>, Promise<()>)>> = const { RefCell::new(None) };
}

impl Engine {
    fn start() -> Self {
        let (send, receive) = mpsc::channel();
        let wakes = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let counted = Arc::clone(&wakes);
        let thread = thread::spawn(move || {
            run(&counted, async move {
                let fake = Fake::new();
                let end = Promise::new();
                FAKE.set(Some((Rc::clone(&fake), end.clone())));
                let volume = Volume::new("v", fake.clone(), false);
                send.send((volume.handle(), rt::remote())).expect("a test");
                end.get().await;
                volume.drain().await;
                drop(volume);
                fake.log.take()
            })
        });
        let (handle, hold) = receive.recv().expect("an engine");
        Self {
            handle,
            wakes,
            hold,
            thread: Some(thread),
            stop,
        }
    }

    /// Runs `f` with the device on the engine's thread, and waits for its end.
    fn with_fake<T: Send + 'static>(&self, f: impl FnOnce(&Rc<Fake>) -> T + Send + 'static) -> T {
        let (send, receive) = mpsc::channel();
        self.hold.call(move || {
            let value = FAKE.with_borrow(|fake| f(&fake.as_ref().expect("an engine").0));
            send.send(value).expect("a test");
        });
        receive.recv().expect("an engine")
    }

    fn end(&mut self) -> Vec<Op> {
        self.stop.store(true, Ordering::Relaxed);
        self.hold.call(|| {
            FAKE.with_borrow(|fake| fake.as_ref().expect("an engine").1.set(()));
        });
        let thread = self.thread.take().expect("ends once");
        thread.join().expect("the engine's thread")
    }
}

#[test]
fn bad_requests_never_reach_the_device() {
    rt::block_on_simulated(1, async {
        let fake = Fake::new();
        let volume = Volume::new("v", fake.clone(), false);
        let device = volume.handle().open();
        let buf = Buf::zeroed(512);
        let past = device.read(SIZE_BYTES, buf.clone()).await;
        assert_eq!(kind(past), Some(ErrorKind::OutOfRange));
        let odd = device.write(1, buf.clone()).await;
        assert_eq!(kind(odd), Some(ErrorKind::InvalidInput));
        let sealed = Volume::new("r", fake.clone(), true);
        let read_only = sealed.handle().open();
        assert!(sealed.handle().read_only());
        for refused in [
            read_only.write(0, buf.clone()).await,
            read_only.discard(0, 512).await,
            read_only.write_zeroes(0, 512).await,
        ] {
            assert_eq!(kind(refused), Some(ErrorKind::ReadOnly));
        }
        assert!(fake.log.borrow().is_empty());
        read_only.read(0, buf).await.expect("reads are fine");
        read_only.flush().await.expect("flushes are fine");
        let stats = sealed.handle().stats();
        assert_eq!((stats.write.ops, stats.write.errors), (1, 1));
        assert_eq!((stats.read.ops, stats.read.bytes), (1, 512));
        assert_eq!(stats.flush.latency.count(), 1);
        assert_eq!(stats.in_flight, 0);
    });
}

#[test]
fn fua_without_a_device_that_has_it_is_a_write_and_a_flush() {
    rt::block_on_simulated(2, async {
        let fake = Fake::with_fua(false);
        let volume = Volume::new("v", fake.clone(), false);
        let device = volume.handle().open();
        assert!(device.info().fua);
        device.write_fua(0, Buf::zeroed(512)).await.expect("fua");
        device.write(0, Buf::zeroed(512)).await.expect("plain");
        let zero = Request::write_zeroes(0, 512, true, false);
        device.start(zero).await.expect("zeroes with fua");
        let plain = Op::Write { fua: false };
        let zeroes = Op::WriteZeroes {
            fua: false,
            unmap: false,
        };
        assert_eq!(
            *fake.log.borrow(),
            [plain, Op::Flush, plain, zeroes, Op::Flush]
        );
    });
}

#[test]
fn drain_refuses_the_new_and_waits_for_the_old() {
    rt::block_on_simulated(3, async {
        let fake = Fake::new();
        fake.held.set(true);
        let volume = Rc::new(Volume::new("v", fake.clone(), false));
        let device = volume.handle().open();
        let old = device.write(0, Buf::zeroed(512));
        assert_eq!(volume.handle().stats().in_flight, 1);
        let drained = Promise::new();
        let (waits, done) = (Rc::clone(&volume), drained.clone());
        rt::spawn(async move {
            waits.drain().await;
            done.set(());
        });
        for _ in 0..50 {
            rt::yield_now().await;
        }
        assert!(!drained.is_set(), "one is in flight");
        let new = device.flush().await;
        assert_eq!(kind(new), Some(ErrorKind::ShuttingDown));
        fake.release();
        old.await.expect("the old one ends well");
        drained.get().await;
    });
}

#[test]
fn a_fenced_volume_refuses_all_requests_with_its_first_reason() {
    rt::block_on_simulated(3, async {
        let fake = Fake::new();
        let volume = Volume::new("v", fake.clone(), false);
        let device = volume.handle().open();
        device.read(0, Buf::zeroed(512)).await.expect("read");
        for reason in ["another writer", "later"] {
            volume.fence(Error::new(ErrorKind::Busy, reason));
        }
        let asked = fake.log.borrow().len();
        for refused in [
            device.read(0, Buf::zeroed(512)).await,
            device.write(0, Buf::zeroed(512)).await,
            device.flush().await,
        ] {
            let error = refused.expect_err("it is fenced");
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(error.report().contains("another writer"));
        }
        assert_eq!(fake.log.borrow().len(), asked);
        volume.drain().await;
    });
}

#[test]
fn a_volume_grows_and_does_not_shrink() {
    rt::block_on_simulated(4, async {
        let fake = Fake::new();
        let volume = Volume::new("v", fake.clone(), false);
        let device = volume.handle().open();
        fake.size_bytes.set(2 * SIZE_BYTES);
        let beyond = device.discard(SIZE_BYTES, 512).await;
        assert_eq!(kind(beyond), Some(ErrorKind::OutOfRange), "not told yet");
        assert_eq!(volume.grow().expect("it grew"), 2 * SIZE_BYTES);
        device.discard(SIZE_BYTES, 512).await.expect("in range now");
        assert_eq!(volume.handle().info().size_bytes, 2 * SIZE_BYTES);
        fake.size_bytes.set(512);
        assert_eq!(
            volume.grow().map_err(|error| error.kind()),
            Err(ErrorKind::Busy)
        );
        assert_eq!(device.info().size_bytes, 2 * SIZE_BYTES);
    });
}

#[test]
fn another_reactor_reads_its_own_writes() {
    let mut engine = Engine::start();
    let handle = engine.handle.clone();
    run(&Arc::default(), async move {
        let device = handle.open();
        let data = Buf::copied(&[7; 4096]);
        device.write(8192, data).await.expect("write");
        device.flush().await.expect("flush");
        let back = Buf::zeroed(4096);
        device.read(8192, back.clone()).await.expect("read");
        assert_eq!(back.to_vec(), [7; 4096]);
        let past = device.read(SIZE_BYTES, back).await;
        assert_eq!(kind(past), Some(ErrorKind::OutOfRange));
    });
    let write = Op::Write { fua: false };
    assert_eq!(engine.end(), [write, Op::Flush, Op::Read]);
    let stats = engine.handle.stats();
    assert_eq!((stats.write.ops, stats.read.errors), (1, 1));
}

#[test]
fn many_requests_cost_one_wake_up_each_way() {
    const REQUESTS: usize = 64;
    let mut engine = Engine::start();
    let handle = engine.handle.clone();
    let there = Arc::clone(&engine.wakes);
    let here = Arc::new(AtomicUsize::new(0));
    let before = there.load(Ordering::Relaxed);
    // While the engine is busy, requests to it gather.
    let gate = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
    let seen = Arc::clone(&gate);
    engine.hold.call(move || {
        seen.0.store(true, Ordering::Release);
        while !seen.1.load(Ordering::Acquire) {
            thread::yield_now();
        }
    });
    while !gate.0.load(Ordering::Acquire) {
        thread::yield_now();
    }
    run(&here, async move {
        let device = handle.open();
        let pending: Vec<_> = (0..REQUESTS)
            .map(|at| device.write(at as u64 * 512, Buf::zeroed(512)))
            .collect();
        gate.1.store(true, Ordering::Release);
        for write in pending {
            write.await.expect("write");
        }
    });
    let there = there.load(Ordering::Relaxed) - before;
    assert!(there <= 3, "{there} wake-ups of the engine's reactor");
    let here = here.load(Ordering::Relaxed);
    assert!(
        here <= REQUESTS / 4,
        "{here} wake-ups of the asking reactor"
    );
    assert_eq!(engine.end().len(), REQUESTS);
}

#[test]
fn a_buffer_outlives_the_reactor_that_asked() {
    let mut engine = Engine::start();
    engine.with_fake(|fake| fake.held.set(true));
    let handle = engine.handle.clone();
    thread::spawn(move || {
        run(&Arc::default(), async move {
            let device = handle.open();
            drop(device.write(512, Buf::copied(&[9; 512])));
            let pending_write = device.write(1024, Buf::copied(&[8; 512]));
            rt::spawn(async move {
                let _ = pending_write.await;
            });
        });
    })
    .join()
    .expect("the asking thread ends in order");
    // The memory of the dead thread is reused, if it was freed at all.
    let _others: Vec<Buf> = (0..64).map(|_| Buf::copied(&[1; 512])).collect();
    while engine.with_fake(|fake| fake.waiting.borrow().len()) < 2 {
        thread::yield_now();
    }
    let data = engine.with_fake(|fake| {
        fake.release();
        fake.data.borrow()[512..1536].to_vec()
    });
    assert_eq!(data[..512], [9; 512]);
    assert_eq!(data[512..], [8; 512]);
    assert_eq!(engine.end().len(), 2);
}

#[test]
fn one_thread_may_ask_from_one_reactor_after_the_other() {
    let mut engine = Engine::start();
    for round in 0..3_u8 {
        let handle = engine.handle.clone();
        run(&Arc::default(), async move {
            let device = handle.open();
            let data = Buf::copied(&[round; 512]);
            device.write(0, data).await.expect("write");
            drop(device.flush());
        });
    }
    assert!(engine.end().len() >= 3);
}

#[test]
fn a_foreign_thread_waits_for_its_request() {
    let mut engine = Engine::start();
    let handle = engine.handle.clone();
    let threads: Vec<_> = (0..4_u64)
        .map(|index| {
            let handle = handle.clone();
            thread::spawn(move || {
                for round in 0..50_u8 {
                    let data = Buf::copied(&[round; 512]);
                    let write = Request::write(index * 512, data, false);
                    handle.call_blocking(write).expect("write");
                    let back = Buf::zeroed(512);
                    let read = Request::read(index * 512, back.clone());
                    handle.call_blocking(read).expect("read");
                    assert_eq!(back.to_vec(), [round; 512]);
                }
                let odd = handle.call_blocking(Request::discard(1, 1));
                assert_eq!(kind(odd), Some(ErrorKind::InvalidInput));
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a foreign thread");
    }
    assert_eq!(engine.end().len(), 4 * 50 * 2);
    let late = handle.call_blocking(Request::flush());
    assert_eq!(kind(late), Some(ErrorKind::ShuttingDown));
    run(&Arc::default(), async move {
        let late = handle.open().flush().await;
        assert_eq!(kind(late), Some(ErrorKind::ShuttingDown));
    });
}

#[test]
fn accepted_requests_are_recorded_and_refused_ones_are_not() {
    rt::block_on_simulated(1, async {
        let volume = Volume::new("v", Fake::new(), false);
        let device = volume.handle().open();
        let (recorder, mut drain) = record::ring(16);
        device.flush().await.expect("before the recording");
        volume.record(Some((Rc::new(recorder), 3)));
        let buf = Buf::zeroed(4096);
        device.write(8192, buf.clone()).await.expect("a write");
        let refused = device.read(SIZE_BYTES, buf.clone()).await;
        assert_eq!(kind(refused), Some(ErrorKind::OutOfRange));
        device.read(4096, buf).await.expect("a read");
        volume.record(None);
        device.flush().await.expect("after the recording");
        let mut bytes = Vec::new();
        assert_eq!(drain.take(&mut bytes, 16), 2);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight"));
        // Everything except the time.
        let records = bytes.chunks_exact(record::RECORD_BYTES);
        let seen: Vec<_> = records
            .map(|record| (word(&record[8..16]), word(&record[16..])))
            .collect();
        let expected = [(8192, 4096 | 3 << 32 | 1 << 48), (4096, 4096 | 3 << 32)];
        assert_eq!(seen, expected);
        assert!(drain.ended());
    });
}

#[test]
fn a_volume_drops_a_recorder_without_a_reader() {
    rt::block_on_simulated(1, async {
        let volume = Volume::new("v", Fake::new(), false);
        let device = volume.handle().open();
        let (recorder, drain) = record::ring(4);
        let recorder = Rc::new(recorder);
        volume.record(Some((Rc::clone(&recorder), 0)));
        drop(drain);
        for _ in 0..10 {
            device.flush().await.expect("served as ever");
        }
        assert_eq!(Rc::strong_count(&recorder), 1);
    });
}
