//! Backing device of a volume served without its cache. Each written range is logged first.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use forebay_block::{
    BlockDevice, Completion, Context as _, DeviceInfo, Error, ErrorKind, ExtentsFuture, Op,
    Request, Result,
};
use forebay_io::rt;
use tokio::sync::oneshot;

use super::ranges::{RANGE_BYTES, RangeLog};
use super::refusals::Refusals;

/// Ranges to log, and the sender that reports when they are durable.
type Wanted = (Vec<u64>, oneshot::Sender<Result<()>>);

/// Device that logs the first write to each range before it passes the write on. A separate thread
/// writes the log, so that the reactor never waits for a file system.
pub struct LoggedDevice {
    inner: Rc<dyn BlockDevice>,
    /// Offset that the log has for the first byte of `inner`. It is negative if `inner` begins
    /// before the device of the logged volume.
    position: i128,
    known: Rc<RefCell<HashSet<u64>>>,
    log: mpsc::Sender<Wanted>,
    volume: Rc<str>,
    refusals: Arc<Refusals>,
}

impl LoggedDevice {
    /// Returns a device that logs writes to `inner` in `log`. The log has the first byte of `inner`
    /// at `position`, bytes. Ranges that the log has already are not logged twice. `refusals` has
    /// the reason if `volume` refuses a write for lack of a log.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn wrap(
        inner: Rc<dyn BlockDevice>,
        position: i128,
        mut log: RangeLog,
        volume: &str,
        refusals: &Arc<Refusals>,
    ) -> Result<Rc<dyn BlockDevice>> {
        let known = Rc::new(RefCell::new(log.known()));
        let (send, wanted) = mpsc::channel::<Wanted>();
        std::thread::Builder::new()
            .name("ranges".into())
            .spawn(move || {
                while let Ok((numbers, sender)) = wanted.recv() {
                    // The receiver may be gone; the log keeps the ranges.
                    let _ = sender.send(log.add(&numbers));
                }
            })
            .context(|| "cannot start the thread that logs writes without the cache")?;
        Ok(Rc::new(Self {
            inner,
            position,
            known,
            log: send,
            volume: volume.into(),
            refusals: Arc::clone(refusals),
        }))
    }

    /// Returns the ranges of the log that a write request touches.
    fn ranges(position: i128, request: &Request) -> RangeInclusive<u64> {
        let nothing = RangeInclusive::new(1, 0);
        if matches!(request.op, Op::Read | Op::Flush) || request.len == 0 {
            return nothing;
        }
        let first = i128::from(request.offset) + position;
        let last = first + i128::from(request.len - 1);
        if last < 0 {
            return nothing;
        }
        let number = |offset: i128| u64::try_from(offset).unwrap_or(u64::MAX) / RANGE_BYTES;
        number(first.max(0))..=number(last)
    }
}

impl BlockDevice for LoggedDevice {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        self.inner.extents(range)
    }

    fn submit(&self, request: Request, done: Completion) {
        let ranges = Self::ranges(self.position, &request);
        let known = self.known.borrow();
        if ranges.clone().all(|number| known.contains(&number)) {
            drop(known);
            self.inner.submit(request, done);
            return;
        }
        // An invalid request changes no data and would only lengthen the log.
        if let Err(error) = self.inner.info().check(&request) {
            drop(known);
            done.complete(Err(error));
            return;
        }
        let numbers: Vec<_> = ranges.filter(|number| !known.contains(number)).collect();
        drop(known);
        let (sender, receiver) = oneshot::channel();
        let sent = self.log.send((numbers.clone(), sender));
        let (inner, known) = (Rc::clone(&self.inner), Rc::clone(&self.known));
        let (volume, refusals) = (Rc::clone(&self.volume), Arc::clone(&self.refusals));
        rt::spawn(async move {
            let logged = match sent {
                Ok(()) => receiver.await.unwrap_or_else(|_| Err(log_ended())),
                Err(_) => Err(log_ended()),
            };
            refusals.note(&volume, &logged);
            match logged {
                Ok(()) => {
                    known.borrow_mut().extend(numbers);
                    inner.submit(request, done);
                }
                Err(error) => done.complete(Err(error)),
            }
        });
    }
}

fn log_ended() -> Error {
    Error::new(
        ErrorKind::Io,
        "the log of writes without the cache has ended\nhelp: restart the daemon",
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::state::read_ranges;
    use forebay_block::{BlockDeviceExt as _, Buf};
    use forebay_device::mem::MemDevice;
    use forebay_io::{Engine, Reactor};

    /// Device that checks the order: the log has the ranges of a write when the write arrives.
    struct Minding {
        inner: Rc<dyn BlockDevice>,
        log: PathBuf,
    }

    impl BlockDevice for Minding {
        fn info(&self) -> DeviceInfo {
            self.inner.info()
        }

        fn submit(&self, request: Request, done: Completion) {
            let logged = read_ranges(&self.log).expect("there").expect("whole");
            for number in LoggedDevice::ranges(0, &request) {
                let at = number * RANGE_BYTES;
                assert!(
                    logged.iter().any(|range| range.contains(&at)),
                    "{request:?}"
                );
            }
            self.inner.submit(request, done);
        }
    }

    #[test]
    fn a_write_is_in_the_log_before_it_is_passed_on() {
        let path = std::env::temp_dir().join(format!("fb-logged-{}.ranges", std::process::id()));
        let log = path.clone();
        let reactor = Reactor::new(Engine::Threads).expect("threads work everywhere");
        reactor.run(async move {
            let inner = MemDevice::new("m", 16 << 20);
            let begun = RangeLog::open(&log, true).expect("a log");
            let minding = Rc::new(Minding {
                inner: Rc::clone(&inner),
                log: log.clone(),
            });
            let device =
                LoggedDevice::wrap(minding, 0, begun, "v", &Arc::default()).expect("a thread");
            let data = Buf::copied(&[9; 4096]);
            device
                .read(0, Buf::scratch(4096))
                .await
                .expect("reads need no log");
            assert_eq!(read_ranges(&log).expect("there"), Some(vec![]));
            let straddling = 2 * RANGE_BYTES - 2048;
            device.write(straddling, data).await.expect("written");
            let logged = read_ranges(&log).expect("there");
            assert_eq!(
                logged.as_deref(),
                Some(std::slice::from_ref(&(RANGE_BYTES..3 * RANGE_BYTES)))
            );
            device.write_zeroes(0, 4096).await.expect("zeroed");
            device.discard(5 << 20, 4096).await.expect("discarded");
            assert!(
                device
                    .write(u64::MAX - 4095, Buf::zeroed(4096))
                    .await
                    .is_err()
            );
            let logged = read_ranges(&log).expect("there");
            let mib = RANGE_BYTES;
            assert_eq!(logged, Some(vec![0..3 * mib, 5 * mib..6 * mib]));
            let back = Buf::scratch(4096);
            inner.read(straddling, back.clone()).await.expect("read");
            assert_eq!(back.to_vec(), [9; 4096]);
        });
        std::fs::remove_file(&path).expect("it was there");
    }
}
