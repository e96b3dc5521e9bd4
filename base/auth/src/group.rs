//! Diffie-Hellman in the groups of RFC 7919. Powers are computed in constant time on a separate
//! thread: the largest group takes a few milliseconds, which a reactor must not spend.
//!
//! A queue computes one power at a time and waits for it, so there are at most as many jobs as
//! connections. A connection that closes meanwhile counts until its job is done.

use std::sync::{OnceLock, mpsc};

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use forebay_block::{Error, ErrorKind, Result};
use forebay_io::answer::Answer;
use forebay_wire::nvme::auth::Group;
use zeroize::Zeroizing;

/// The primes (RFC 7919, appendix A), most significant digit first; the generator of each group is
/// 2.
const FFDHE_2048: &str = "\
     FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE\
     249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3\
     B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182\
     B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70\
     9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC\
     2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF";
const FFDHE_3072: &str = "\
     FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE\
     249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3\
     B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182\
     B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70\
     9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC\
     2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C0238\
     61B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91CAEFE130985139270B4130C93BC437944F4FD4452\
     E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E\
     0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B66C62E37FFFFFFFFFFFFFFFF";
const FFDHE_4096: &str = "\
     FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE\
     249B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3\
     B557135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182\
     B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D70\
     9E02FCE1CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC\
     2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C0238\
     61B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91CAEFE130985139270B4130C93BC437944F4FD4452\
     E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E\
     0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B669E1EF16E6F52C3164DF4FB7930E9E4E58857B6AC7D5F42\
     D69F6D187763CF1D5503400487F55BA57E31CC7A7135C886EFB4318AED6A1E012D9E6832A907600A918130C4\
     6DC778F971AD0038092999A333CB8B7A1A1DB93D7140003C2A4ECEA9F98D0ACC0A8291CDCEC97DCF8EC9B55A\
     7F88A46B4DB5A851F44182E1C68A007E5E655F6AFFFFFFFFFFFFFFFF";

/// Length of a private exponent: at least twice the strength of the group according to RFC 7919
/// (5.2), in whole words, bytes.
const fn exponent_bytes(group: Group) -> usize {
    match group {
        Group::Null => 0,
        Group::Ffdhe2048 => 32,
        Group::Ffdhe3072 => 40,
        Group::Ffdhe4096 => 48,
    }
}

/// Returns the prime of a group with its precomputed parameters, or `None` for the null group.
fn modulus(group: Group) -> Option<&'static BoxedMontyParams> {
    static ALL: [OnceLock<BoxedMontyParams>; 3] = [const { OnceLock::new() }; 3];
    let (place, hex) = match group {
        Group::Null => return None,
        Group::Ffdhe2048 => (&ALL[0], FFDHE_2048),
        Group::Ffdhe3072 => (&ALL[1], FFDHE_3072),
        Group::Ffdhe4096 => (&ALL[2], FFDHE_4096),
    };
    Some(place.get_or_init(|| {
        let bits = u32::try_from(group.bytes() * 8).expect("at most 4096");
        let prime = BoxedUint::from_be_hex(hex, bits).expect("hexadecimal digits");
        BoxedMontyParams::new_vartime(Odd::new(prime).expect("a prime is odd"))
    }))
}

/// A private exponent, wiped on drop.
pub struct Private {
    group: Group,
    exponent: Zeroizing<Vec<u8>>,
}

impl Private {
    /// Draws a random exponent.
    #[must_use]
    pub fn draw(group: Group) -> Self {
        let mut exponent = Zeroizing::new(vec![0; exponent_bytes(group)]);
        forebay_io::system::random(&mut exponent);
        Self { group, exponent }
    }

    /// Returns its group.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// Returns the public value; empty for the null group.
    ///
    /// # Errors
    /// `Io` if there is no thread to compute it.
    pub async fn public(&self) -> Result<Zeroizing<Vec<u8>>> {
        let mut generator = vec![0; self.group.bytes()];
        generator
            .last_mut()
            .map(|last| *last = 2)
            .unwrap_or_default();
        self.power(generator).await
    }

    /// Returns the shared secret of this and the other side's public value; `None` for the null
    /// group.
    ///
    /// # Errors
    /// `InvalidInput` if the value has the wrong length, or trivial powers. `Io` if there is no
    /// thread to compute it.
    pub async fn shared(&self, public: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>> {
        let weak = || Error::new(ErrorKind::InvalidInput, "an invalid public value");
        if public.len() != self.group.bytes() {
            return Err(weak());
        }
        let Some(modulus) = modulus(self.group) else {
            return Ok(None);
        };
        let bits = modulus.bits_precision();
        let value = BoxedUint::from_be_slice(public, bits).map_err(|_| weak())?;
        let one = BoxedUint::one_with_precision(bits);
        let last = modulus.modulus().as_ref().wrapping_sub(&one);
        if value <= one || value >= last {
            return Err(weak());
        }
        self.power(public.to_vec()).await.map(Some)
    }

    async fn power(&self, base: Vec<u8>) -> Result<Zeroizing<Vec<u8>>> {
        let Some(modulus) = modulus(self.group) else {
            return Ok(Zeroizing::default());
        };
        let answer = Answer::default();
        let given = answer.clone();
        let exponent = self.exponent.clone();
        on_thread(Box::new(move || {
            given.give(power(modulus, &base, &exponent))
        }))?;
        Ok(answer.get().await)
    }
}

/// Returns `base` to the power of `exponent`, with the length of the prime.
fn power(modulus: &BoxedMontyParams, base: &[u8], exponent: &[u8]) -> Zeroizing<Vec<u8>> {
    let bits = modulus.bits_precision();
    let number = |bytes, bits| BoxedUint::from_be_slice(bytes, bits).expect("as long as it may be");
    let exponent_bits = u32::try_from(exponent.len() * 8).expect("short");
    let exponent = Zeroizing::new(number(exponent, exponent_bits));
    let form = BoxedMontyForm::new(number(base, bits), modulus);
    let power = Zeroizing::new(form.pow_bounded_exp(&exponent, exponent_bits).retrieve());
    Zeroizing::new(power.to_be_bytes().into_vec())
}

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Private")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Passes a job to the thread, which the first job starts.
fn on_thread(job: Job) -> Result<()> {
    static THREAD: OnceLock<Option<mpsc::Sender<Job>>> = OnceLock::new();
    let sender = THREAD.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        let run = move || jobs.into_iter().for_each(|job| job());
        let thread = std::thread::Builder::new().name("auth".into()).spawn(run);
        thread.is_ok().then_some(sender)
    });
    let taken = sender
        .as_ref()
        .is_some_and(|sender| sender.send(job).is_ok());
    let dead = || {
        Error::new(
            ErrorKind::Io,
            "the thread that computes for authentication could not be started",
        )
    };
    taken.then_some(()).ok_or_else(dead)
}

#[cfg(test)]
mod tests;
