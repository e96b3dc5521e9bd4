//! A disk on this thread: its reactor runs when the conversation lets it, on a virtual clock. The
//! script drives the monitor and the guest.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_frontend::{Spread, Succession, vhost_user};
use forebay_io::{Engine, Reactor};
use forebay_volume::Volume;
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket as _;

use super::disk::Disk;
use super::{DISK_BLOCKS, FILE_BYTES, QUEUES};

/// More than the time of any request.
const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Here {
    reactor: Rc<Reactor>,
    disk: Disk,
    volume: Volume,
    succession: Succession,
    spread: Arc<Spread>,
    /// The guest's memory.
    pub(crate) file: File,
    memory: MmapRegion,
    pub(crate) kicks: [EventFd; QUEUES],
    pub(crate) call: EventFd,
}

fn event() -> EventFd {
    EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd")
}

impl Here {
    pub(crate) fn start() -> Self {
        let reactor = Reactor::simulated(Engine::Threads, 1).expect("a reactor");
        let disk = Disk::new(DISK_BLOCKS);
        let device = Rc::new(disk.clone());
        let volume = reactor.within(|| Volume::new("a-disk", device, false));
        // SAFETY: the name lives through the call; the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"forebay-guest".as_ptr(), 0)) };
        file.set_len(FILE_BYTES as u64).expect("memory");
        let copy = FileOffset::new(file.try_clone().expect("a copy"), 0);
        Self {
            succession: Succession::new(&volume.handle(), b"test"),
            spread: Arc::new(Spread::new([reactor.remote()])),
            memory: MmapRegion::from_file(copy, FILE_BYTES).expect("mapped"),
            kicks: std::array::from_fn(|_| event()),
            call: event(),
            file,
            reactor,
            disk,
            volume,
        }
    }

    /// Opens a monitor's socket, with the target's side of its conversation.
    pub(crate) fn connect(&self) -> (UnixStream, vhost_user::MonitorConnection) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).expect("an option");
        }
        let reactor = Rc::clone(&self.reactor);
        let talk = vhost_user::talk(
            theirs,
            self.volume.handle(),
            self.succession.clone(),
            Arc::clone(&self.spread),
            move |ended| {
                reactor.pass(LONG);
                let next = ended.try_recv();
                Some(next.expect("a queue that is stopped ends"))
            },
        );
        (ours, talk)
    }

    pub(crate) fn settle(&self) {
        self.reactor.settle();
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.reactor.pass(time);
    }

    pub(crate) fn slow(&self, time: Duration) {
        self.disk.slow(time);
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        let memory = self.memory.as_volatile_slice();
        memory.write_slice(bytes, at as usize).expect("in the file");
    }

    pub(crate) fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.look(at, &mut bytes);
        bytes
    }

    pub(crate) fn look(&self, at: u64, bytes: &mut [u8]) {
        let memory = self.memory.as_volatile_slice();
        memory.read_slice(bytes, at as usize).expect("in the file");
    }

    /// Checks that nothing remains of an ended conversation. Returns the disk's content, and resets
    /// the disk, the guest's memory and the events.
    pub(crate) fn end(&self) -> Vec<u8> {
        self.slow(Duration::ZERO);
        self.pass(LONG);
        let in_flight = self.volume.handle().stats().in_flight;
        assert_eq!(in_flight, 0, "requests are left");
        assert_eq!(self.spread.connections(), [0], "queues are left");
        for event in self.kicks.iter().chain([&self.call]) {
            let _ = event.read();
        }
        self.put(0, &vec![0; FILE_BYTES]);
        self.disk.take()
    }

    /// Changes the disk behind the target.
    #[allow(dead_code, reason = "the fuzz target plants nothing")]
    pub(crate) fn plant(&self, block: usize) {
        self.disk.plant(block);
    }
}

/// Sends bytes with descriptors. The target may have ended the conversation.
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], files: &[RawFd]) {
    let _ = socket.send_with_fds(&[bytes], files);
}

/// Receives bytes and a descriptor.
pub(crate) fn receive(socket: &UnixStream) -> Option<(Vec<u8>, Option<File>)> {
    let mut bytes = vec![0; 4096];
    let (count, file) = socket.recv_with_fd(&mut bytes).ok()?;
    bytes.truncate(count);
    (count > 0).then_some((bytes, file))
}

/// Descriptors for messages.
pub(crate) fn fd(event: &EventFd) -> RawFd {
    event.as_raw_fd()
}
