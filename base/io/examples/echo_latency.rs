//! How lean the reactor's loop is: one client, one request of 4 KiB in flight, echoed over TCP on
//! loopback. The client is a plain blocking thread; the servers are a blocking thread as the
//! baseline, and a reactor on each engine.
//!
//! `cargo run --release -p forebay-io --example echo_latency [ROUNDS]`

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use forebay_block::Buf;
use forebay_io::net::{Address, Listener};
use forebay_io::{Engine, spawn_reactor};

const MESSAGE_BYTES: usize = 4096;

fn main() {
    let rounds = std::env::args().nth(1);
    let rounds = rounds.map_or(50_000, |text| text.parse().expect("ROUNDS is a number"));
    println!("{rounds} rounds of {MESSAGE_BYTES} bytes there and back, us");
    println!(
        "{:<10} {:<12} {:>7} {:>7} {:>7}",
        "server", "placement", "p50", "p99", "mean"
    );
    for (placement, cores) in [
        ("one core", [0, 0]),
        ("two cores", [0, 1]),
        ("unpinned", [-1, -1]),
    ] {
        for server in ["blocking", "io_uring", "threads"] {
            let address = start(server, cores[1]);
            pin(cores[0]);
            let mut taken = measure(address, rounds);
            let mean = taken.iter().sum::<Duration>().as_secs_f64() / f64::from(rounds) * 1e6;
            taken.sort_unstable();
            let at = |percent: usize| taken[(taken.len() - 1) * percent / 100].as_secs_f64() * 1e6;
            println!(
                "{server:<10} {placement:<12} {:>7.1} {:>7.1} {mean:>7.1}",
                at(50),
                at(99)
            );
        }
    }
}

/// Starts a server that lives until its first client goes.
fn start(server: &str, core: i32) -> SocketAddr {
    let (send, receive) = std::sync::mpsc::channel();
    let engine = match server {
        "io_uring" => Engine::Uring,
        "threads" => Engine::Threads,
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            std::thread::spawn(move || {
                pin(core);
                let (mut stream, _) = listener.accept().expect("a client");
                stream.set_nodelay(true).expect("TCP");
                let mut message = [0; MESSAGE_BYTES];
                while stream.read_exact(&mut message).is_ok() {
                    stream.write_all(&message).expect("the client reads");
                }
            });
            return address;
        }
    };
    spawn_reactor("echo", engine, move || async move {
        pin(core);
        let any = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = Listener::bind(&any).expect("a free port");
        let _ = send.send(listener.address());
        let (stream, _) = listener.accept().await.expect("a client");
        let message = Buf::scratch(MESSAGE_BYTES);
        while stream.recv_exact(message.clone()).await.is_ok() {
            let sent = stream.send(std::slice::from_ref(&message)).await;
            sent.expect("the client reads");
        }
    })
    .expect("this engine works here");
    match receive.recv().expect("the server listens") {
        Address::Tcp(address) => address,
        Address::Unix(_) => unreachable!("bound to TCP"),
    }
}

fn measure(address: SocketAddr, rounds: u32) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("TCP");
    let mut message = [7; MESSAGE_BYTES];
    let mut round = || {
        let start = Instant::now();
        stream.write_all(&message).expect("it reads");
        stream.read_exact(&mut message).expect("it answers");
        start.elapsed()
    };
    for _ in 0..rounds / 10 {
        round();
    }
    (0..rounds).map(|_| round()).collect()
}

/// Keeps this thread on one core; on all of them if negative.
fn pin(core: i32) {
    // SAFETY: all zeroes is an empty set, the macro-like calls stay within it, and the kernel reads
    // exactly the size passed.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match usize::try_from(core) {
            Ok(core) => libc::CPU_SET(core, &mut set),
            Err(_) => (0..64).for_each(|core| libc::CPU_SET(core, &mut set)),
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    assert_eq!(result, 0, "the cores exist");
}
