use forebay_block::ErrorKind;

use super::respond::hmac;
use super::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
const SUBSYSTEM: &str = "nqn.2026-11.io.forebay:test";

/// The bytes 0, 1, 2, ... as secrets; each line is, in Python, `base64.b64encode(key +
/// zlib.crc32(key).to_bytes(4, 'little'))`.
const TEXTS: [&str; 4] = [
    "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
    "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJC\
     UmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn secrets_are_read_back_and_match_other_implementations() {
    // In Python: `hmac.new(key, host + b"NVMe-over-Fabrics", hash)`.
    let keys = [
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "d06bfe416d2de81dd5cccafd02bca7f68fe6d9ed50c7393fa37471335959cdf7",
        "c157cd5cafc8bf44889b9a215ae863da7c74cbf352a8fcf8\
         e0d6a7cc2ed2cd821961d30d2b9829ccf6f44577b472eb6a",
        "4f4d1c876f01422769c184c36ecdb1e88fb31cd7203e1c786c3739aa60c4599e\
         e4f5db73292f04659f9f63529af6206b1c74df8a0a8ee50f2e08f41fc74e0b21",
    ];
    for (text, key) in TEXTS.into_iter().zip(keys) {
        let secret = Secret::parse(text).expect("a secret");
        assert_eq!(secret.text().as_str(), text);
        assert_eq!(hex(&secret.key(HOST)), key);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
    for hash in [
        None,
        Some(Hash::Sha256),
        Some(Hash::Sha384),
        Some(Hash::Sha512),
    ] {
        let secret = Secret::generate(hash);
        assert_eq!(Secret::parse(&secret.text()).expect("a secret"), secret);
        assert_ne!(Secret::generate(hash), secret);
    }
}

#[test]
fn an_invalid_secret_is_refused_and_not_shown() {
    let good = TEXTS[2];
    let wrong = [
        String::new(),
        "hello".to_owned(),
        "DHHC-1:".to_owned(),
        "DHHC-1:02".to_owned(),
        good.replace("DHHC-1", "DHHC-2"),
        good.replace(":02:", ":04:"),
        good.replace(":02:", ":2:"),
        // Another hash has another length.
        good.replace(":02:", ":01:"),
        good.replace(":02:", ":03:"),
        good.trim_end_matches(':').to_owned(),
        good.replace("==:", "=:"),
        good.replace("==:", ":"),
        // Bits beyond the last byte, padding in the middle, other letters, a mistyped letter, an
        // omission.
        good.replace("BQ==:", "BR==:"),
        good.replace("AAECAw", "AA==Aw"),
        good.replace("AAEC", "AA-C"),
        good.replace("AAECAw", "BAECAw"),
        good.replace("AAEC", ""),
    ];
    for text in &wrong {
        let refused = Secret::parse(text).expect_err(text);
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(!refused.report().contains("AwQF"), "{}", refused.report());
    }
}

#[test]
fn files_of_secrets() {
    let (one, two) = (TEXTS[1], TEXTS[3]);
    let secrets = format!("# hosts\n\n nqn.a:one\t{one}\nnqn.a:two {two} {one}\r\n");
    let secrets = Secrets::parse(&secrets).expect("two hosts");
    assert!(secrets.knows("nqn.a:one") && secrets.knows("nqn.a:two") && !secrets.knows("nqn.a:on"));
    assert!(secrets.of("nqn.a:one").expect("it").controller.is_none());
    assert!(secrets.of("nqn.a:two").expect("it").controller.is_some());
    let shown = format!("{secrets:?}");
    assert!(
        shown.contains("nqn.a:one") && !shown.contains("AwQF"),
        "{shown}"
    );
    for (text, what) in [
        ("# nobody\n".to_owned(), "no host"),
        (
            format!("nqn.a:one {one}\nnqn.a:two"),
            "line 2: a host's name",
        ),
        (one.to_owned(), "line 1: a host's name"),
        (
            format!("nqn.a:one {one} {two} {two}"),
            "line 1: a host's name",
        ),
        (format!("one {one}"), "line 1: \"one\" is not an NVMe"),
        (format!("nqn.a:one {one}x"), "line 1: invalid secret"),
        (
            format!("nqn.a:one {one} {one}"),
            "line 1: the host and the controller have",
        ),
        (
            format!("nqn.a:one {one}\nnqn.a:one {two}"),
            "line 2: host \"nqn.a:one\" has",
        ),
    ] {
        let refused = Secrets::parse(&text).expect_err(&text).report();
        assert!(refused.starts_with(what), "{refused}");
        assert!(!refused.contains("AwQF"), "{refused}");
    }
}

#[test]
fn responses_match_another_implementation() {
    // In Python, `k` is the secret above, transformed for this hash. `c` is the hash's number,
    // repeated to the length of the hash. `g` is 256 times 09. The response of the host:
    //
    //     names = b"HostHost" + host + b"\0" + subsystem
    //     hmac.new(k, c + bytes([4, 3, 2, 1, 6, 5, 0]) + names, hash)
    //
    // For the controller, `c` is `hmac.new(hash(g), c, hash)`, the label is `b"Controller"`, and
    // the names are in reverse order.
    let vectors = [
        (
            Hash::Sha256,
            "cb4f29696cec7e36756ffa44fc059e5dec2731694110e7884a8b82fa1c66b370",
            "ca1b42771870f73202414bef2dd676adf3ac2c407c9259a4e01e8918892003e6",
        ),
        (
            Hash::Sha384,
            "ea312c430d6f3f11cdb0a3e9b7d5501b842ab7d52cb485f3\
             a6aef0c770ea16334a375b97867e0c128a108e3d1bcd181a",
            "e45805967bb45bfe430fd142bd8a5f55b2fbb78c56e08458\
             43c502a7bf31c24a0a5e57566654dd011ec5523dc34b96c0",
        ),
        (
            Hash::Sha512,
            "d63be626856098ce2e678462cedd36ee9568db3fc9faad9455df9761215061e0\
             c4dbc088930ba491c1c8d876da670f70a72b72df7eebe34f5e53d660e1c8b45e",
            "97a0481abeb9302415c2840d0c410955aeea1da3a6002737c6b74b119e3b518d\
             06171b615bdb9e93ba46ff34f57920790c37245256d1c5f9a3c973c4733a01b9",
        ),
    ];
    for (hash, host, controller) in vectors {
        let key = Secret::parse(TEXTS[usize::from(hash.id())])
            .expect("a secret")
            .key(HOST);
        let value = vec![hash.id(); hash.bytes()];
        for (side, shared, right) in [
            (Side::Host, None, host),
            (Side::Controller, Some(&[9; 256][..]), controller),
        ] {
            let question = Question {
                side,
                hash,
                challenge: &augment(hash, &value, shared),
                sequence: 0x0102_0304,
                transaction: 0x0506,
                host: HOST,
                subsystem: SUBSYSTEM,
            };
            let answer = question.answer(&key);
            assert_eq!(hex(&answer), right);
            assert!(question.is_answer(&key, &answer));
            for wrong in [&answer[1..], &[]] {
                assert!(!question.is_answer(&key, wrong));
            }
            for at in 0..answer.len() {
                let mut wrong = answer.clone();
                wrong[at] ^= 1;
                assert!(!question.is_answer(&key, &wrong));
            }
        }
    }
    // RFC 4231, test case 2.
    assert_eq!(
        hex(&hmac(
            Hash::Sha256,
            b"Jefe",
            &[b"what do ya want ", b"for nothing?"]
        )),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
}

#[test]
fn sequence_numbers_are_never_zero_and_never_the_same() {
    let numbers: std::collections::HashSet<u32> = (0..1000).map(|_| next_sequence()).collect();
    assert!(numbers.len() == 1000 && !numbers.contains(&0));
}
