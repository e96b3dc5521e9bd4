//! Queries for the allocation of a volume.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    Allocation, BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, ErrorKind, Extents,
    ExtentsFuture, Request,
};
use forebay_io::rt;

use crate::Volume;

/// A device of zeroes, which answers after a time, or with an error.
#[derive(Default)]
struct Zeroes {
    answers_after: Cell<Duration>,
    fails: Cell<bool>,
    /// Requests that never end.
    held: Cell<Vec<Completion>>,
}

impl BlockDevice for Zeroes {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("zeroes", 1 << 20)
    }

    fn submit(&self, _: Request, done: Completion) {
        let mut held = self.held.take();
        held.push(done);
        self.held.set(held);
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        Box::pin(async move {
            rt::sleep(self.answers_after.get()).await;
            if self.fails.get() {
                return Err(ErrorKind::Io.into());
            }
            let mut hole = Extents::default();
            hole.push(range, Allocation::Hole);
            Ok(hole)
        })
    }
}

#[test]
fn a_device_that_fails_or_is_slow_has_data() {
    rt::block_on_simulated(1, async {
        let device = Rc::new(Zeroes::default());
        let volume = Volume::new("v", device.clone(), false);
        let opened = volume.handle().open();
        let is_hole = async |range: Range<u64>| {
            let found = opened.extents(range.clone()).await.expect("an answer");
            assert_eq!(found.end(), Some(range.end));
            found != Extents::data(range)
        };
        assert!(is_hole(0..1 << 20).await);
        device.fails.set(true);
        assert!(!is_hole(0..4096).await);
        device.fails.set(false);
        volume.time_out(Duration::from_secs(4));
        device.answers_after.set(Duration::from_secs(3));
        assert!(is_hole(0..4096).await);
        device.answers_after.set(Duration::from_secs(5));
        assert!(!is_hole(0..4096).await);
        device.answers_after.set(Duration::ZERO);
        let late = opened.write(8192, Buf::zeroed(4096)).await;
        assert_eq!(late.expect_err("late").kind(), ErrorKind::TimedOut);
        // The write may still arrive.
        assert!(!is_hole(4096..12288).await);
        assert!(is_hole(0..8192).await);
        for (wrong, kind) in [
            (0..0, ErrorKind::InvalidInput),
            (1..513, ErrorKind::InvalidInput),
            (512..(1 << 20) + 512, ErrorKind::OutOfRange),
        ] {
            let refused = opened.extents(wrong).await.expect_err("refused");
            assert_eq!(refused.kind(), kind);
        }
        for done in device.held.take() {
            done.complete(Ok(()));
        }
        rt::sleep(Duration::from_secs(1)).await;
        assert!(is_hole(4096..12288).await, "the write has ended");
        volume.drain().await;
        let refused = opened.extents(0..4096).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
    });
}
