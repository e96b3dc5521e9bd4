//! Servers that lose connections, or their unflushed changes.

use forebay_wire::nbd::errno::{EIO, ESHUTDOWN};

use super::*;

fn block(byte: u8) -> Buf {
    Buf::copied(&[byte; 4096])
}

async fn read(device: &NbdDevice, block: u64) -> u8 {
    let into = Buf::zeroed(4096);
    let read = device.read(block * 4096, into.clone()).await;
    read.expect("read");
    into.to_vec()[4095]
}

#[test]
fn unflushed_changes_of_another_process_are_flushed_first() {
    let server = Server::start(|_, _| Act::Answer);
    with_device(&server, settings(), |device| async move {
        device.write(0, block(7)).await.expect("written");
    });
    with_device(&server, settings(), |_| async {});
    server.lose_power();
    assert_eq!(server.byte(0), 7);
}

#[test]
fn unflushed_changes_are_resent_and_then_a_flush_succeeds() {
    // Power is lost at the seventh request.
    let server = Server::start(|number, _| match number {
        7 => Act::PowerLoss,
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        device.write(0, block(1)).await.expect("1");
        device.flush().await.expect("2");
        device.write(0, block(2)).await.expect("3");
        device.write(4096, block(3)).await.expect("4");
        device.write_fua(8192, block(4)).await.expect("5");
        device.write(4096, block(5)).await.expect("6");
        device.flush().await.expect("7, then after the writes");
        assert_eq!(device.losses(), 1);
        for (number, byte) in [(0, 2), (1, 5), (2, 4)] {
            assert_eq!(read(&device, number).await, byte);
        }
    });
    // Block 1 has its newer data only, and the flush follows.
    let asked = server.asked();
    let mut resent = asked[7..9].to_vec();
    resent.sort_unstable();
    assert_eq!(resent, [(command::WRITE, 0), (command::WRITE, 4096)]);
    assert_eq!(asked[9], (command::FLUSH, 0));
    server.lose_power();
    assert_eq!((server.byte(0), server.byte(4096)), (2, 5));
}

#[test]
fn a_change_that_fails_on_resend_is_reported_once_by_range() {
    let server = Server::start(|number, asked| match (number, asked) {
        (2, _) => Act::PowerLoss,
        (3, command::WRITE) => Act::Fail(EIO),
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        device.write(8192, block(1)).await.expect("1");
        let error = device.flush().await.expect_err("the write failed");
        assert_eq!(error.kind(), ErrorKind::Io);
        let report = error.report();
        assert!(
            report.contains("MAY BE LOST at bytes 8192..12288"),
            "{report}"
        );
        device.flush().await.expect("it was reported");
    });
}

/// An old copy of a write lands after the write was acknowledged on the next connection. It may not
/// land on a newer write.
#[test]
fn no_late_copy_of_a_write_lands_on_a_newer_one() {
    let late = QUARANTINE - Duration::from_millis(1);
    let server = Server::start(move |number, _| match number {
        2 => Act::Late(late),
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        device.write(0, block(1)).await.expect("1");
        let begin = rt::now();
        device
            .write(0, block(2))
            .await
            .expect("2, and a second time");
        // It may be sent again at once. Others do not wait for it.
        device.write(8192, block(9)).await.expect("elsewhere");
        device.flush().await.expect("flushed");
        assert_eq!(read(&device, 0).await, 2);
        assert!(rt::now() - begin < QUARANTINE, "nothing waits but block 0");
        for newer in [3, 4] {
            device.write(0, block(newer)).await.expect("newer");
            assert_eq!(read(&device, 0).await, newer);
        }
        assert!(
            rt::now() - begin >= QUARANTINE,
            "the range was free too soon"
        );
        device.flush().await.expect("flushed");
        rt::sleep(QUARANTINE).await;
        assert_eq!(read(&device, 0).await, 4);
    });
    server.lose_power();
    assert_eq!(server.byte(0), 4);
}

/// A resend that is lost leaves copies, too.
#[test]
fn no_late_copy_of_a_resend_lands_on_a_newer_write() {
    let late = QUARANTINE - Duration::from_millis(1);
    let server = Server::start(move |number, _| match number {
        2 => Act::PowerLoss,
        3 => Act::Late(late),
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        device.write(0, block(1)).await.expect("1");
        device.flush().await.expect("2, after two losses");
        assert_eq!(device.losses(), 2);
        device.write(0, block(2)).await.expect("after a wait");
        rt::sleep(QUARANTINE).await;
        assert_eq!(read(&device, 0).await, 2);
    });
}

#[test]
fn a_server_that_shuts_down_is_left_for_its_successor() {
    let server = Server::start(|number, _| match number {
        2 => Act::Fail(ESHUTDOWN),
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        device.write(0, block(1)).await.expect("1");
        device.write(4096, block(2)).await.expect("2, then again");
        device.flush().await.expect("flushed");
        assert_eq!(device.losses(), 1);
    });
}

#[test]
fn a_request_that_ends_every_connection_is_given_up() {
    let server = Server::start(|_, asked| match asked {
        command::READ => Act::Cut,
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        let error = device.read(8192, block(0)).await.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let report = error.report();
        assert!(
            report.contains("lost 5 times while a request at byte 8192"),
            "{report}"
        );
        device.flush().await.expect("others are served");
    });
}

#[test]
fn a_server_that_does_not_answer_is_left() {
    let server = Server::start(|number, _| match number {
        1 | 3 => Act::Silence,
        _ => Act::Answer,
    });
    with_device(&server, settings(), |device| async move {
        let begin = rt::now();
        device.read(0, block(0)).await.expect("the second time");
        assert!(rt::now() - begin >= TIMES.answer);
        let begin = rt::now();
        device.flush().await.expect("the second time");
        assert!(rt::now() - begin >= TIMES.flush, "a flush has more time");
        assert_eq!(device.losses(), 2);
    });
}

#[test]
fn a_server_that_stays_away_is_an_error_until_it_is_back() {
    let server = Server::start(|number, _| match number {
        1 => Act::Cut,
        _ => Act::Answer,
    });
    let (offer, name) = (server.offer(), server.uri());
    let patience = Duration::from_millis(300);
    let impatient = Settings {
        times: Times { patience, ..TIMES },
        ..settings()
    };
    with_device(&server, impatient, move |device| async move {
        offer.absent.set(true);
        let begin = rt::now();
        let error = device.read(0, block(0)).await.expect_err("away");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.report().contains(&name), "{}", error.report());
        assert!(rt::now() - begin >= patience);
        // Fails at once now.
        let flush = device.flush().await;
        assert_eq!(kind(flush), Some(ErrorKind::Unreachable));
        offer.absent.set(false);
        while device.read(0, block(0)).await.is_err() {
            rt::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_flush_that_fails_while_the_server_is_away_has_lost_nothing() {
    // The server loses power at the second request, and stays away.
    let server = Server::start(|number, _| match number {
        2 => Act::PowerLoss,
        _ => Act::Answer,
    });
    let offer = server.offer();
    let impatient = Settings {
        times: Times {
            patience: Duration::from_millis(300),
            ..TIMES
        },
        ..settings()
    };
    with_device(&server, impatient, move |device| async move {
        device.write(4096, block(6)).await.expect("1");
        offer.absent.set(true);
        let flush = device.flush().await;
        assert_eq!(kind(flush), Some(ErrorKind::Unreachable));
        offer.absent.set(false);
        while let Err(error) = device.flush().await {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{}", error.report());
            rt::sleep(Duration::from_millis(10)).await;
        }
    });
    server.lose_power();
    assert_eq!(server.byte(4096), 6);
}

#[test]
fn another_export_in_its_place_gets_no_write() {
    type Change = fn(&Offer);
    let changes: [(Change, &str); 4] = [
        (|now| now.size_bytes.set(1 << 20), "it has shrunk from"),
        (|now| now.flags.set(export::HAS_FLAGS), "its flags are 0x0"),
        (
            |now| now.flags.set(now.flags.get() | export::READ_ONLY),
            "its flags are",
        ),
        (
            |now| now.preferred.set(8192),
            "its block sizes are now 512/8192/",
        ),
    ];
    for (change, words) in changes {
        let server = Server::start(|number, _| match number {
            2 => Act::Cut,
            _ => Act::Answer,
        });
        let offer = server.offer();
        with_device(&server, settings(), move |device| async move {
            device.write(0, block(1)).await.expect("written");
            let (flags, size, preferred) = (
                offer.flags.get(),
                offer.size_bytes.get(),
                offer.preferred.get(),
            );
            change(&offer);
            let error = device.read(0, block(0)).await.expect_err("another one");
            let report = error.report();
            for part in [words, "Nothing is sent to it", "help: "] {
                assert!(report.contains(part), "{report}");
            }
            let flush = device.flush().await;
            assert_eq!(kind(flush), Some(ErrorKind::Disconnected));
            // The former one returns.
            offer.flags.set(flags);
            offer.size_bytes.set(size);
            offer.preferred.set(preferred);
            while device.read(0, block(0)).await.is_err() {
                rt::sleep(Duration::from_millis(10)).await;
            }
            device.flush().await.expect("flushed");
        });
        let wrote = server.asked();
        let writes = wrote.iter().filter(|(op, _)| *op == command::WRITE);
        assert_eq!(writes.count(), 2, "the second time to the former one");
    }
}

#[test]
fn an_export_that_has_grown_has_its_new_size() {
    let server = Server::start(|number, _| match number {
        1 => Act::Cut,
        _ => Act::Answer,
    });
    let offer = server.offer();
    with_device(&server, settings(), move |device| async move {
        offer.size_bytes.set(2 * SIZE_BYTES as u64);
        device.write(0, block(1)).await.expect("written");
        assert_eq!(device.info().size_bytes, 2 * SIZE_BYTES as u64);
        assert_eq!(device.losses(), 1);
    });
}

#[test]
fn several_connections_share_the_requests_and_one_loss_is_that_of_all() {
    let server = Server::start(|number, _| match number {
        9 => Act::PowerLoss,
        _ => Act::Answer,
    });
    let offer = server.offer();
    offer.flags.set(offer.flags.get() | export::CAN_MULTI_CONN);
    let several = Settings {
        connections: 4,
        ..settings()
    };
    with_device(&server, several, |device| async move {
        assert_eq!(device.connections(), 4);
        let write = |at: u64| device.write(at * 4096, block(u8::try_from(at).expect("small")));
        let writes: Vec<_> = (1..=8).map(write).collect();
        for write in writes {
            write.await.expect("written");
        }
        device.flush().await.expect("after the resend");
        assert_eq!(device.losses(), 1);
        for at in 1..=8 {
            assert_eq!(u64::from(read(&device, at).await), at);
        }
    });
    assert!(server.used() > 4, "{} connections", server.used());
    server.lose_power();
    assert!((1..=8_u8).all(|at| server.byte(usize::from(at) * 4096) == at));
}

#[test]
fn one_connection_is_used_where_a_flush_covers_only_its_own() {
    let server = Server::start(|_, _| Act::Answer);
    let several = Settings {
        connections: 4,
        ..settings()
    };
    with_device(&server, several, |device| async move {
        assert_eq!(device.connections(), 1);
        let writes: Vec<_> = (0..8).map(|at| device.write(at * 4096, block(1))).collect();
        for write in writes {
            write.await.expect("written");
        }
    });
    assert_eq!(server.used(), 1);
}
