//! Properties of the initiator that hold for any target.
//!
//! All requests end in time. Nothing panics. No memory is touched after its request has ended. The
//! seeded test in this folder and the fuzz target `nvme_device` run it.

#[path = "liar.rs"]
pub(crate) mod liar;

use std::rc::Rc;
use std::time::Duration;

use forebay_auth::Secrets;
use forebay_block::{BlockDevice as _, BlockDeviceExt as _, Buf, Request};
use forebay_device::nvme_tcp::{NvmeTcpDevice, Times, Uri};
use forebay_io::{Reactor, rt};

use liar::{Liar, SIZE_BYTES};

/// Time limit after which a request counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);
const HOST: &str = "nqn.a:host";
const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// Content of memory that must not be written.
const LEFT: u8 = 0x5a;
/// Content of the first writes.
const WRITTEN: u8 = 7;

/// Result of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) lies: usize,
    pub(crate) connected: bool,
    /// Number of requests that succeeded, of [`REQUESTS`].
    pub(crate) succeeded: usize,
}

pub(crate) const REQUESTS: usize = 8;

/// Sends requests to a target that lies as `input` says. The first byte decides whether the target
/// asks for authentication. All conversations share one reactor, so that leftovers of one meet the
/// next. A silent lie takes all of `times`.
///
/// # Panics
/// If a request does not end, or memory is touched that no request owns.
pub(crate) fn any_target(reactor: &Rc<Reactor>, times: Times, input: &[u8]) -> Outcome {
    let (first, script) = input.split_first().unwrap_or((&0, &[]));
    let target = Rc::new(Liar::start(script, first & 1 != 0));
    let uri = format!("nvme-tcp://127.0.0.1:{}/nqn.a:b?host={HOST}", target.port);
    let mut uri: Uri = uri.parse().expect("a URI");
    let secrets = Secrets::parse(&format!("{HOST} {SECRET}")).expect("a line");
    uri.secrets = secrets.of(HOST).cloned();
    reactor.run(async move {
        let outcome = rt::at_most(PATIENCE, converse(&target, &uri, times)).await;
        outcome.expect("all that is asked ends")
    })
}

async fn converse(target: &Liar, uri: &Uri, times: Times) -> Outcome {
    let mut outcome = Outcome::default();
    // Boxed, since a task has no room for the pages of several nested futures.
    let connecting = Box::pin(NvmeTcpDevice::connect_within(uri, times));
    if let Ok(device) = connecting.await {
        outcome.connected = true;
        // The target may lie about its properties, too. The requests follow the reported ones.
        let info = device.info();
        let block = u64::from(info.logical_block_bytes);
        let most = info.size_bytes.min(SIZE_BYTES as u64) / block * block;
        let (short, long) = (block, (100_u64 << 10).next_multiple_of(block).min(most));
        let pattern = |len: u64, byte: u8| {
            let buf = Buf::zeroed(usize::try_from(len).expect("small"));
            buf.fill(byte);
            buf
        };
        let (into, beside) = (pattern(short, LEFT), pattern(long, LEFT));
        let written = [pattern(short, WRITTEN), pattern(long, WRITTEN)];
        // Several requests at once, since an answer may be taken for that of another. From here on
        // they are in flight.
        let first = [
            device.start(Request::write(0, written[0].clone(), true)),
            device.start(Request::read(0, into.clone())),
            device.start(Request::read(0, beside.clone())),
        ];
        let mut done = Vec::with_capacity(REQUESTS);
        for request in first {
            done.push(request.await);
        }
        let memory = [into, beside];
        // The buffers belong to the test: a later write to them was not requested.
        memory.iter().for_each(|buf| buf.fill(LEFT));
        let second = Buf::zeroed(usize::try_from(short).expect("small"));
        done.extend([
            device.write(0, written[1].clone()).await,
            device.discard(0, short).await,
            device.write_zeroes(0, long).await,
            device.flush().await,
            device.read(0, second).await,
        ]);
        outcome.succeeded = done.iter().filter(|done| done.is_ok()).count();
        target.repent();
        let _ = device
            .read(0, Buf::zeroed(usize::try_from(short).expect("small")))
            .await;
        drop(device);
        let unchanged = memory
            .iter()
            .all(|buf| buf.to_vec().iter().all(|byte| *byte == LEFT));
        assert!(
            unchanged,
            "memory of a read was written to after its answer"
        );
        let unchanged = written
            .iter()
            .all(|buf| buf.to_vec().iter().all(|byte| *byte == WRITTEN));
        assert!(unchanged, "memory of a write was written to");
    }
    outcome.lies = target.lies();
    outcome
}
