//! A target in this process, on a memory device that logs requests and can be held. The volume and
//! the connections are on separate reactors.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_auth::Secrets;
use forebay_block::{BlockDevice, BlockDeviceExt as _, Completion, DeviceInfo, Op, Request};
use forebay_device::mem::MemDevice;
use forebay_frontend::Spread;
use forebay_frontend::nvme_tcp::{Exports, Subsystem, serve_on};
use forebay_io::net::{Address, Listener};
use forebay_io::rt::{self, Remote};
use forebay_io::sync::Promise;
use forebay_io::{Engine, spawn_reactor};
use forebay_volume::{Volume, VolumeHandle};

pub(crate) const SIZE_BYTES: u64 = 16 << 20;
pub(crate) const NQN: &str = "nqn.2026-11.io.forebay:test";
/// The same volume, for one host only.
pub(crate) const SEALED_NQN: &str = "nqn.2026-11.io.forebay:sealed";
pub(crate) const SEALED_HOST: &str = "nqn.2026-11.io.forebay:the-one";

/// The same volume, for a host that must authenticate itself.
pub(crate) const SECRET_NQN: &str = "nqn.2026-11.io.forebay:secret";
pub(crate) const SECRET_HOST: &str = "nqn.2026-11.io.forebay:knows-it";
/// Secret of the host: the bytes 0, 1, 2, ...
pub(crate) const HOST_SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
pub(crate) const HOST_KEY: &[u8] =
    b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\
    \x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f";
/// Secret of the controller: the bytes 100, 101, ..., transformed by SHA-256 with the subsystem's
/// name.
pub(crate) const CONTROLLER_SECRET: &str =
    "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";
pub(crate) const CONTROLLER_KEY: &[u8] = &[
    0x0c, 0x34, 0x4d, 0x87, 0x6e, 0x6f, 0x07, 0x69, 0x93, 0x18, 0x48, 0x52, 0xb0, 0xba, 0x2f, 0x05,
    0xf4, 0xfd, 0x11, 0x04, 0x13, 0x5f, 0xe9, 0x7b, 0x81, 0x85, 0x3f, 0x9a, 0x61, 0x6f, 0xac, 0x5d,
];

pub(crate) type Log = Arc<Mutex<Vec<(Op, u64, u64)>>>;

struct Recorder {
    inner: Rc<dyn BlockDevice>,
    log: Log,
    hold: Arc<AtomicBool>,
}

impl BlockDevice for Recorder {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            volatile_cache: true,
            ..self.inner.info()
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        if request.op != Op::Read {
            let entry = (request.op, request.offset, request.len);
            self.log.lock().expect("no test panics here").push(entry);
        }
        if !self.hold.load(Ordering::Acquire) || request.op == Op::Read {
            self.inner.submit(request, done);
            return;
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
    pub(crate) address: SocketAddr,
    pub(crate) log: Log,
    pub(crate) hold: Arc<AtomicBool>,
    pub(crate) subsystem: Arc<Subsystem>,
    /// Subsystem of [`SECRET_NQN`].
    pub(crate) secret: Arc<Subsystem>,
    pub(crate) volume: VolumeHandle,
    drain: mpsc::Sender<mpsc::Sender<()>>,
    stops: Vec<(Remote, JoinHandle<()>)>,
}

thread_local! {
    static STOP: Promise<()> = Promise::new();
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
    pub(crate) fn start() -> Self {
        Self::on(Engine::Auto)
    }

    pub(crate) fn on(engine: Engine) -> Self {
        let (log, hold) = (Log::default(), Arc::new(AtomicBool::new(false)));
        let (recorded, held) = (Arc::clone(&log), Arc::clone(&hold));
        let ((volume, drain), engine_stop) = reactor("engine", engine, move || {
            let device = Recorder {
                inner: MemDevice::new("memory", SIZE_BYTES),
                log: recorded,
                hold: held,
            };
            let volume = Volume::new("disk", Rc::new(device), false);
            let handle = volume.handle();
            let (send, receive) = mpsc::channel::<mpsc::Sender<()>>();
            rt::spawn(async move {
                loop {
                    if let Ok(drained) = receive.try_recv() {
                        volume.drain().await;
                        drained.send(()).expect("the test waits");
                    }
                    rt::sleep(Duration::from_millis(5)).await;
                }
            });
            (handle, send)
        });
        let subsystem = Subsystem::new(NQN, None, b"a test").expect("a name");
        let hosts = Some(vec![SEALED_HOST.to_owned()]);
        let sealed = Subsystem::new(SEALED_NQN, hosts, b"a test").expect("a name");
        let secrets = format!("{SECRET_HOST} {HOST_SECRET} {CONTROLLER_SECRET}");
        let secrets = Secrets::parse(&secrets).expect("secrets");
        let secret = Subsystem::with_secrets(SECRET_NQN, None, Some(secrets), b"a test");
        let secret = secret.expect("a name");
        let exports = Arc::new(Exports::new());
        for subsystem in [&subsystem, &sealed, &secret] {
            subsystem.add(volume.clone()).expect("a free place");
            exports.add(Arc::clone(subsystem)).expect("a free name");
        }
        let ((), second_stop) = reactor("second", engine, || ());
        let second = second_stop.0.clone();
        let (address, first_stop) = reactor("first", engine, move || {
            let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
            let listener = Listener::bind(&any).expect("a port");
            let Address::Tcp(address) = listener.address() else {
                unreachable!("it was bound to one");
            };
            let spread = Arc::new(Spread::new([rt::remote(), second]));
            rt::spawn(async move {
                let served = serve_on(listener, exports, spread).await;
                served.expect("the target goes on");
            });
            address
        });
        Self {
            address,
            log,
            hold,
            subsystem,
            secret,
            volume,
            drain,
            stops: vec![engine_stop, second_stop, first_stop],
        }
    }

    /// Returns the requests to the device since the last call, without reads.
    pub(crate) fn take_log(&self) -> Vec<(Op, u64, u64)> {
        std::mem::take(&mut self.log.lock().expect("no test panics here"))
    }

    /// Holds writes and flushes, or releases them.
    pub(crate) fn hold(&self, held: bool) {
        self.hold.store(held, Ordering::Release);
    }

    /// Drains the volume, which refuses requests after this returns.
    pub(crate) fn drain(&self) {
        let (drained, receive) = mpsc::channel();
        self.drain.send(drained).expect("the engine runs");
        receive.recv().expect("the engine runs");
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
