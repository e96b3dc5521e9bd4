//! The target with our own initiator (`device::nvme_tcp`): directly, over connections that break,
//! and over connections that damage data.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_auth::Secrets;
use forebay_block::{BlockDevice as _, BlockDeviceExt as _, Buf, ErrorKind, Op};
use forebay_device::nvme_tcp::{NvmeTcpDevice, Times, Uri};
use forebay_io::{Engine, Reactor, rt};

use crate::Draw;
use crate::target::{
    CONTROLLER_SECRET, HOST_SECRET, NQN, SECRET_HOST, SECRET_NQN, SIZE_BYTES, Target,
};

/// Times for tests in which an association may be lost at any time.
const TIMES: Times = Times {
    keep_alive: Duration::from_millis(100),
    answer: Duration::from_secs(10),
    patience: Duration::from_secs(60),
    pause: Duration::from_millis(20),
};
/// Times for tests in which only the test ends associations: a busy machine causes less than two
/// seconds of silence.
const PATIENT: Times = Times {
    keep_alive: Duration::from_secs(2),
    ..TIMES
};
/// Number of tasks that write at the same time, each to its own part.
const TASKS: u64 = 8;
const BLOCK: u64 = 512;

fn run(engine: Engine, client: impl Future<Output = ()> + 'static) {
    Reactor::new(engine).expect("a reactor").run(client);
}

fn uri(address: SocketAddr, query: &str) -> Uri {
    let uri = format!("nvme-tcp://{address}/{NQN}?{query}");
    uri.parse().expect("a URI")
}

/// Results of a task.
#[derive(Default)]
struct Tally {
    requests: Cell<u64>,
    /// Number of flushes that failed because of a lost association.
    failed_flushes: Cell<u64>,
}

/// Writes, discards, zeroes and reads a part of the device, and compares it with a model.
async fn against_a_model(device: Rc<NvmeTcpDevice>, part: u64, rounds: u64, tally: Rc<Tally>) {
    let mut draw = Draw(part + 1);
    let bytes = SIZE_BYTES / TASKS;
    let begin = part * bytes;
    device.write_zeroes(begin, bytes).await.expect("zeroes");
    let mut model = vec![0; usize::try_from(bytes).expect("small")];
    for _ in 0..rounds {
        tally.requests.set(tally.requests.get() + 1);
        let most = if draw.below(20) == 0 {
            1 << 20
        } else {
            40 << 10
        };
        let len = (draw.below(most / BLOCK) + 1) * BLOCK;
        let at = draw.below((bytes - len) / BLOCK + 1) * BLOCK;
        let from = usize::try_from(at).expect("small");
        let range = from..from + usize::try_from(len).expect("small");
        match draw.below(10) {
            0..4 => {
                let data = draw.bytes(range.len());
                let buf = Buf::copied(&data);
                let done = match draw.below(4) {
                    0 => device.write_fua(begin + at, buf).await,
                    _ => device.write(begin + at, buf).await,
                };
                done.expect("written");
                model[range].copy_from_slice(&data);
            }
            4..8 => {
                let buf = Buf::zeroed(range.len());
                device.read(begin + at, buf.clone()).await.expect("read");
                assert!(buf.to_vec() == model[range], "part {part}: {len} at {at}");
            }
            8 => {
                device.write_zeroes(begin + at, len).await.expect("zeroes");
                model[range].fill(0);
            }
            _ => {
                if let Err(error) = device.flush().await {
                    let report = error.report();
                    assert!(report.contains("MAY BE LOST"), "{report}");
                    tally.failed_flushes.set(tally.failed_flushes.get() + 1);
                }
            }
        }
    }
}

async fn all_parts(device: &Rc<NvmeTcpDevice>, rounds: u64) -> Rc<Tally> {
    let tally = Rc::new(Tally::default());
    let left = Rc::new(Cell::new(TASKS));
    for part in 0..TASKS {
        let (device, tally, left) = (Rc::clone(device), Rc::clone(&tally), Rc::clone(&left));
        rt::spawn(async move {
            against_a_model(device, part, rounds, tally).await;
            left.set(left.get() - 1);
        });
    }
    while left.get() > 0 {
        rt::sleep(Duration::from_millis(1)).await;
    }
    tally
}

#[test]
fn our_initiator_and_our_target_understand_each_other() {
    for (query, engine) in [
        ("", Engine::Auto),
        ("digest=header", Engine::Threads),
        ("digest=data&queue_depth=3", Engine::Auto),
        ("digest=header,data&queue_depth=1000", Engine::Auto),
    ] {
        let target = Target::start();
        let uri = uri(target.address, query);
        run(engine, async move {
            let device = NvmeTcpDevice::connect(&uri).await.expect("connected");
            let info = device.info();
            assert_eq!(
                (info.size_bytes, info.logical_block_bytes),
                (SIZE_BYTES, 512)
            );
            assert!(info.volatile_cache && info.fua && info.discard && info.identity.is_known());
            let tally = all_parts(&device, 150).await;
            assert_eq!((tally.failed_flushes.get(), device.losses()), (0, 0));
            // Drops the log of the requests so far.
            target.take_log();
            device
                .write_fua(4096, Buf::zeroed(4096))
                .await
                .expect("written");
            device.write_zeroes(0, 4096).await.expect("zeroes");
            device.discard(0, 4 << 20).await.expect("discarded");
            device.flush().await.expect("flushed");
            let unmap = Op::WriteZeroes {
                fua: false,
                unmap: true,
            };
            let log = [
                (Op::Write { fua: true }, 4096, 4096),
                (unmap, 0, 4096),
                (Op::Discard, 0, 4 << 20),
                (Op::Flush, 0, 0),
            ];
            assert_eq!(target.take_log(), log);
        });
    }
}

#[test]
fn an_idle_device_stays_connected() {
    let target = Target::start();
    let uri = uri(target.address, "");
    run(Engine::Auto, async move {
        let device = NvmeTcpDevice::connect_within(&uri, PATIENT).await;
        let device = device.expect("connected");
        rt::sleep(2 * PATIENT.keep_alive).await;
        device.read(0, Buf::zeroed(512)).await.expect("read");
        assert_eq!(device.losses(), 0);
    });
}

/// Address of a subsystem that requires authentication, for a host with these secrets, or without
/// any.
fn sealed(address: SocketAddr, nqn: &str, line: Option<&str>) -> Uri {
    let uri = format!("nvme-tcp://{address}/{nqn}?host={SECRET_HOST}");
    let mut uri: Uri = uri.parse().expect("a URI");
    uri.secrets = line.map(|line| {
        let secrets = Secrets::parse(&format!("{SECRET_HOST} {line}")).expect("a line");
        secrets.of(SECRET_HOST).expect("it is there").clone()
    });
    uri
}

#[test]
fn both_sides_authenticate_on_each_new_connection() {
    for line in [
        HOST_SECRET.to_owned(),
        format!("{HOST_SECRET} {CONTROLLER_SECRET}"),
    ] {
        let target = Target::start();
        let weather = Arc::new(Weather::default());
        let address = proxy(target.address, &weather);
        let uri = sealed(address, SECRET_NQN, Some(&line));
        run(Engine::Auto, async move {
            let device = NvmeTcpDevice::connect_within(&uri, PATIENT).await;
            let device = device.expect("connected");
            for round in 1..=3_u8 {
                let data = Buf::copied(&[round; 8192]);
                device.write(4096, data).await.expect("written");
                let read = Buf::zeroed(8192);
                device.read(4096, read.clone()).await.expect("read");
                assert_eq!(read.to_vec(), [round; 8192]);
                weather.cut();
            }
            device.read(0, Buf::zeroed(512)).await.expect("read");
            assert_eq!(device.losses(), 3);
        });
    }
}

#[test]
fn a_failed_authentication_is_refused_with_the_remedy() {
    let target = Target::start();
    let other = CONTROLLER_SECRET;
    // The host's secret with a transformation: another key.
    let wrong = HOST_SECRET.replace(":00:", ":01:");
    let no_longer = format!("{HOST_SECRET} {wrong}");
    let cases = [
        (SECRET_NQN, None, "give the device `secrets`"),
        (
            SECRET_NQN,
            Some(other),
            "check that the target has the same secrets",
        ),
        (
            SECRET_NQN,
            Some(&*wrong),
            "check that the target has the same secrets",
        ),
        (
            SECRET_NQN,
            Some(&*no_longer),
            "the target has not authenticated itself",
        ),
        (
            NQN,
            Some(&*no_longer),
            "requires no authentication, so that it cannot authenticate itself",
        ),
    ];
    for (nqn, line, said) in cases {
        let uri = sealed(target.address, nqn, line);
        run(Engine::Auto, async move {
            let error = NvmeTcpDevice::connect(&uri).await.expect_err(said);
            let report = error.report();
            assert_eq!(error.kind(), ErrorKind::Permission, "{report}");
            assert!(report.contains(said), "{report}");
            assert!(!report.contains("AAECAw"), "{report}");
        });
    }
    // A secret of the host does not make it refuse a target that requires no authentication.
    let uri = sealed(target.address, NQN, Some(HOST_SECRET));
    run(Engine::Auto, async move {
        let device = NvmeTcpDevice::connect(&uri).await.expect("connected");
        device.read(0, Buf::zeroed(512)).await.expect("read");
    });
}

/// Faults of the proxy between both sides.
#[derive(Default)]
struct Weather {
    /// Bytes between two faults, in both directions together; 0 for none.
    every: AtomicU64,
    /// Whether a fault damages a byte; otherwise it ends all connections.
    damages: bool,
    passed: AtomicU64,
    mishaps: AtomicU64,
    /// Number of connections to the target.
    connections: AtomicU64,
    streams: Mutex<Vec<TcpStream>>,
}

impl Weather {
    /// Counts passing bytes. Returns whether to damage them.
    fn passes(&self, len: usize) -> bool {
        let every = self.every.load(Ordering::SeqCst);
        let before = self.passed.fetch_add(len as u64, Ordering::SeqCst);
        if every == 0 || before / every == (before + len as u64) / every {
            return false;
        }
        self.mishaps.fetch_add(1, Ordering::SeqCst);
        if self.damages {
            return true;
        }
        self.cut();
        false
    }

    fn cut(&self) {
        for stream in self.streams.lock().expect("sound").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Starts a proxy that runs until the process ends.
fn proxy(to: SocketAddr, weather: &Arc<Weather>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let weather = Arc::clone(weather);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let Ok(server) = TcpStream::connect(to) else {
                continue;
            };
            let clone_of = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let mut streams = weather.streams.lock().expect("sound");
            streams.extend([clone_of(&client), clone_of(&server)]);
            drop(streams);
            weather.connections.fetch_add(1, Ordering::SeqCst);
            for (mut from, mut to) in [(clone_of(&client), clone_of(&server)), (server, client)] {
                let weather = Arc::clone(&weather);
                std::thread::spawn(move || {
                    let mut bytes = [0; 16 << 10];
                    while let Ok(len @ 1..) = from.read(&mut bytes) {
                        if weather.passes(len) {
                            // At varying positions of a PDU.
                            bytes[len * 2 / 3] ^= 0x10;
                        }
                        if to.write_all(&bytes[..len]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

#[test]
fn connections_that_break_lose_nothing_and_repeat_nothing_late() {
    let target = Target::start();
    let weather = Arc::new(Weather::default());
    let address = proxy(target.address, &weather);
    let uri = uri(address, "");
    run(Engine::Auto, async move {
        let device = NvmeTcpDevice::connect_within(&uri, TIMES).await;
        let device = device.expect("connected");
        weather.every.store(4_000_037, Ordering::SeqCst);
        let tally = all_parts(&device, 70).await;
        let (losses, failed_flushes) = (device.losses(), tally.failed_flushes.get());
        assert_eq!(tally.requests.get(), TASKS * 70);
        assert!(losses >= 3, "{losses} losses");
        // Unflushed changes are sent again, and given up after five losses in a row.
        assert!(
            failed_flushes <= losses / 5 * TASKS,
            "{failed_flushes} flushes failed, {losses} losses"
        );
        weather.every.store(0, Ordering::SeqCst);
    });
}

#[test]
fn damaged_data_is_requested_anew() {
    let target = Target::start();
    let weather = Arc::new(Weather {
        damages: true,
        ..Weather::default()
    });
    let address = proxy(target.address, &weather);
    let uri = uri(address, "digest=header,data");
    run(Engine::Auto, async move {
        let device = NvmeTcpDevice::connect_within(&uri, TIMES).await;
        let device = device.expect("connected");
        weather.every.store(5_000_011, Ordering::SeqCst);
        all_parts(&device, 100).await;
        let mishaps = weather.mishaps.load(Ordering::SeqCst);
        assert!(mishaps >= 3, "{mishaps} bytes were damaged");
        weather.every.store(0, Ordering::SeqCst);
    });
}

#[test]
fn an_old_write_does_not_land_on_a_newer_one() {
    let target = Target::start();
    let weather = Arc::new(Weather::default());
    let address = proxy(target.address, &weather);
    let uri = uri(address, "");
    run(Engine::Auto, async move {
        let device = NvmeTcpDevice::connect_within(&uri, PATIENT).await;
        let device = device.expect("connected");
        // The device began with a flush.
        target.take_log();
        target.hold(true);
        let old = device.write(0, Buf::copied(&[1; 4096]));
        while target.log.lock().expect("sound").is_empty() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        let connections = weather.connections.load(Ordering::SeqCst);
        weather.cut();
        // The old write is on the target's device, and stays there until the initiator is back.
        while weather.connections.load(Ordering::SeqCst) == connections {
            rt::sleep(Duration::from_millis(10)).await;
        }
        rt::sleep(Duration::from_millis(500)).await;
        let log = target.log.lock().expect("sound").len();
        assert_eq!(log, 1, "it was sent again while the first was under way");
        target.hold(false);
        old.await.expect("written");
        device
            .write(0, Buf::copied(&[2; 4096]))
            .await
            .expect("written");
        let read = Buf::zeroed(4096);
        device.read(0, read.clone()).await.expect("read");
        assert_eq!(read.to_vec(), [2; 4096]);
        let write = (Op::Write { fua: false }, 0, 4096);
        assert_eq!(target.take_log(), [write; 3]);
        assert_eq!(device.losses(), 1);
    });
}
