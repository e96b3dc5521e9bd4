use super::*;
use std::cell::Cell;

use forebay_block::{BlockDevice, Buf, Completion, DeviceInfo, Request};
use forebay_io::net::Address;
use forebay_io::rt::block_on_simulated;
use forebay_io::{Engine, Reactor};
use forebay_volume::Volume;
use forebay_wire::nbd::handshake::{GREETING_BYTES, InfoRequest, OptionHeader, option};

struct Nothing;

impl BlockDevice for Nothing {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("nothing", 1 << 20)
    }

    fn submit(&self, _request: Request, done: Completion) {
        done.complete(Ok(()));
    }
}

#[test]
fn names_that_nbd_cannot_carry_are_refused() {
    block_on_simulated(1, async {
        let exports = Exports::new();
        let volume = |name: &str| Volume::new(name, Rc::new(Nothing), false);
        let kind = |result: Result<()>| result.map_err(|error| error.kind());
        let (first, second) = (volume("a"), volume("b"));
        assert_eq!(kind(exports.add(first.handle(), "words")), Ok(()));
        assert_eq!(kind(exports.add(second.handle(), "")), Ok(()));
        let again = exports.add(first.handle(), "");
        assert_eq!(kind(again), Err(ErrorKind::Busy));
        for bad in ["n\0ul", &"x".repeat(4097)] {
            let refused = exports.add(volume(bad).handle(), "");
            assert_eq!(kind(refused), Err(ErrorKind::InvalidInput));
        }
        let name = |asked: &str| {
            exports
                .find(asked)
                .map(|export| export.volume.name().to_owned())
        };
        assert_eq!(name("").as_deref(), Some("a"), "the first is the default");
        assert_eq!(name("b").as_deref(), Some("b"));
        assert!(exports.remove("a") && !exports.remove("a"));
        assert_eq!(name("").as_deref(), Some("b"));
        assert_eq!(name("a"), None);
    });
}

/// Whether the server has closed the connection after `patience`.
async fn closes(stream: Stream, patience: Duration) -> bool {
    let closed = Rc::new(Cell::new(false));
    let told = Rc::clone(&closed);
    rt::spawn(async move {
        while stream
            .recv(Buf::scratch(4096))
            .await
            .is_ok_and(|len| len > 0)
        {}
        told.set(true);
    });
    rt::sleep(patience).await;
    closed.get()
}

#[test]
fn whoever_does_not_choose_an_export_in_time_is_let_go() {
    for engine in [Engine::Auto, Engine::Threads] {
        let reactor = Reactor::new(engine).expect("a reactor");
        reactor.run(async {
            let volume = Volume::new("v", Rc::new(Nothing), false);
            let exports = Arc::new(Exports::new());
            exports.add(volume.handle(), "").expect("a free name");
            let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
            let listener = Listener::bind(&any).expect("a port");
            let address = listener.address();
            rt::spawn(async move {
                serve(listener, exports).await.expect("the server goes on");
            });
            let connect = || async { Stream::connect(&address).await.expect("it listens") };
            // One client is silent; the other has chosen its export and may be silent for ever.
            let silent = connect().await;
            let chosen = connect().await;
            chosen
                .recv_exact(Buf::scratch(GREETING_BYTES))
                .await
                .expect("a greeting");
            let data = InfoRequest {
                name: "v".to_owned(),
                wanted: vec![],
            }
            .encode();
            let go = OptionHeader {
                option: option::GO,
                length: u32::try_from(data.len()).expect("short"),
            };
            let words = [&[0, 0, 0, 3], &go.encode()[..], &data].concat();
            chosen.send(&[Buf::copied(&words)]).await.expect("it reads");
            assert!(closes(silent, 5 * HANDSHAKE_TIMEOUT).await);
            assert!(!closes(chosen, HANDSHAKE_TIMEOUT).await);
        });
    }
}
