use std::rc::Rc;
use std::time::Duration;

use forebay_block::Buf;

use super::*;
use crate::rt::{sleep, spawn};
use crate::sync::Promise;
use crate::testing::{Scratch, engines};
use crate::{Engine, Reactor};

fn on_both(test: impl AsyncFn(Engine) + Copy + 'static) {
    for engine in engines() {
        let reactor = Reactor::new(engine).expect("this engine works here");
        reactor.run(async move { test(engine).await });
    }
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().expect("an address")
}

/// A free port of a loopback address that no other process uses. It stays free when its listener
/// has gone.
fn own_loopback() -> Address {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let text = format!("127.{high}.{middle}.{low}:0");
    text.parse().expect("an address")
}

/// Sends back the received data, message by message of `bytes`.
fn echo(listener: Listener, bytes: usize) {
    spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            spawn(async move {
                let buf = Buf::scratch(bytes);
                while stream.recv_exact(buf.clone()).await.is_ok() {
                    stream
                        .send(std::slice::from_ref(&buf))
                        .await
                        .expect("the client reads");
                }
            });
        }
    });
}

async fn echo_1000(address: Address) {
    let listener = Listener::bind(&address).expect("free");
    let real = listener.address();
    echo(listener, 300);
    let client = Stream::connect(&real).await.expect("it listens");
    let back = Buf::scratch(300);
    for round in 0..1000u32 {
        let message = Buf::zeroed(300);
        message.copy_from(0, &round.to_le_bytes());
        message.copy_from(296, &round.to_be_bytes());
        // In two parts, to go through the gathered path.
        let parts = [message.slice(0..100), message.slice(100..300)];
        client.send(&parts).await.expect("it takes it");
        client.recv_exact(back.clone()).await.expect("it answers");
        assert_eq!(back.to_vec(), message.to_vec());
    }
}

#[test]
fn a_thousand_messages_over_tcp() {
    on_both(async |_| echo_1000(loopback()).await);
}

#[test]
fn a_thousand_messages_over_a_unix_socket() {
    on_both(async |_| {
        let scratch = Scratch::new();
        echo_1000(Address::Unix(scratch.path("echo.sock"))).await;
    });
}

#[test]
fn a_hundred_idle_connections_do_no_harm() {
    on_both(async |_| {
        let listener = Listener::bind(&loopback()).expect("free");
        let real = listener.address();
        echo(listener, 8);
        let mut idle = Vec::new();
        for _ in 0..100 {
            idle.push(Stream::connect(&real).await.expect("it takes them all"));
        }
        let client = Stream::connect(&real).await.expect("one more");
        for stream in idle.iter().step_by(10).chain([&client]) {
            stream
                .send(&[Buf::copied(b"12345678")])
                .await
                .expect("sent");
            let back = Buf::scratch(8);
            stream.recv_exact(back.clone()).await.expect("echoed");
            assert_eq!(back.to_vec(), b"12345678");
        }
    });
}

#[test]
fn more_parts_than_one_call_takes_and_more_bytes_than_the_socket_holds() {
    on_both(async |_| {
        const PARTS: usize = 3000;
        const BYTES: usize = 5000;
        let listener = Listener::bind(&loopback()).expect("free");
        let real = listener.address();
        let sent = Promise::new();
        let all_sent = sent.clone();
        spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client");
            let parts: Vec<Buf> = (0..PARTS)
                .map(|part| {
                    let buf = Buf::scratch(BYTES);
                    buf.fill((part % 251) as u8);
                    buf
                })
                .collect();
            stream.send(&parts).await.expect("the client reads");
            all_sent.set(());
            stream.recv(Buf::scratch(1)).await.expect("the end");
        });
        let client = Stream::connect(&real).await.expect("it listens");
        sleep(Duration::from_millis(20)).await;
        assert!(!sent.is_set(), "15 MB do not fit the socket");
        let buf = Buf::scratch(BYTES);
        for part in 0..PARTS {
            client.recv_exact(buf.clone()).await.expect("all arrives");
            let expected = (part % 251) as u8;
            assert!(buf.to_vec().iter().all(|&byte| byte == expected));
        }
        sent.get().await;
    });
}

#[test]
fn concurrent_sends_go_out_whole() {
    on_both(async |_| {
        let listener = Listener::bind(&loopback()).expect("free");
        let real = listener.address();
        spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client");
            let stream = Rc::new(stream);
            for task in 0..10u8 {
                let stream = Rc::clone(&stream);
                spawn(async move {
                    let part = Buf::scratch(100_000);
                    part.fill(task);
                    let parts = [part.clone(), part.clone(), part];
                    stream.send(&parts).await.expect("the client reads");
                });
            }
        });
        let client = Stream::connect(&real).await.expect("it listens");
        let buf = Buf::scratch(300_000);
        for _ in 0..10 {
            client.recv_exact(buf.clone()).await.expect("all arrives");
            let bytes = buf.to_vec();
            assert!(bytes.iter().all(|&byte| byte == bytes[0]));
        }
    });
}

#[test]
fn the_end_of_a_connection_is_seen() {
    on_both(async |_| {
        let listener = Listener::bind(&loopback()).expect("free");
        let client = Stream::connect(&listener.address())
            .await
            .expect("connected");
        let (server, peer) = listener.accept().await.expect("a client");
        assert!(peer.starts_with("127.0.0.1:"), "{peer}");
        client.send(&[Buf::copied(b"abc")]).await.expect("sent");
        drop(client);
        let short = server.recv_exact(Buf::scratch(4)).await;
        assert_eq!(
            short.expect_err("three bytes only").kind(),
            ErrorKind::Disconnected
        );
        let end = server.recv(Buf::scratch(4)).await;
        assert_eq!(end.expect("an orderly end"), 0);
        let gone = async {
            loop {
                server.send(&[Buf::zeroed(1 << 16)]).await?;
                sleep(Duration::from_millis(1)).await;
            }
        };
        let error: Result<()> = gone.await;
        assert_eq!(
            error.expect_err("the peer has gone").kind(),
            ErrorKind::Disconnected
        );
    });
}

#[test]
fn shutdown_ends_a_receive_in_flight() {
    on_both(async |_| {
        let listener = Listener::bind(&loopback()).expect("free");
        let client = Stream::connect(&listener.address())
            .await
            .expect("connected");
        let client = Rc::new(client);
        let other = Rc::clone(&client);
        spawn(async move {
            sleep(Duration::from_millis(5)).await;
            other.shutdown();
        });
        let end = client.recv(Buf::scratch(4)).await;
        assert_eq!(end.expect("an orderly end"), 0);
    });
}

#[test]
fn a_reactor_ends_with_receives_in_flight() {
    for engine in engines() {
        let reactor = Reactor::new(engine).expect("this engine works here");
        let client = reactor.run(async {
            let listener = Listener::bind(&loopback()).expect("free");
            let client = Stream::connect(&listener.address())
                .await
                .expect("connected");
            let receives = Promise::new();
            let started = receives.clone();
            spawn(async move {
                let (stream, _) = listener.accept().await.expect("a client");
                spawn(async move {
                    started.set(());
                    let _ = stream.recv(Buf::scratch(100)).await;
                });
                let _ = listener.accept().await;
            });
            receives.get().await;
            // Both of its operations are the kernel's by then.
            sleep(Duration::from_millis(5)).await;
            client
        });
        drop(reactor);
        drop(client);
    }
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    on_both(async |_| {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new();
        let path = scratch.path("s.sock");
        let address = Address::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("left over"));
        let listener = Listener::bind(&address).expect("nobody answers there");
        let mode = std::fs::metadata(&path).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        let refused = Listener::bind(&address).expect_err("it is in use");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.report().contains("s.sock"), "{refused:?}");
        let client = Stream::connect(&address).await.expect("still the first");
        let (_server, peer) = listener.accept().await.expect("a client");
        assert!(peer.contains(&std::process::id().to_string()), "{peer}");
        drop((client, listener));
        assert!(!path.exists(), "the listener removes its file");
        std::fs::write(&path, b"precious").expect("a file");
        let refused = Listener::bind(&address).expect_err("a file is in the way");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert_eq!(std::fs::read(&path).expect("untouched"), b"precious");
        let refused = Stream::connect(&Address::Unix(scratch.path("none"))).await;
        assert_eq!(
            refused.expect_err("no such file").kind(),
            ErrorKind::NotFound
        );
    });
}

#[test]
fn a_refused_connection_is_reported() {
    on_both(async |_| {
        let free = Listener::bind(&own_loopback()).expect("free").address();
        let refused = Stream::connect(&free).await.expect_err("closed again");
        assert_eq!(refused.kind(), ErrorKind::Disconnected);
    });
}

#[test]
fn addresses_are_read_and_printed() {
    for text in ["127.0.0.1:10809", "[::1]:4420", "unix:/run/f.sock"] {
        let address: Address = text.parse().expect(text);
        assert_eq!(address.to_string(), text);
    }
    assert_eq!(
        "/run/f.sock".parse::<Address>().expect("a path"),
        Address::Unix("/run/f.sock".into())
    );
    for text in ["", "localhost", "unix:", "1.2.3.4"] {
        let error = text.parse::<Address>().expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_check_reports_the_errors_of_a_listener_without_listening() {
    on_both(async |_| {
        let scratch = Scratch::new();
        let path = scratch.path("socket");
        let unix = Address::Unix(path.clone());
        let tcp = Listener::bind(&own_loopback()).expect("a free port");
        let address = tcp.address();
        let busy = |address: &Address| check_listen(address).expect_err("in use").kind();
        assert_eq!(busy(&address), ErrorKind::Busy);
        drop(tcp);
        check_listen(&address).expect("free again");
        check_listen(&unix).expect("nothing there");
        assert!(!path.exists(), "and nothing made");
        let listener = Listener::bind(&unix).expect("bound");
        assert_eq!(busy(&unix), ErrorKind::Busy);
        drop(listener);
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        check_listen(&unix).expect("no process answers");
        assert!(path.exists(), "and nothing removed");
        std::fs::remove_file(&path).expect("there");
        std::fs::write(&path, "notes").expect("written");
        assert_eq!(busy(&unix), ErrorKind::InvalidInput);
    });
}
