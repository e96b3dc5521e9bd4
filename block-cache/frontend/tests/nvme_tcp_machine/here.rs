//! A target on this thread. Its reactor runs when the conversation lets it, on a virtual clock. So
//! a conversation takes only processor time, and is deterministic. The device is slow when the
//! script says so.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_auth::Secrets;
use forebay_frontend::nvme_tcp::{Exports, Subsystem, serve};
use forebay_io::net::{Address, Listener};
use forebay_io::{Engine, Reactor, rt};
use forebay_volume::{Volume, VolumeHandle};

use super::disk::Disk;
use super::target::{
    CONTROLLER_SECRET, HOST_SECRET, NQN, SEALED_HOST, SEALED_NQN, SECRET_HOST, SECRET_NQN,
};
use super::{DISK_BLOCKS, Partner};

/// Step of the virtual clock.
const MOMENT: Duration = Duration::from_millis(1);
/// More than any time limit of the target.
const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Here {
    reactor: Rc<Reactor>,
    path: PathBuf,
    disk: Disk,
    subsystems: [Arc<Subsystem>; 2],
    volume: VolumeHandle,
    _volume: Rc<Volume>,
}

impl Here {
    pub(crate) fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-nvme-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let reactor = Reactor::simulated(Engine::Threads, 1).expect("a reactor");
        let disk = Disk::new(DISK_BLOCKS);
        let exports = Arc::new(Exports::new());
        let secrets = format!("{SECRET_HOST} {HOST_SECRET} {CONTROLLER_SECRET}");
        let secrets = Secrets::parse(&secrets).expect("secrets");
        let hosts = Some(vec![SEALED_HOST.to_owned()]);
        let open = Subsystem::new(NQN, None, b"a test").expect("a name");
        let sealed = Subsystem::new(SEALED_NQN, hosts, b"a test").expect("a name");
        let secret = Subsystem::with_secrets(SECRET_NQN, None, Some(secrets), b"a test");
        let secret = secret.expect("a name");
        let device = Rc::new(disk.clone());
        let volume = reactor.within(|| {
            let volume = Rc::new(Volume::new("disk", device, false));
            for subsystem in [&open, &sealed, &secret] {
                subsystem.add(volume.handle()).expect("a free place");
                exports.add(Arc::clone(subsystem)).expect("a free name");
            }
            let listener = Listener::bind(&Address::Unix(path.clone())).expect("a socket");
            rt::spawn(async move {
                let served = serve(listener, exports).await;
                served.expect("the target goes on");
            });
            volume
        });
        Self {
            reactor,
            path,
            disk,
            subsystems: [open, secret],
            volume: volume.handle(),
            _volume: volume,
        }
    }

    /// Changes the disk behind the target.
    #[allow(dead_code, reason = "the fuzz target plants nothing")]
    pub(crate) fn plant(&self, block: usize) {
        self.disk.plant(block);
    }
}

impl Partner for Here {
    fn call(&self) -> TcpStream {
        let stream = UnixStream::connect(&self.path).expect("the target listens");
        TcpStream::from(OwnedFd::from(stream))
    }

    fn now(&self) -> Duration {
        self.reactor.now()
    }

    fn answer_time(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn pause(&self) {
        self.reactor.pass(MOMENT);
    }

    fn pass(&self, time: Duration) {
        self.reactor.pass(time);
    }

    fn slow(&self, time: Duration) {
        self.disk.slow(time);
    }

    fn subsystems(&self) -> [&Arc<Subsystem>; 2] {
        [&self.subsystems[0], &self.subsystems[1]]
    }

    fn volume(&self) -> &VolumeHandle {
        &self.volume
    }

    fn is_fresh(&self) -> bool {
        true
    }

    fn take_contents(&self) -> Option<Vec<u8>> {
        self.disk.slow(Duration::ZERO);
        // Expires abandoned timers.
        self.reactor.pass(LONG);
        Some(self.disk.take())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
