//! A server in this process, on a memory device that records its requests.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Op, Request};
use forebay_device::mem::MemDevice;
use forebay_frontend::nbd::{Exports, Tls, serve};
use forebay_io::net::{Address, Listener};
use forebay_io::rt::{self, Remote};
use forebay_io::sync::Promise;
use forebay_io::{Engine, spawn_reactor};
use forebay_volume::{Volume, VolumeHandle};

/// Configuration of a test's server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) size_bytes: u64,
    pub(crate) engine: Engine,
    /// Whether the volume lives on another reactor than the server.
    pub(crate) apart: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            size_bytes: 64 << 20,
            engine: Engine::Auto,
            apart: false,
        }
    }
}

/// Requests to the device, oldest first, without reads.
pub(crate) type Log = Arc<Mutex<Vec<(Op, u64, u64)>>>;

struct Recorder {
    inner: Rc<dyn BlockDevice>,
    log: Log,
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
        self.inner.submit(request, done);
    }

    fn inner(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }
}

/// A running server with two exports on one device: `disk`, and `sealed`, which is read-only.
pub(crate) struct Server {
    folder: PathBuf,
    pub(crate) tcp: String,
    pub(crate) log: Log,
    pub(crate) disk: VolumeHandle,
    drain: Drain,
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

/// Requests to drain the disk. The answer comes on the channel in the message.
type Drain = mpsc::Sender<mpsc::Sender<()>>;

/// Creates the volumes on the calling reactor. They live until it ends.
fn volumes(size_bytes: u64, log: Log) -> (VolumeHandle, VolumeHandle, Drain) {
    let inner = MemDevice::new("memory", size_bytes);
    let device = Rc::new(Recorder { inner, log });
    let disk = Rc::new(Volume::new("disk", device.clone(), false));
    let sealed = Volume::new("sealed", device, true);
    let handles = (disk.handle(), sealed.handle());
    let (send, receive) = mpsc::channel::<mpsc::Sender<()>>();
    rt::spawn(async move {
        let _sealed = sealed;
        loop {
            if let Ok(drained) = receive.try_recv() {
                disk.drain().await;
                drained.send(()).expect("the test waits");
            }
            rt::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    (handles.0, handles.1, send)
}

impl Server {
    pub(crate) fn start(setup: Setup) -> Self {
        Self::start_with(setup, None)
    }

    pub(crate) fn start_with(setup: Setup, tls: Option<Tls>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let folder = std::env::temp_dir().join(format!(
            "forebay-interop-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir(&folder).expect("a folder of our own");
        let log = Log::default();
        let mut stops = Vec::new();
        let recorded = Arc::clone(&log);
        let make = move || volumes(setup.size_bytes, recorded);
        let (made, make) = if setup.apart {
            let (made, stop) = reactor("engine", setup.engine, make);
            stops.push(stop);
            (Some(made), None)
        } else {
            (None, Some(make))
        };
        let socket = Address::Unix(folder.join("nbd.sock"));
        let ((tcp, disk, drain), stop) = reactor("nbd", setup.engine, move || {
            let (disk, sealed, drain) = made
                .or_else(|| make.map(|make| make()))
                .expect("one of the two");
            let exports = Arc::new(tls.map_or_else(Exports::new, Exports::with_tls));
            exports
                .add(disk.clone(), "a test disk")
                .expect("a free name");
            exports.add(sealed, "").expect("a free name");
            let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
            let listener = Listener::bind(&any).expect("a port");
            let tcp = listener.address().to_string();
            for listener in [listener, Listener::bind(&socket).expect("a socket")] {
                let exports = Arc::clone(&exports);
                rt::spawn(async move {
                    serve(listener, exports)
                        .await
                        .expect("the server continues");
                });
            }
            (tcp, disk, drain)
        });
        stops.push(stop);
        Self {
            folder,
            tcp,
            log,
            disk,
            drain,
            stops,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("nbd.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the export's URI over the Unix socket.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Returns the export's URI over TCP.
    pub(crate) fn tcp_uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.tcp)
    }

    /// Returns the device's requests since the last call, without reads.
    pub(crate) fn take_log(&self) -> Vec<(Op, u64, u64)> {
        std::mem::take(&mut self.log.lock().expect("no test panics here"))
    }

    /// Drains the disk. It takes no more requests when this returns.
    pub(crate) fn drain(&self) {
        let (drained, receive) = mpsc::channel();
        self.drain.send(drained).expect("the engine runs");
        receive.recv().expect("the engine runs");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server ends first, then the reactor of its volumes.
        for (remote, thread) in self.stops.drain(..).rev() {
            remote.call(|| STOP.with(|stop| stop.set(())));
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server ends cleanly");
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
