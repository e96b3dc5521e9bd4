use forebay_auth::Secrets;
use forebay_io::{Engine, Reactor};

use super::*;

const HOST: &str = "nqn.a:host";
const SUBSYSTEM: &str = "nqn.a:subsystem";
/// The bytes 0, 1, 2, ... and 100, 101, ...
const OWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const THEIRS: &str = "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";
const HASH: Hash = Hash::Sha384;
const VALUE: [u8; 48] = [3; 48];
const TRANSACTION: u16 = 0x1234;

fn secrets(line: &str) -> HostSecrets {
    let secrets = Secrets::parse(&format!("{HOST} {line}")).expect("a line");
    secrets.of(HOST).expect("it is there").clone()
}

fn host(secrets: &HostSecrets) -> Host<'_> {
    Host {
        name: HOST,
        subsystem: SUBSYSTEM,
        secrets,
        transaction: TRANSACTION,
    }
}

fn run(test: impl Future<Output = ()> + 'static) {
    Reactor::new(Engine::Threads).expect("a reactor").run(test);
}

fn challenge(group: Group, public: &[u8]) -> Vec<u8> {
    let message = ControllerMessage::Challenge {
        hash: HASH,
        group,
        sequence: 77,
        value: &VALUE,
        public,
    };
    message.encode(TRANSACTION)
}

fn success(response: Option<&[u8]>) -> Vec<u8> {
    let hash = HASH;
    ControllerMessage::Success1 { hash, response }.encode(TRANSACTION)
}

fn reason<T>(outcome: Result<T, Failure>) -> Option<Reason> {
    match outcome {
        Err(Failure::Rejected(reason)) => Some(reason),
        _ => None,
    }
}

#[test]
fn both_sides_prove_themselves_with_a_group_and_without() {
    run(async {
        let secrets = secrets(&format!("{OWN} {THEIRS}"));
        for group in Group::ALL {
            let private = Private::draw(group);
            let public = private.public().await.expect("a thread");
            let host = host(&secrets);
            let reply = host.reply(&challenge(group, &public)).await;
            let reply = reply.ok().expect("a challenge");
            assert_eq!(reply.public.len(), group.bytes());
            // Shared secret as the target computes it.
            let shared = private.shared(&reply.public).await.expect("a value");
            let shared = shared.as_ref().map(|shared| shared.as_slice());
            let augmented = augment(HASH, &VALUE, shared);
            let asked = host.question(Side::Host, HASH, &augmented, 77);
            assert!(asked.is_answer(&secrets.own.key(HOST), &reply.response));
            let expected = reply.expected.as_ref().expect("the target is asked, too");
            assert_ne!(expected.sequence, 0, "zero asks for a secure channel");
            let augmented = augment(HASH, &expected.challenge, shared);
            let asked = host.question(Side::Controller, HASH, &augmented, expected.sequence);
            let secret = secrets.controller.as_ref().expect("it has one");
            let mut right = asked.answer(&secret.key(SUBSYSTEM)).to_vec();
            let result = host.check_success(&success(Some(&right)), Some(expected));
            assert!(matches!(result, Ok(true)), "{group:?}");
            // The host's own answer, reflected.
            let own = asked.answer(&secrets.own.key(HOST));
            let result = host.check_success(&success(Some(&own)), Some(expected));
            assert_eq!(reason(result), Some(Reason::Failed));
            right[47] ^= 1;
            let result = host.check_success(&success(Some(&right)), Some(expected));
            assert_eq!(reason(result), Some(Reason::Failed));
            let result = host.check_success(&success(None), Some(expected));
            assert_eq!(reason(result), Some(Reason::Failed), "it has to answer");
        }
    });
}

#[test]
fn a_host_that_does_not_ask_is_content() {
    run(async {
        let secrets = secrets(OWN);
        let host = host(&secrets);
        let reply = host.reply(&challenge(Group::Null, &[])).await;
        let reply = reply.ok().expect("a challenge");
        assert!(reply.expected.is_none());
        assert!(matches!(
            host.check_success(&success(None), None),
            Ok(false)
        ));
    });
}

#[test]
fn a_target_that_breaks_the_protocol_gets_the_reason() {
    run(async {
        let secrets = secrets(OWN);
        let host = host(&secrets);
        let group = Group::Ffdhe2048;
        let public = Private::draw(group).public().await.expect("a thread");
        let good = challenge(group, &public);
        assert!(host.reply(&good).await.is_ok());
        let mut weak = vec![0; group.bytes()];
        for last in [0, 1] {
            weak[group.bytes() - 1] = last;
            let result = host.reply(&challenge(group, &weak)).await;
            assert_eq!(reason(result), Some(Reason::IncorrectPayload));
        }
        let mut other = good.clone();
        other[4] ^= 1;
        let result = host.reply(&other).await;
        assert_eq!(reason(result), Some(Reason::IncorrectPayload), "another's");
        let result = host.reply(&success(None)).await;
        assert_eq!(reason(result), Some(Reason::IncorrectMessage));
        assert_eq!(
            reason(host.check_success(&good, None)),
            Some(Reason::IncorrectMessage)
        );
        let mut unknown = good;
        unknown[8] = 9;
        let result = host.reply(&unknown).await;
        assert_eq!(reason(result), Some(Reason::HashUnusable));
        let failure = ControllerMessage::Failure1(Reason::Failed).encode(0);
        match host.check_success(&failure, None) {
            Err(Failure::Error(error)) => {
                assert_eq!(error.kind(), ErrorKind::Permission);
                assert!(error.report().contains(HOST), "{}", error.report());
            }
            _ => panic!("it was refused"),
        }
    });
}
