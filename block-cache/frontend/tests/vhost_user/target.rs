//! A disk in this process, on a memory device that logs requests and can be held.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Completion, DeviceInfo, Op, Request};
use forebay_device::mem::MemDevice;
use forebay_frontend::{Spread, Succession, vhost_user};
use forebay_io::net::{Address, Listener};
use forebay_io::rt::{self, Remote};
use forebay_io::sync::Promise;
use forebay_io::{Engine, spawn_reactor};
use forebay_volume::{Volume, VolumeHandle};

pub(crate) const SIZE_BYTES: u64 = 16 << 20;

pub(crate) type Log = Arc<Mutex<Vec<(Op, u64, u64)>>>;

struct Recorder {
    inner: Rc<dyn BlockDevice>,
    log: Log,
    hold: Arc<AtomicBool>,
}

impl BlockDevice for Recorder {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if request.op != Op::Read {
            let entry = (request.op, request.offset, request.len);
            self.log.lock().expect("no test panics here").push(entry);
        }
        let (inner, hold) = (Rc::clone(&self.inner), Arc::clone(&self.hold));
        rt::spawn(async move {
            while hold.load(Ordering::Acquire) {
                rt::sleep(Duration::from_millis(1)).await;
            }
            done.complete(inner.start(request).await);
        });
    }
}

pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) log: Log,
    pub(crate) hold: Arc<AtomicBool>,
    pub(crate) volume: VolumeHandle,
    pub(crate) succession: Succession,
    stops: Vec<(Remote, JoinHandle<()>)>,
}

thread_local! {
    static STOP: Promise<()> = Promise::new();
    static CLOSE: Promise<()> = Promise::new();
}

fn reactor<T: Send + 'static>(
    name: &str,
    engine: Engine,
    start: impl FnOnce() -> T + Send + 'static,
) -> (T, (Remote, JoinHandle<()>)) {
    let (send, receive) = mpsc::channel();
    let thread = spawn_reactor(name, engine, move || async move {
        send.send((start(), rt::remote())).expect("the test waits");
        STOP.with(Promise::clone).get().await;
    })
    .expect("a reactor");
    let (value, remote) = receive.recv().expect("the reactor starts");
    (value, (remote, thread))
}

impl Target {
    /// Starts a disk whose queues are spread over two reactors, one of them the volume's.
    pub(crate) fn start(engine: Engine) -> Self {
        Self::of(engine, b"test")
    }

    /// Starts a disk whose volume has the identity `origin`.
    pub(crate) fn of(engine: Engine, origin: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-vhost-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (log, hold) = (Log::default(), Arc::new(AtomicBool::new(false)));
        let (recorded, held) = (Arc::clone(&log), Arc::clone(&hold));
        let (volume, engine_stop) = reactor("engine", engine, move || {
            let device = Recorder {
                inner: MemDevice::new("memory", SIZE_BYTES),
                log: recorded,
                hold: held,
            };
            let volume = Volume::new("a-disk", Rc::new(device), false);
            let handle = volume.handle();
            rt::spawn(async move {
                let _volume = volume;
                CLOSE.with(Promise::clone).get().await;
            });
            handle
        });
        let (at, served) = (path.clone(), volume.clone());
        let beside = engine_stop.0.clone();
        let succession = Succession::new(&volume, origin);
        let own = succession.clone();
        let ((), second_stop) = reactor("second", engine, move || {
            let listener = Listener::bind(&Address::Unix(at)).expect("a socket");
            let spread = Arc::new(Spread::new([rt::remote(), beside]));
            rt::spawn(async move {
                let served = vhost_user::serve_on(listener, served, own, spread).await;
                served.expect("the target goes on");
            });
        });
        Self {
            path,
            log,
            hold,
            volume,
            succession,
            stops: vec![engine_stop, second_stop],
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the requests to the device since the last call, without reads.
    pub(crate) fn take_log(&self) -> Vec<(Op, u64, u64)> {
        std::mem::take(&mut self.log.lock().expect("no test panics here"))
    }

    /// Closes the volume, as a detach and the end of the daemon do.
    pub(crate) fn close_volume(&self) {
        let (sender, receiver) = mpsc::channel();
        self.stops[0].0.call(move || {
            CLOSE.with(|close| close.set(()));
            rt::spawn(async move {
                // Runs after the task that has it.
                rt::sleep(Duration::from_millis(10)).await;
                sender.send(()).expect("the test waits");
            });
        });
        receiver.recv().expect("done");
    }

    /// Holds requests, or releases them.
    pub(crate) fn hold(&self, held: bool) {
        self.hold.store(held, Ordering::Release);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.hold(false);
        for (remote, thread) in self.stops.drain(..).rev() {
            remote.call(|| STOP.with(|stop| stop.set(())));
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the target ends in order");
            }
        }
    }
}
