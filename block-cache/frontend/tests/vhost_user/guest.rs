//! A monitor and its guest in this process: the messages of vhost-user, and a driver of rings in
//! shared memory.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use forebay_wire::virtio_blk::{HEADER_BYTES, Header, feature};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _, VhostUserProtocolFeatures};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

pub(crate) const MEMORY_BYTES: usize = 32 << 20;
/// Entries of a queue.
pub(crate) const ENTRIES: u16 = 32;
/// Address of the guest's memory in the monitor.
const USER: u64 = 0x7000_0000_0000;
/// Address of the memory in the guest.
pub(crate) const GUEST: u64 = 0x10_0000;
/// The flags of descriptors.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;
/// Time after which the target counts as stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A descriptor: address, length, flags, next.
pub(crate) type Descriptor = (u64, u32, u16, u16);

struct Driver {
    available: u16,
    used: u16,
    kick: EventFd,
    call: EventFd,
}

pub(crate) struct Guest {
    pub(crate) monitor: Frontend,
    pub(crate) memory: GuestMemoryMmap<()>,
    queues: Vec<Driver>,
    file: File,
    /// Name of its memory in the kernel's list of mappings.
    pub(crate) name: String,
    /// Offered features that it does not use.
    without: u64,
    /// List of requests in flight, if the monitor keeps one.
    list: Option<(VhostUserInflight, File)>,
}

/// State that a killed target leaves: the guest's memory, and the list of requests in flight.
pub(crate) struct Left(Vec<u8>, Vec<u8>);

/// Returns the addresses of a queue in the guest's memory: descriptors, available and used entries.
fn places(queue: usize) -> [u64; 3] {
    let base = GUEST + 0x10000 * queue as u64;
    [base, base + 0x4000, base + 0x8000]
}

/// Returns the start of a request's own memory, by its number.
pub(crate) const fn room(number: u16) -> u64 {
    GUEST + (4 << 20) + (number as u64) * (3 << 20)
}

impl Guest {
    /// Connects, accepts the offered features except `without`, and starts queues.
    pub(crate) fn connect(path: &Path, queues: usize, without: u64) -> Self {
        let begin = Instant::now();
        loop {
            let monitor = Frontend::connect(path, 64).expect("the target listens");
            match Self::start(monitor, queues, without) {
                Ok(guest) => return guest,
                // Another guest had the disk a moment ago.
                Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn agree(monitor: &mut Frontend, without: u64) -> Result<(), vhost::Error> {
        let offered = monitor.get_features()?;
        monitor.set_owner()?;
        monitor.set_features(offered & !without)?;
        let protocol = monitor.get_protocol_features()?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        assert!(protocol.contains(wanted));
        monitor.set_protocol_features(wanted)
    }

    fn start(mut monitor: Frontend, queues: usize, without: u64) -> Result<Self, vhost::Error> {
        Self::agree(&mut monitor, without)?;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The dash at the end: no name is a prefix of another.
        let name = format!("forebay-guest-{}-", NEXT.fetch_add(1, Ordering::Relaxed));
        let text = CString::new(name.clone()).expect("no NUL");
        // SAFETY: the name lives through the call; the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(text.as_ptr(), 0)) };
        file.set_len(MEMORY_BYTES as u64).expect("memory");
        let copy = FileOffset::new(file.try_clone().expect("a copy"), 0);
        let range = (GuestAddress(GUEST), MEMORY_BYTES, Some(copy));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).expect("mapped");
        let mut guest = Self {
            monitor,
            memory,
            queues: Vec::new(),
            file,
            name,
            without,
            list: None,
        };
        guest.share_memory()?;
        for queue in 0..queues {
            guest.queues.push(Driver {
                available: 0,
                used: 0,
                kick: EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd"),
                call: EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd"),
            });
            guest.run(queue, 0)?;
        }
        Ok(guest)
    }

    /// Keeps a list of requests in flight from now on.
    pub(crate) fn keep_list(&mut self) {
        let queues = u16::try_from(self.queues.len()).expect("few");
        let asked = VhostUserInflight::new(0, 0, queues, ENTRIES);
        let (description, file) = self.monitor.get_inflight_fd(&asked).expect("made");
        let handed = self.monitor.set_inflight_fd(&description, file.as_raw_fd());
        handed.expect("its own");
        // The last message has no answer, but the next one is answered after it.
        self.monitor.get_features().expect("the list is there");
        self.list = Some((description, file));
    }

    /// Returns the state that the target would leave if it were killed now.
    pub(crate) fn left(&self) -> Left {
        let (description, file) = self.list.as_ref().expect("kept");
        let mut left = Left(
            vec![0; MEMORY_BYTES],
            vec![0; description.mmap_size as usize],
        );
        self.file.read_exact_at(&mut left.0, 0).expect("memory");
        file.read_exact_at(&mut left.1, 0).expect("memory");
        left
    }

    /// Simulates a target that was killed when it left this state; no kick was received since.
    pub(crate) fn was_killed(&self, left: &Left) {
        let (_, file) = self.list.as_ref().expect("kept");
        self.file.write_all_at(&left.0, 0).expect("memory");
        file.write_all_at(&left.1, 0).expect("memory");
        self.forget_kicks();
    }

    /// Resets the list to its state before any queue was started.
    pub(crate) fn forget_list(&self) {
        let (_, file) = self.list.as_ref().expect("kept");
        file.write_all_at(&[0; 16 + 16 * ENTRIES as usize], 0)
            .expect("memory");
    }

    /// Drops all kicks so far, as if a dead target had got them.
    pub(crate) fn forget_kicks(&self) {
        for driver in &self.queues {
            let _ = driver.kick.read();
        }
    }

    /// Continues with the next target, and sends it these bases of its queues.
    pub(crate) fn go_on(&mut self, path: &Path, bases: &[u16]) -> Result<(), vhost::Error> {
        self.monitor = Frontend::connect(path, 64).expect("the target listens");
        Self::agree(&mut self.monitor, self.without)?;
        self.share_memory()?;
        let (description, file) = self.list.as_ref().expect("kept");
        self.monitor
            .set_inflight_fd(description, file.as_raw_fd())?;
        for (queue, base) in bases.iter().enumerate() {
            self.run(queue, *base)?;
        }
        Ok(())
    }

    /// Returns whether a head of the first queue is in flight, according to the list.
    pub(crate) fn in_flight(&self, head: u16) -> bool {
        let (_, file) = self.list.as_ref().expect("kept");
        let mut taken = [0];
        let at = 16 + 16 * u64::from(head);
        file.read_exact_at(&mut taken, at).expect("in it");
        taken == [1]
    }

    /// Shares the memory with the target.
    pub(crate) fn share_memory(&self) -> Result<(), vhost::Error> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: MEMORY_BYTES as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        self.monitor.set_mem_table(&[region]).map(drop)
    }

    /// Starts a queue at an entry.
    pub(crate) fn run(&mut self, queue: usize, next: u16) -> Result<(), vhost::Error> {
        let [descriptors, available, used] = places(queue).map(|guest| guest - GUEST + USER);
        let driver = &self.queues[queue];
        self.monitor.set_vring_num(queue, ENTRIES)?;
        self.monitor.set_vring_base(queue, next)?;
        let addresses = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: descriptors,
            used_ring_addr: used,
            avail_ring_addr: available,
            log_addr: None,
        };
        self.monitor.set_vring_addr(queue, &addresses)?;
        self.monitor.set_vring_call(queue, &driver.call)?;
        self.monitor.set_vring_kick(queue, &driver.kick)?;
        self.monitor.set_vring_enable(queue, true)
    }

    pub(crate) fn config(&mut self) -> Vec<u8> {
        let flags = VhostUserConfigFlags::WRITABLE;
        let (_, bytes) = (self.monitor.get_config(0, 60, flags, &[0; 60])).expect("told");
        bytes
    }

    pub(crate) fn put<const N: usize>(&self, address: u64, bytes: [u8; N]) {
        (self.memory.write_slice(&bytes, GuestAddress(address))).expect("the guest's memory");
    }

    /// Writes descriptors, starting at an index.
    pub(crate) fn describe(&self, table: u64, first: u16, list: &[Descriptor]) {
        for (at, (address, len, flags, next)) in (u64::from(first)..).zip(list) {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&address.to_le_bytes());
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            bytes[14..].copy_from_slice(&next.to_le_bytes());
            self.put(table + at * 16, bytes);
        }
    }

    pub(crate) fn table(queue: usize) -> u64 {
        places(queue)[0]
    }

    /// Makes the chain at `head` available, and kicks.
    pub(crate) fn offer(&mut self, queue: usize, head: u16) {
        let [_, available, _] = places(queue);
        let driver = &mut self.queues[queue];
        let slot = available + 4 + u64::from(driver.available % ENTRIES) * 2;
        driver.available = driver.available.wrapping_add(1);
        let next = driver.available;
        self.put(slot, head.to_le_bytes());
        fence(Ordering::SeqCst);
        self.set_available(queue, next);
    }

    /// Sets the number of available chains so far, and kicks.
    pub(crate) fn set_available(&self, queue: usize, next: u16) {
        self.put(places(queue)[1] + 2, next.to_le_bytes());
        self.queues[queue].kick.write(1).expect("a kick");
    }

    /// Returns the number of chains that the target has returned so far.
    pub(crate) fn done(&self, queue: usize) -> u16 {
        let used = places(queue)[2];
        let mut index = [0; 2];
        (self.memory.read_slice(&mut index, GuestAddress(used + 2))).expect("the guest's memory");
        u16::from_le_bytes(index)
    }

    /// Returns the next returned chain: its head, and the number of written bytes.
    pub(crate) fn used(&mut self, queue: usize) -> Option<(u16, u32)> {
        let used = places(queue)[2];
        let done = self.done(queue);
        let driver = &mut self.queues[queue];
        if done == driver.used {
            return None;
        }
        let mut entry = [0; 8];
        let slot = used + 4 + u64::from(driver.used % ENTRIES) * 8;
        (self.memory.read_slice(&mut entry, GuestAddress(slot))).expect("the guest's memory");
        driver.used = driver.used.wrapping_add(1);
        let [a, b, _, _, rest @ ..] = entry;
        Some((u16::from_le_bytes([a, b]), u32::from_le_bytes(rest)))
    }

    pub(crate) fn wait(&mut self, queue: usize) -> (u16, u32) {
        let begin = Instant::now();
        loop {
            if let Some(done) = self.used(queue) {
                return done;
            }
            assert!(begin.elapsed() < PATIENCE, "a request is not answered");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns whether the target has notified the guest since the last check.
    pub(crate) fn called(&self, queue: usize) -> bool {
        self.queues[queue].call.read().is_ok()
    }

    /// Offers a request with its data in pieces of `piece` bytes, as chain number `number` (each
    /// has its memory).
    pub(crate) fn start_request(
        &mut self,
        queue: usize,
        number: u16,
        header: Header,
        (outgoing, incoming, piece): (&[u8], usize, usize),
    ) {
        let base = room(number);
        self.put::<HEADER_BYTES>(base, header.encode());
        let data = base + 4096;
        (self.memory.write_slice(outgoing, GuestAddress(data))).expect("room");
        self.put(base + 16, [0xff]);
        let mut list: Vec<Descriptor> = vec![(base, HEADER_BYTES as u32, NEXT, 0)];
        let (len, flag) = match outgoing.len() {
            0 => (incoming, WRITE),
            len => (len, 0),
        };
        for at in (0..len).step_by(piece) {
            let here = u32::try_from(piece.min(len - at)).expect("small");
            list.push((data + at as u64, here, NEXT | flag, 0));
        }
        list.push((base + 16, 1, WRITE, 0));
        // In an indirect table: chains may be longer than the ring.
        for (next, descriptor) in (1..).zip(&mut list) {
            descriptor.3 = next;
        }
        let table = base + 2048;
        assert!(list.len() <= 128);
        self.describe(table, 0, &list);
        let bytes = u32::try_from(list.len() * 16).expect("small");
        self.describe(Self::table(queue), number, &[(table, bytes, INDIRECT, 0)]);
        self.offer(queue, number);
    }

    /// Returns the outcome of chain `number`, with `incoming` bytes of data.
    pub(crate) fn outcome(&self, number: u16, incoming: usize) -> (u8, Vec<u8>) {
        let mut status = [0];
        let mut data = vec![0; incoming];
        let base = room(number);
        (self.memory.read_slice(&mut status, GuestAddress(base + 16))).expect("room");
        (self.memory.read_slice(&mut data, GuestAddress(base + 4096))).expect("room");
        (status[0], data)
    }

    /// Executes one request. Returns its status and data.
    pub(crate) fn call(
        &mut self,
        queue: usize,
        header: Header,
        outgoing: &[u8],
        incoming: usize,
        piece: usize,
    ) -> (u8, Vec<u8>) {
        self.start_request(queue, 1, header, (outgoing, incoming, piece));
        let (head, written) = self.wait(queue);
        assert_eq!(head, 1);
        let (status, data) = self.outcome(1, incoming);
        let expected = if status == 0 { incoming + 1 } else { 1 };
        assert_eq!(written as usize, expected);
        (status, data)
    }
}

/// Features without which each side is notified of everything.
pub(crate) const NO_EVENTS: u64 = feature::RING_EVENT_IDX;
