//! A volume whose backing device is on another machine, which loses power.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use forebay_auth::{Secret, Secrets};
use forebay_block::{Completion, DeviceInfo, Op, Request};
use forebay_frontend::nbd;
use forebay_frontend::nvme_tcp::{Exports, Subsystem, serve};
use forebay_io::net::{Address, Listener};
use forebay_io::{rt, spawn_reactor};

use super::*;

const NQN: &str = "nqn.2026-11.io.forebay:far";
const SIZE_BYTES: usize = 4 << 20;

/// A disk with a volatile cache.
#[derive(Default)]
struct Disk {
    now: Mutex<Vec<u8>>,
    durable: Mutex<Vec<u8>>,
    /// Flushes until the power fails; 0 for never.
    power: AtomicU32,
    streams: Mutex<Vec<TcpStream>>,
}

impl Disk {
    fn lose_power(&self) {
        let durable = self.durable.lock().expect("sound").clone();
        *self.now.lock().expect("sound") = durable;
        for stream in self.streams.lock().expect("sound").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

struct Media(Arc<Disk>);

impl BlockDevice for Media {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("disk", SIZE_BYTES as u64)
    }

    fn submit(&self, request: Request, done: Completion) {
        let mut now = self.0.now.lock().expect("sound");
        let from = usize::try_from(request.offset).expect("small");
        let range = from..from + usize::try_from(request.len).expect("small");
        match (request.op, &request.buf) {
            (Op::Read, Some(buf)) => buf.copy_from(0, &now[range]),
            (Op::Write { fua: false }, Some(buf)) => buf.copy_to(0, &mut now[range]),
            (Op::Flush, _) => {
                let left = self.0.power.load(Ordering::SeqCst);
                self.0.power.store(left.saturating_sub(1), Ordering::SeqCst);
                drop(now);
                if left == 1 {
                    // No client is left to reply to.
                    self.0.lose_power();
                } else {
                    let flushed = self.0.now.lock().expect("sound").clone();
                    *self.0.durable.lock().expect("sound") = flushed;
                }
            }
            (op, _) => panic!("{op:?} is not needed"),
        }
        done.complete(Ok(()));
    }
}

/// Forwards connections until they are cut.
fn proxy(to: SocketAddr, disk: &Arc<Disk>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let disk = Arc::clone(disk);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = TcpStream::connect(to).expect("the target listens");
            let duplicate = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let mut streams = disk.streams.lock().expect("sound");
            streams.extend([duplicate(&client), duplicate(&server)]);
            drop(streams);
            for (mut from, mut to) in [(duplicate(&client), duplicate(&server)), (server, client)] {
                std::thread::spawn(move || {
                    let mut bytes = [0; 64 << 10];
                    while let Ok(len @ 1..) = from.read(&mut bytes) {
                        if to.write_all(&bytes[..len]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// Serves the disk until the process ends, to clients with one of these secrets. Returns the
/// address.
fn target_with(disk: &Arc<Disk>, secrets: Option<Secrets>) -> SocketAddr {
    let (send, receive) = mpsc::channel();
    let media = Media(Arc::clone(disk));
    spawn_reactor("far", Engine::Threads, move || async move {
        let volume = Volume::new("far", Rc::new(media), false);
        let subsystem = Subsystem::with_secrets(NQN, None, secrets, b"a test");
        let subsystem = subsystem.expect("a name");
        subsystem.add(volume.handle()).expect("a free place");
        let exports = Arc::new(Exports::new());
        exports.add(subsystem).expect("a free name");
        let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = Listener::bind(&any).expect("a port");
        let Address::Tcp(address) = listener.address() else {
            unreachable!("it was bound to one");
        };
        send.send(address).expect("the test waits");
        let _ = serve(listener, exports).await;
    })
    .expect("a reactor");
    receive.recv().expect("the target starts")
}

fn target(disk: &Arc<Disk>) -> SocketAddr {
    target_with(disk, None)
}

/// Serves the disk over NBD until the process ends. Returns the address.
fn nbd_server(disk: &Arc<Disk>) -> SocketAddr {
    let (send, receive) = mpsc::channel();
    let media = Media(Arc::clone(disk));
    spawn_reactor("far", Engine::Threads, move || async move {
        let volume = Volume::new("far", Rc::new(media), false);
        let exports = Arc::new(nbd::Exports::new());
        exports.add(volume.handle(), "").expect("a free name");
        let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = Listener::bind(&any).expect("a port");
        let Address::Tcp(address) = listener.address() else {
            unreachable!("it was bound to one");
        };
        send.send(address).expect("the test waits");
        let _ = nbd::serve(listener, exports).await;
    })
    .expect("a reactor");
    receive.recv().expect("the server starts")
}

/// Serves the disk by a protocol, through connections that its power loss cuts. Returns the
/// configuration of the device.
fn device_of(disk: &Arc<Disk>, kind: &str) -> String {
    let uri = match kind {
        "nbd" => format!("nbd://{}/far", proxy(nbd_server(disk), disk)),
        _ => format!("nvme-tcp://{}/{NQN}", proxy(target(disk), disk)),
    };
    REMOTE.replace("nvme-tcp", kind).replace("URI", &uri)
}

const REMOTE: &str = r#"
server.state = "state"
device = [
    { name = "fast", kind = "mem", size = "32M", volatile = true },
    { name = "far", kind = "nvme-tcp", uri = "URI" },
]
cache = { data = "fast", cleaning = "nop" }
volume = [{ name = "db", backing = "far", mode = "wb" }]
"#;

#[test]
fn blocks_lost_by_an_nvme_tcp_target_are_written_back_anew() {
    check_lost_write_backs("nvme-tcp");
}

#[test]
fn blocks_lost_by_an_nbd_server_are_written_back_anew() {
    check_lost_write_backs("nbd");
}

fn check_lost_write_backs(kind: &str) {
    let disk = Arc::new(Disk::default());
    for side in [&disk.now, &disk.durable] {
        *side.lock().expect("sound") = vec![0; SIZE_BYTES];
    }
    let scratch = Scratch::new(&format!("remote-{kind}"));
    let config = scratch.config(&device_of(&disk, kind));
    on_reactor(|| async move {
        let stack = Stack::open(&config, &Wishes::default())
            .await
            .expect("opens");
        let db = stack.volume("db").expect("there").open();
        let mut model = vec![0; SIZE_BYTES];
        for round in 1..6_u8 {
            for block in (0..64_u64).filter(|block| block % 5 != u64::from(round % 3)) {
                let at = block * 8192;
                let data = Buf::copied(&[round; 4096]);
                db.write(at, data).await.expect("written");
                let from = usize::try_from(at).expect("small");
                model[from..from + 4096].fill(round);
            }
            // The first flush must cover earlier writes.
            if round > 1 {
                disk.power.store(1, Ordering::SeqCst);
            }
            let mut failures = 0;
            while stack.dirty_bytes(None) > 0 {
                if let Err(error) = stack.write_back(None).await {
                    failures += 1;
                    assert!(failures < 10, "{}", error.report());
                    rt::sleep(Duration::from_millis(20)).await;
                }
            }
            assert_eq!(disk.power.load(Ordering::SeqCst), 0, "it lost power");
            assert!(
                *disk.durable.lock().expect("sound") == model,
                "round {round}: clean, and not there"
            );
        }
        stack.close().await.expect("closed");
    });
}

#[test]
fn client_writes_past_the_cache_survive_power_loss_of_an_nvme_tcp_target() {
    check_lost_client_writes("nvme-tcp");
}

#[test]
fn client_writes_past_the_cache_survive_power_loss_of_an_nbd_server() {
    check_lost_client_writes("nbd");
}

fn check_lost_client_writes(kind: &str) {
    let disk = Arc::new(Disk::default());
    for side in [&disk.now, &disk.durable] {
        *side.lock().expect("sound") = vec![0; SIZE_BYTES];
    }
    let scratch = Scratch::new(&format!("remote-wt-{kind}"));
    let through = device_of(&disk, kind).replace("\"wb\"", "\"wt\"");
    let bare = through.replace("cache = { data = \"fast\", cleaning = \"nop\" }", "");
    let bare = bare.replace(", mode = \"wt\"", "");
    let bare = bare.replace(
        "{ name = \"fast\", kind = \"mem\", size = \"32M\", volatile = true },",
        "",
    );
    for (text, byte) in [(through, 1), (bare, 2)] {
        let config = scratch.config(&text);
        let disk = Arc::clone(&disk);
        on_reactor(|| async move {
            let stack = Stack::open(&config, &Wishes::default())
                .await
                .expect("opens");
            let db = stack.volume("db").expect("there").open();
            for (at, how) in [(0, 1_u32), (4096, 0)] {
                db.write(at, Buf::copied(&[byte; 4096]))
                    .await
                    .expect("written");
                // In the flush, or before it.
                disk.power.store(how, Ordering::SeqCst);
                if how == 0 {
                    disk.lose_power();
                }
                for _ in 0..2 {
                    db.flush().await.expect("it was written again");
                }
            }
            let durable = disk.durable.lock().expect("sound")[..8192].to_vec();
            assert!(durable == [byte; 8192]);
            stack.close().await.expect("closed");
        });
    }
}

#[test]
fn one_namespace_by_two_addresses_is_one_medium() {
    let disk = Arc::new(Disk::default());
    *disk.now.lock().expect("sound") = vec![0; SIZE_BYTES];
    let address = target(&disk);
    let scratch = Scratch::new("twins");
    let uri = format!("nvme-tcp://{address}/{NQN}");
    let twin = format!("{uri}?nsid=1");
    let text = REMOTE.replace("URI", &uri);
    let text = text.replace(
        "\n]\ncache",
        &format!("    {{ name = \"too\", kind = \"nvme-tcp\", uri = \"{twin}\" }},\n]\ncache"),
    );
    let text = text.replace(
        "mode = \"wb\" }]",
        "mode = \"wt\" }, { name = \"logs\", backing = \"too\", mode = \"wt\" }]",
    );
    let config = scratch.config(&text);
    on_reactor(|| async move {
        let Err(error) = Stack::open(&config, &Wishes::default()).await else {
            panic!("one medium has one user");
        };
        let report = error.report();
        assert!(
            report.contains("\"far\" and \"too\" are one and the same"),
            "{report}"
        );
        assert!(report.contains("f.toml"), "{report}");
    });
}

#[test]
fn a_device_proves_itself_by_a_file_that_is_its_own() {
    let disk = Arc::new(Disk::default());
    *disk.now.lock().expect("sound") = vec![0; SIZE_BYTES];
    let host = "nqn.2026-11.io.forebay:cache";
    let secret = Secret::generate(None).text();
    let line = format!("{host} {}\n", *secret);
    let address = target_with(&disk, Some(Secrets::parse(&line).expect("a line")));
    let scratch = Scratch::new("sealed");
    let file = scratch.0.join("far.secrets");
    let uri = format!("nvme-tcp://{address}/{NQN}?host={host}");
    let text = REMOTE.replace("\"URI\"", &format!("\"{uri}\", secrets = \"far.secrets\""));
    let config = scratch.config(&text);
    let bare = scratch.config(&REMOTE.replace("URI", &uri));
    let open = |config: &Config| {
        let (config, report) = (config.clone(), Rc::new(Cell::new(String::new())));
        let refusal = Rc::clone(&report);
        on_reactor(|| async move {
            match Stack::open(&config, &Wishes::default()).await {
                Ok(stack) => stack.close().await.expect("closed"),
                Err(error) => refusal.set(error.report()),
            }
        });
        report.take()
    };
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, permissions).expect("its owner may");
    };
    let mut said = Vec::new();
    said.push((open(&bare), "give the device `secrets`"));
    said.push((open(&config), "cannot read the secrets in"));
    std::fs::write(&file, &line).expect("room");
    mode(0o640);
    said.push((open(&config), "chmod 0600"));
    mode(0o600);
    said.push((open(&config), ""));
    let another = line.replace(host, "nqn.2026-11.io.forebay:another");
    std::fs::write(&file, another).expect("room");
    said.push((open(&config), "has no line for"));
    let wrong = format!("{host} {}\n", *Secret::generate(None).text());
    std::fs::write(&file, wrong).expect("room");
    said.push((open(&config), "check that the target has the same secrets"));
    for (report, wanted) in said {
        assert!(report.contains(wanted), "{wanted}: {report}");
        assert_eq!(report.is_empty(), wanted.is_empty(), "{report}");
        assert!(!report.contains(&secret[10..30]), "{report}");
    }
}
