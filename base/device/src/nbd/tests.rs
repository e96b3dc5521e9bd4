//! Tests with a scripted server, on a virtual clock.

mod extents;
mod replies;
mod resend;
mod secure;
mod server;
mod simulation;

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice as _, BlockDeviceExt as _, Buf, ErrorKind, Result};
use forebay_io::{Engine, Reactor, rt};
use forebay_wire::nbd::handshake::export;
use forebay_wire::nbd::transmission::command;

use super::{NbdDevice, Settings, Times, Uri};
use server::{Act, Offer, SIZE_BYTES, Server};

const QUARANTINE: Duration = Duration::from_secs(2);
const TIMES: Times = Times {
    answer: Duration::from_millis(500),
    flush: Duration::from_secs(2),
    patience: Duration::from_secs(20),
    pause: Duration::from_millis(10),
    quarantine: QUARANTINE,
};

const fn settings() -> Settings {
    Settings {
        connections: 1,
        times: TIMES,
    }
}

/// Runs `client` with a device on a server that follows a script.
fn with_device<F: Future<Output = ()> + 'static>(
    server: &Server,
    settings: Settings,
    client: impl FnOnce(Rc<NbdDevice>) -> F + 'static,
) {
    let uri: Uri = server.uri().parse().expect("a URI");
    server.run(async move {
        let device = NbdDevice::connect_with(&uri, settings).await;
        client(device.expect("connected")).await;
    });
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_device_has_the_properties_of_its_server() {
    for structured in [false, true] {
        let server = Server::start(|_, _| Act::Answer);
        server.offer().structured.set(structured);
        with_device(&server, settings(), |device| async move {
            let info = device.info();
            assert_eq!(
                (info.size_bytes, info.logical_block_bytes),
                (SIZE_BYTES as u64, 512)
            );
            assert_eq!(info.physical_block_bytes, 4096);
            assert!(info.volatile_cache && info.fua && info.discard && !device.read_only());
            assert!(info.identity.is_known());
            let data: Vec<_> = (0..300 << 10).map(|at: u32| (at % 251) as u8).collect();
            device
                .write(8192, Buf::copied(&data))
                .await
                .expect("written");
            device.discard(0, 4096).await.expect("discarded");
            device.write_zeroes(12_288, 4096).await.expect("zeroes");
            let read = Buf::zeroed(data.len());
            read.fill(0xaa);
            device.read(8192, read.clone()).await.expect("read");
            let mut wanted = data;
            wanted[4096..8192].fill(0);
            assert!(read.to_vec() == wanted);
            // All of it is a hole.
            let hole = Buf::copied(&[0xaa; 8192]);
            device.read(2 << 20, hole.clone()).await.expect("read");
            assert_eq!(hole.to_vec(), [0; 8192]);
            device.flush().await.expect("flushed");
            let beyond = device.read(SIZE_BYTES as u64, Buf::zeroed(4096)).await;
            assert_eq!(kind(beyond), Some(ErrorKind::OutOfRange));
        });
        // At most 64 KiB a request.
        let asked = server.asked();
        let writes = asked.iter().filter(|(op, _)| *op == command::WRITE).count();
        assert_eq!(writes, 300_usize.div_ceil(64));
        assert_eq!(asked.last(), Some(&(command::FLUSH, 0)));
    }
}

#[test]
fn an_identity_is_that_of_the_uri() {
    let of = |text: &str| super::identity(&text.parse().expect("a URI"));
    let one = of("nbd://localhost:9/db");
    assert!(one.is_same_as(of("nbd://LOCALHOST:9/db")));
    // Another name of the same server.
    assert!(one.is_same_as(of("nbd://127.0.0.1:9/db")) || one.is_same_as(of("nbd://[::1]:9/db")));
    for other in ["nbd://localhost:9/da", "nbd://localhost:10/db"] {
        assert!(one.differs_from(of(other)), "{other}");
    }
    let unix = of("nbd+unix:///db?socket=/run/a");
    assert!(unix.differs_from(of("nbd+unix:///db?socket=/run/b")));
}

#[test]
fn a_server_without_a_volatile_cache_needs_no_flush() {
    let server = Server::start(|_, asked| match asked {
        command::FLUSH => Act::Cut,
        _ => Act::Answer,
    });
    server.offer().flags.set(export::HAS_FLAGS);
    with_device(&server, settings(), |device| async move {
        assert!(!device.info().volatile_cache);
        let written = device.write(0, Buf::zeroed(4096)).await;
        written.expect("written");
        device.flush().await.expect("nothing to do");
    });
}

#[test]
fn a_loss_during_the_first_flush_may_be_that_of_earlier_changes() {
    let has_failed = std::cell::Cell::new(false);
    let server = Server::start(move |_, asked| match asked {
        command::FLUSH if !has_failed.replace(true) => Act::PowerLoss,
        _ => Act::Answer,
    });
    let uri: Uri = server.uri().parse().expect("a URI");
    with_device(&server, settings(), move |first| async move {
        let written = first.write(0, Buf::copied(&[1; 4096])).await;
        written.expect("acknowledged");
        drop(first);
        let next = NbdDevice::connect_with(&uri, settings()).await;
        let flushed = next.expect("connected").flush().await;
        let report = flushed.expect_err("it reports the loss").report();
        assert!(report.contains("LOST"), "{report}");
    });
}
