//! Tests with a scripted target, on a virtual clock.

mod authenticate;
mod damage;
mod pdu;
mod resend;
mod target;
mod wrong;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice as _, BlockDeviceExt as _, Buf, ErrorKind, Result};
use forebay_io::{Engine, Reactor, rt};
use forebay_wire::nvme::Status;
use forebay_wire::nvme::io::opcode;

use super::{NvmeTcpDevice, Times, Uri};
use target::{Act, Target};

const TIMES: Times = Times {
    keep_alive: Duration::from_millis(200),
    answer: Duration::from_millis(500),
    patience: Duration::from_secs(20),
    pause: Duration::from_millis(10),
};

/// Runs `client` with a device on a target that follows `script`.
fn with_device<F: Future<Output = ()> + 'static>(
    target: &Target,
    times: Times,
    client: impl FnOnce(Rc<NvmeTcpDevice>) -> F + 'static,
) {
    let uri: Uri = target.uri().parse().expect("a URI");
    target.run(async move {
        let device = NvmeTcpDevice::connect_within(&uri, times).await;
        client(device.expect("connected")).await;
    });
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_device_has_the_properties_of_its_target() {
    let target = Target::start(|_, _| Act::Answer);
    with_device(&target, TIMES, |device| async move {
        let info = device.info();
        assert_eq!((info.size_bytes, info.logical_block_bytes), (4 << 20, 4096));
        assert_eq!(
            (info.physical_block_bytes, info.atomic_write_bytes),
            (8192, 4096)
        );
        assert!(info.volatile_cache && info.fua && info.discard && !device.read_only());
        assert!(info.identity.is_known());
        let data: Vec<_> = (0..300 << 10).map(|at: u32| (at % 251) as u8).collect();
        device
            .write(8192, Buf::copied(&data))
            .await
            .expect("written");
        device.discard(0, 4096).await.expect("discarded");
        // The target has no command for zeroes.
        device.write_zeroes(12_288, 4096).await.expect("zeroes");
        let read = Buf::zeroed(data.len());
        device.read(8192, read.clone()).await.expect("read");
        let mut wanted = data;
        wanted[4096..8192].fill(0);
        assert!(read.to_vec() == wanted);
        device.flush().await.expect("flushed");
        let beyond = device.read(4 << 20, Buf::zeroed(4096)).await;
        assert_eq!(kind(beyond), Some(ErrorKind::OutOfRange));
    });
    // At most 64 KiB a command: 4 KiB in the capsule, or requested in pieces.
    let asked = target.asked();
    let writes = asked.iter().filter(|(op, _)| *op == opcode::WRITE).count();
    assert_eq!(writes, 300_usize.div_ceil(64) + 1);
    assert_eq!(asked.last(), Some(&(opcode::FLUSH, 0)));
}

#[test]
fn errors_name_the_request_and_damaged_data_is_resent() {
    let target = Target::start(|number, asked| match (asked, number) {
        (opcode::READ, _) => Act::Fail(Status::UNRECOVERED_READ_ERROR),
        // The first two times.
        (opcode::WRITE, 1..=2) => Act::Fail(Status::TRANSIENT_TRANSPORT_ERROR),
        (opcode::FLUSH, _) => Act::Fail(Status::TRANSIENT_TRANSPORT_ERROR),
        _ => Act::Answer,
    });
    let name = target.uri();
    with_device(&target, TIMES, |device| async move {
        let data = Buf::copied(&[9; 4096]);
        device.write(0, data).await.expect("the third time");
        let error = device.read(4096, Buf::zeroed(4096)).await;
        let error = error.expect_err("it fails");
        assert_eq!(error.kind(), ErrorKind::Io);
        for word in [&*name, "a read of 4096 bytes at byte 4096", "2:81h"] {
            assert!(error.report().contains(word), "{}", error.report());
        }
        // The number of resends is limited.
        assert_eq!(kind(device.flush().await), Some(ErrorKind::Io));
        assert_eq!(device.losses(), 0);
    });
}

#[test]
fn writes_that_are_durable_by_themselves_are_not_missed() {
    let target = Target::start(|number, _| match number {
        2 => Act::Cut,
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        let data = Buf::copied(&[1; 4096]);
        device.write_fua(4096, data.clone()).await.expect("1");
        device.read(0, data).await.expect("2 and 3");
        device.flush().await.expect("nothing may be lost");
        assert_eq!(device.losses(), 1);
    });
}

#[test]
fn a_write_without_an_answer_waits_until_the_target_must_have_forgotten_it() {
    let ask = |op| {
        let target = Target::start(|number, _| match number {
            1 => Act::Cut,
            _ => Act::Answer,
        });
        let took = Rc::new(Cell::new(Duration::ZERO));
        let measured = Rc::clone(&took);
        with_device(&target, TIMES, move |device| async move {
            let data = Buf::copied(&[7; 4096]);
            let begin = rt::now();
            match op {
                opcode::WRITE => device.write(0, data).await.expect("written"),
                _ => device.read(0, data).await.expect("read"),
            }
            measured.set(rt::now() - begin);
        });
        assert_eq!(target.asked(), [(op, 0), (op, 0)]);
        took.get()
    };
    // Twice the keep-alive timeout of the target.
    let forgotten = 2 * TIMES.keep_alive;
    let took = ask(opcode::WRITE);
    assert!(took >= forgotten, "{took:?}");
    let took = ask(opcode::READ);
    assert!(took < forgotten, "{took:?}");
}

#[test]
fn a_target_that_does_not_answer_is_left() {
    let target = Target::start(|number, _| match number {
        1 => Act::Silence,
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        device.read(0, Buf::zeroed(4096)).await.expect("read");
        assert_eq!(device.losses(), 1);
    });
    // Nor does it answer a keep-alive.
    let target = Target::start(|_, _| Act::Answer);
    target.ignore_keep_alive();
    with_device(&target, TIMES, |device| async move {
        while device.losses() == 0 {
            rt::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_target_that_stays_away_is_an_error_until_it_is_back() {
    let target = Target::start(|number, _| match number {
        1 => Act::Cut,
        _ => Act::Answer,
    });
    let patience = Duration::from_millis(300);
    let times = Times { patience, ..TIMES };
    let (absence, name) = (target.absence(), target.uri());
    absence.set(true);
    with_device(&target, times, move |device| async move {
        let begin = rt::now();
        let error = device.read(0, Buf::zeroed(4096)).await.expect_err("away");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.report().contains(&name), "{}", error.report());
        assert!(rt::now() - begin >= patience);
        // Fails at once now.
        let flush = device.flush().await;
        assert_eq!(kind(flush), Some(ErrorKind::Unreachable));
        absence.set(false);
        while device.read(0, Buf::zeroed(4096)).await.is_err() {
            rt::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_request_that_ends_every_association_is_given_up() {
    let target = Target::start(|_, asked| match asked {
        opcode::READ => Act::Cut,
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        let error = device.read(8192, Buf::zeroed(4096)).await;
        let error = error.expect_err("it is never answered");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let report = error.report();
        assert!(
            report.contains("lost 5 times while a request at byte 8192"),
            "{report}"
        );
        assert_eq!(device.losses(), 5);
        device.flush().await.expect("others are served");
    });
}

#[test]
fn another_namespace_in_its_place_is_not_used() {
    let target = Target::start(|number, _| match number {
        1 => Act::Cut,
        _ => Act::Answer,
    });
    target.change_later();
    let patience = Duration::from_secs(1);
    let times = Times { patience, ..TIMES };
    with_device(&target, times, |device| async move {
        let write = device.write(0, Buf::copied(&[1; 4096])).await;
        let error = write.expect_err("it is another one");
        let report = error.report();
        assert!(report.contains("its namespace is another one"), "{report}");
    });
    assert_eq!(target.asked(), [(opcode::WRITE, 0)], "and nothing there");
}

#[test]
fn another_namespace_fails_requests_at_once_until_the_right_one_returns() {
    let target = Target::start(|number, _| match number {
        2 => Act::Cut,
        _ => Act::Answer,
    });
    let changes = target.changes();
    with_device(&target, TIMES, move |device| async move {
        let data = |byte| Buf::copied(&[byte; 4096]);
        device.write(0, data(1)).await.expect("written");
        changes(true);
        let begin = rt::now();
        let error = device.read(0, data(0)).await.expect_err("another one");
        assert_eq!(error.kind(), ErrorKind::Disconnected);
        let report = error.report();
        for part in [
            "its namespace is another one",
            "identifiers have changed",
            "help: ",
        ] {
            assert!(report.contains(part), "{report}");
        }
        assert!(rt::now() - begin < TIMES.patience, "it waits for nothing");
        // New requests fail too, whatever they are.
        for result in [device.write(4096, data(2)).await, device.flush().await] {
            assert_eq!(kind(result), Some(ErrorKind::Disconnected));
        }
        changes(false);
        let back = data(0);
        while device.read(0, back.clone()).await.is_err() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(back.to_vec(), [1; 4096]);
        device
            .flush()
            .await
            .expect("the unflushed change was sent again");
    });
    assert_eq!(target.byte(4096), 0, "nothing was sent to the other one");
}

#[test]
fn connection_errors_name_the_cause() {
    for (change, expected, word) in wrong::WRONG {
        let target = Target::start(|_, _| Act::Answer);
        target.wrong(change);
        let uri: Uri = target.uri().parse().expect("a URI");
        // Longer than the controller's own limit for becoming ready.
        let answer = Duration::from_secs(5);
        let times = Times { answer, ..TIMES };
        let made =
            target.run(async move { NvmeTcpDevice::connect_within(&uri, times).await.err() });
        let error = made.expect(word);
        let report = error.report();
        assert_eq!(error.kind(), expected, "{report}");
        assert!(report.contains(word), "{report}");
        assert!(report.contains(&target.uri()), "{report}");
    }
    let uri: Uri = "nvme-tcp://127.0.0.1:1/nqn.nobody".parse().expect("a URI");
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    let made = reactor.run(async move { NvmeTcpDevice::connect(&uri).await.err() });
    let error = made.expect("nobody");
    assert!(error.report().contains("nvme-tcp://127.0.0.1:1/nqn.nobody"));
}
