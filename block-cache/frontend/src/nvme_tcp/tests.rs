use forebay_io::net::Address;
use forebay_io::{Engine, Reactor};

use super::namespaces::Namespaces;
use super::*;

#[test]
fn a_host_without_a_queue_in_time_is_disconnected() {
    for engine in [Engine::Auto, Engine::Threads] {
        let reactor = Reactor::simulated(engine, 1).expect("a reactor");
        reactor.run_simulated(async {
            let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
            let listener = Listener::bind(&any).expect("a port");
            let address = listener.address();
            rt::spawn(async move {
                let served = serve(listener, Arc::new(Exports::new())).await;
                served.expect("the target goes on");
            });
            let begin = rt::now();
            let silent = Stream::connect(&address).await.expect("it listens");
            // The end of the connection, or an error. A receive without end would hang the test.
            let received = silent.recv(Buf::scratch(64)).await;
            assert!(matches!(received, Ok(0) | Err(_)), "{received:?}");
            let waited = rt::now() - begin;
            assert!(waited >= HANDSHAKE_TIMEOUT, "{waited:?}");
        });
    }
}

#[test]
fn names_that_are_none_are_refused() {
    let kind = |nqn: &str, hosts: Option<Vec<String>>| {
        let made = Subsystem::new(nqn, hosts, b"");
        made.map(|_| ()).map_err(|error| error.kind())
    };
    let long = format!("nqn.2026-11.io.forebay:{}", "x".repeat(201));
    assert_eq!(kind("nqn.2026-11.io.forebay:db", None), Ok(()));
    for bad in [
        "",
        "db",
        "nqn.",
        "nqn.a b",
        "nqn.a\n",
        "nqn.2014-08.org.nvmexpress.discovery",
        &long,
    ] {
        assert_eq!(kind(bad, None), Err(ErrorKind::InvalidInput), "{bad:?}");
        let hosts = Some(vec![bad.to_owned()]);
        assert_eq!(kind("nqn.a:b", hosts), Err(ErrorKind::InvalidInput));
    }
}

#[test]
fn another_machine_has_other_identifiers() {
    let here = Namespaces::new("nqn.a:b", b"here");
    let same_origin = Namespaces::new("nqn.a:b", b"here");
    let there = Namespaces::new("nqn.a:b", b"there");
    assert_eq!(here.serial(), same_origin.serial());
    assert_ne!(here.serial(), there.serial());
    assert_eq!(here.serial().len(), 16);
}
