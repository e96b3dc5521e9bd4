use crypto_bigint::Resize as _;
use sha2::{Digest as _, Sha256};

use super::*;

const REAL: [Group; 3] = [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the fraction digits of e in binary, with an integer part of two bits: the sum of 1/k!,
/// in words from the highest.
fn e_words(words: usize) -> Vec<u32> {
    // One more word for the remainders of the divisions.
    let mut term = vec![0_u32; words + 2];
    term[0] = 1;
    let mut sum = vec![0_u32; words + 2];
    for divisor in 1_u64.. {
        let mut carry = 0;
        for (word, add) in sum.iter_mut().zip(&term).rev() {
            let total = u64::from(*word) + u64::from(*add) + carry;
            *word = u32::try_from(total & 0xffff_ffff).expect("32 bits");
            carry = total >> 32;
        }
        let mut rest = 0;
        for word in &mut term {
            let value = rest << 32 | u64::from(*word);
            *word = u32::try_from(value / divisor).expect("less than before");
            rest = value % divisor;
        }
        if term.iter().all(|word| *word == 0) {
            return sum;
        }
    }
    unreachable!("the terms come to zero");
}

#[test]
fn the_primes_are_those_of_the_formula() {
    // p = 2^b - 2^(b-64) + (floor(2^(b-130) e) + x) 2^64 - 1 (RFC 7919, appendix A).
    for (group, x) in REAL.into_iter().zip([560_316_u64, 2_625_351, 5_736_041]) {
        let bits = u32::try_from(group.bytes() * 8).expect("short");
        let words = group.bytes() / 4;
        let digits: Vec<u8> = e_words(words)
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect();
        let e = BoxedUint::from_be_slice(&digits, bits + 64).expect("as long as that");
        // There are 32 + bits bits of fraction; those after the 130 - b-th are removed.
        let e = e.wrapping_shr_vartime(32 + bits - (bits - 130));
        let number = |value: u64| BoxedUint::from(value).resize(bits + 64);
        let middle = e.wrapping_add(number(x)).wrapping_shl_vartime(64);
        let one = number(1);
        let p = one.wrapping_shl_vartime(bits);
        let p = p.wrapping_sub(one.wrapping_shl_vartime(bits - 64));
        let p = p.wrapping_add(&middle).wrapping_sub(&one);
        let ours = modulus(group).expect("a group").modulus().as_ref().clone();
        assert_eq!(p, ours.resize(bits + 64), "{group:?}");
    }
}

/// SHA-256 of 2^x mod p and of (2^y)^x mod p, each as long as p. The exponents are x = 01 02 03 ...
/// and y = 65 66 67 ..., each with the length of an exponent. In Python:
/// `hashlib.sha256(pow(pow(2, y, p), x, p).to_bytes(b // 8, 'big'))`.
const VECTORS: [(&str, &str); 3] = [
    (
        "53b37a098c5882b9f56495d787706d354ac8ebc273e680a7047c70228ce24ad3",
        "a85e4e22b45f65ac6f13b6023d09a5013f8fcd0d68682577dffa25e6be8e82eb",
    ),
    (
        "38915af78eca68d5d294448119985964195c8924442e6636acfe2e5a2cfa32bc",
        "6b24b35e1fe2410e9c60a2331c06cf0028601cfbef34a0a0cd956cb577d623d5",
    ),
    (
        "863b6f6eda7e7b9a65a1589bd51e601ce3ea81edc82888c30a13b2cd3ae90298",
        "47ea2d0eb8258582b4d67fa50f3a4e35d78d8458d9bd438c7da739cff0b5c679",
    ),
];

fn counting(group: Group, from: u8) -> Private {
    let exponent = (from..).take(exponent_bytes(group)).collect();
    let exponent = Zeroizing::new(exponent);
    Private { group, exponent }
}

#[test]
fn powers_match_another_implementation() {
    let reactor = forebay_io::Reactor::new(forebay_io::Engine::Threads).expect("a reactor");
    reactor.run(async {
        for (group, (public, shared)) in REAL.into_iter().zip(VECTORS) {
            let (x, y) = (counting(group, 1), counting(group, 101));
            let mine = x.public().await.expect("a thread");
            assert_eq!(mine.len(), group.bytes());
            assert_eq!(hex(&Sha256::digest(&*mine)), public, "{group:?}");
            let theirs = y.public().await.expect("a thread");
            let both = x.shared(&theirs).await.expect("a value").expect("a group");
            assert_eq!(hex(&Sha256::digest(&*both)), shared, "{group:?}");
            let same = y.shared(&mine).await.expect("a value").expect("a group");
            assert_eq!(*both, *same);
        }
    });
}

#[test]
fn values_with_trivial_powers_are_refused() {
    let reactor = forebay_io::Reactor::new(forebay_io::Engine::Threads).expect("a reactor");
    reactor.run(async {
        for group in REAL {
            let private = Private::draw(group);
            let prime = modulus(group)
                .expect("a group")
                .modulus()
                .as_ref()
                .to_be_bytes();
            let mut last = prime.to_vec();
            *last.last_mut().expect("many") -= 1;
            let mut two = vec![0; group.bytes()];
            two[group.bytes() - 1] = 2;
            let mut one = vec![0; group.bytes()];
            one[group.bytes() - 1] = 1;
            let above = vec![0xff; group.bytes()];
            let nothing = vec![0; group.bytes()];
            for bad in [
                &last,
                &one,
                &nothing,
                &above,
                &prime.to_vec(),
                &two[1..].to_vec(),
                &vec![],
            ] {
                let refused = private.shared(bad).await.expect_err("a bad value");
                assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            }
            assert!(private.shared(&two).await.is_ok());
            let (one, other) = (Private::draw(group), Private::draw(group));
            assert_ne!(*one.exponent, *other.exponent);
        }
        let none = Private::draw(Group::Null);
        assert_eq!(none.public().await.expect("nothing"), Zeroizing::default());
        assert_eq!(none.shared(&[]).await.expect("nothing"), None);
        assert!(none.shared(&[1]).await.is_err());
    });
}
