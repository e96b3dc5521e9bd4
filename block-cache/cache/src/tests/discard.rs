//! Discards and write-zeroes during cleaning.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Op, Request};

use super::*;
use crate::failpoints::{Fault, plant};

/// A backing device that keeps writes until they are let go.
struct Slow {
    device: SimDisk,
    holds: Cell<bool>,
    held: RefCell<Vec<(Request, Completion)>>,
}

impl BlockDevice for Slow {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if self.holds.get() && matches!(request.op, Op::Write { .. }) {
            self.held.borrow_mut().push((request, done));
        } else {
            self.device.submit(request, done);
        }
    }
}

/// Returns the final content, on the backing device, of a block that was zeroed while it was
/// written back.
fn left_with(fault: Option<Fault>) -> u8 {
    run(&world(11, 2 << 20, 512), async move |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let backing = Rc::new(Slow {
            device: disks[1].clone(),
            holds: Cell::new(true),
            held: RefCell::default(),
        });
        let options = VolumeOptions::new(Mode::WriteBack);
        let device = Rc::clone(&backing) as Rc<dyn BlockDevice>;
        let volume = cache.attach("v", device, options).await.expect("attaches");
        cache.set_cleaning(Cleaning::Nop);
        let data = Buf::copied(&[3; 4096]);
        volume.write(0, data).await.expect("writes");
        volume.flush().await.expect("flushes");
        cache.set_cleaning(Cleaning::Acp);
        while backing.held.borrow().is_empty() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        plant(fault);
        volume.write_zeroes(0, 4096).await.expect("zeroes");
        assert_eq!(disks[1].peek(0, 1), [0], "they do not wait for the cleaner");
        backing.holds.set(false);
        for (request, done) in backing.held.take() {
            backing.device.submit(request, done);
        }
        while cache.stats().dirty_blocks > 0 {
            rt::sleep(Duration::from_millis(10)).await;
        }
        plant(None);
        let found = Buf::zeroed(4096);
        volume.read(0, found.clone()).await.expect("reads");
        assert_eq!(found.to_vec(), [0; 4096]);
        cache.close().await.expect("closes");
        disks[1].peek(0, 1)[0]
    })
}

#[test]
fn zeroes_overtaken_by_a_write_back_are_rewritten() {
    assert_eq!(left_with(None), 0);
    assert_eq!(
        left_with(Some(Fault::ForgetDiscard)),
        3,
        "it is found missing"
    );
}
