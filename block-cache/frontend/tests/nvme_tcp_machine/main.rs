//! Arbitrary hosts that end anywhere: nothing of them remains, and no other host is affected. A
//! seeded substitute for the fuzzer that needs no nightly compiler, and thousands of connections
//! that stop half way.

mod check;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use check::Partner;
use check::here::Here;
use check::initiator::{Association, Identity, Queue, Style, With, on_blocks};
use check::target::{NQN, Target};
use forebay_frontend::nvme_tcp::Subsystem;
use forebay_volume::VolumeHandle;
use proptest::prelude::*;

/// Number of concurrent connections that stop half way.
const HALVES: u8 = 250;
/// Number of ways to stop half way.
const STAGES: usize = 3;
/// Maximum memory of a connection that stops half way: its receive buffer, and announced data.
const MOST_BYTES: usize = 64 << 10;

struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The tests count resources of the whole process, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A target whose reactors are threads, with real concurrency.
impl Partner for Target {
    fn call(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the target listens");
        stream.set_nodelay(true).expect("an option");
        stream
    }

    fn now(&self) -> Duration {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        BEGIN.get_or_init(Instant::now).elapsed()
    }

    fn answer_time(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn pause(&self) {
        std::thread::sleep(Duration::from_micros(100));
    }

    fn subsystems(&self) -> [&Arc<Subsystem>; 2] {
        [&self.subsystem, &self.secret]
    }

    fn volume(&self) -> &VolumeHandle {
        &self.volume
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of conversations that reach states with resources.
fn drawn(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = vec![u8::from(seed.is_multiple_of(4)), 0, 0x10, 1, 0x10];
    bytes.extend((0..count).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    }));
    bytes
}

#[test]
fn any_conversation_ends_and_leaves_nothing() {
    let _alone = alone();
    let target = Here::start();
    let mut answered = 0;
    for seed in 1..=3000_u64 {
        answered += check::any_conversation(&target, &drawn(seed * 0x9e37_79b9, 120));
    }
    // The conversations had an effect.
    assert!(answered > 10_000, "{answered} commands were answered well");
}

#[test]
fn any_conversation_with_threads_ends_and_leaves_nothing() {
    let _alone = alone();
    let target = Target::start();
    let mut answered = 0;
    for seed in 1..=100_u64 {
        answered += check::any_conversation(&target, &drawn(seed * 0x9e37_79b9, 120));
    }
    assert!(answered > 300, "{answered} commands were answered well");
}

#[test]
fn a_block_that_no_request_has_written_is_found() {
    let _alone = alone();
    let target = Here::start();
    for block in [3, 127] {
        target.plant(block);
        let talk = || check::any_conversation(&target, &drawn(2, 0));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(talk));
        assert!(found.is_err(), "block {block} was changed");
        target.take_contents();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_end_and_leave_nothing(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        thread_local! {
            // It lives until the process ends.
            static TARGET: &'static Here = Box::leak(Box::new(Here::start()));
        }
        let _alone = alone();
        TARGET.with(|target| check::any_conversation(*target, &input));
    }
}

#[test]
fn conversations_leave_no_memory_behind() {
    let _alone = alone();
    let target = Here::start();
    let round = || {
        for seed in 1..=400_u64 {
            check::any_conversation(&target, &drawn(seed * 0x51ed_270b, 120));
        }
        // Buffers that are retained for reuse have reached their final number by then.
        LIVE_BYTES.load(Ordering::Relaxed)
    };
    round();
    let (before, after) = (round(), round());
    assert!(
        after < before + (1 << 20),
        "{before} bytes after one round, {after} after the next"
    );
}

/// Opens connections that stop at this stage.
fn half(target: &Target, number: u8, stage: usize) -> Vec<Queue> {
    let mut words = [0; 128];
    (words[2], words[4]) = (128, 128);
    let identity = Identity {
        host_id: [number; 16],
        ..Identity::to(NQN)
    };
    match stage {
        0 => {
            let mut queue = Queue::silent(target.address);
            queue.say(&words[..usize::from(number) % 128]);
            vec![queue]
        }
        1 => {
            let mut queue = Queue::open(target.address, Style::default());
            // A Connect without its data.
            queue.say(&[4, 0, 72, 72, 72, 4, 0, 0, 0x7f, 0x40]);
            vec![queue]
        }
        _ => {
            let host = Association::new(target.address, identity, Style::default());
            let mut queue = host.queue(1);
            let cid = queue.start(on_blocks(0x01, 0, 64, 0), With::Room(32 << 10));
            let (tag, ..) = queue.r2t(cid);
            let (tag, cid) = (tag.to_le_bytes(), cid.to_le_bytes());
            queue.say(&[6, 0, 24, 24, 24, 64, 0, 0]);
            queue.say(&[
                cid[0], cid[1], tag[0], tag[1], 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0,
            ]);
            queue.say(&[5; 8000]);
            vec![host.admin, queue]
        }
    }
}

#[test]
fn a_thousand_connections_that_stop_half_way_leave_nothing() {
    let _alone = alone();
    let target = Target::start();
    let round = || {
        let memory = LIVE_BYTES.load(Ordering::Relaxed);
        let files = open_files();
        let mut open = Vec::new();
        for stage in 0..STAGES {
            for number in 0..HALVES {
                open.extend(half(&target, number, stage));
            }
        }
        // One of the ways opens two.
        assert_eq!(open.len(), 4 * usize::from(HALVES));
        let held = LIVE_BYTES.load(Ordering::Relaxed).saturating_sub(memory);
        let each = held / open.len();
        assert!(each < MOST_BYTES, "{each} bytes for each connection");
        // Other hosts are served meanwhile.
        let identity = Identity {
            host_id: [HALVES; 16],
            ..Identity::to(NQN)
        };
        let host = Association::new(target.address, identity, Style::default());
        let read = on_blocks(0x02, 0, 1, 0);
        assert_eq!(host.queue(1).call(read, With::Room(512)).status, 0);
        drop((host, open));
        check::nothing_is_left(&target);
        until("all descriptors are closed", || open_files() <= files);
        LIVE_BYTES.load(Ordering::Relaxed)
    };
    round();
    let (before, after) = (round(), round());
    assert!(
        after < before + (1 << 20),
        "{before} bytes after one round, {after} after the next"
    );
}
