use forebay_wire::nvme::auth::{Exchange, MAX_MESSAGE_BYTES};

use super::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
const SUBSYSTEM: &str = "nqn.2026-11.io.forebay:test";
/// The bytes 0, 1, 2, ...
const SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

#[test]
fn a_transaction_that_takes_too_long_is_forgotten() {
    let engine = forebay_io::Engine::Threads;
    let reactor = forebay_io::Reactor::simulated(engine, 1).expect("a reactor");
    reactor.run_simulated(async {
        let secrets = Secrets::parse(&format!("{HOST} {}", SECRET)).expect("a host");
        assert!(Chap::new(&secrets, "nqn.a:other", SUBSYSTEM).is_none());
        let mut chap = Chap::new(&secrets, HOST, SUBSYSTEM).expect("it has a secret");
        let hashes = &[1];
        let negotiate = HostMessage::Negotiate {
            hashes,
            groups: &[0],
        };
        let (offer, room) = (negotiate.encode(1), MAX_MESSAGE_BYTES);
        for late in [true, false] {
            assert_eq!(chap.take(&offer).await.expect("a thread"), Outcome::Open);
            // A fetch with too little room changes nothing.
            assert_eq!(chap.fetch(47).expect_err("no room"), Status::INVALID_FIELD);
            let (challenge, outcome) = chap.fetch(room).expect("a challenge");
            assert_eq!((challenge.len(), outcome), (16 + 32, Outcome::Open));
            if late {
                rt::sleep(TRANSACTION_TIME).await;
                continue;
            }
            // Another negotiation while a reply is expected.
            assert_eq!(chap.take(&offer).await.expect("a thread"), Outcome::Open);
            let (failure, outcome) = chap.fetch(room).expect("a refusal");
            assert_eq!(failure, [0, 0xf1, 0, 0, 1, 0, 1, 7]);
            assert!(matches!(outcome, Outcome::Failed(_)));
        }
        // The command that carries these messages.
        assert!(Exchange::of(&Exchange::command(true, 72)).is_some_and(|it| it.known));
    });
}
