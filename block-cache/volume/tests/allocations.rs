//! A request through a volume allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, Request};
use forebay_io::rt;
use forebay_volume::{Volume, record};

struct Counting;

thread_local! {
    /// Counted for this thread only: the harness has its own, which may allocate at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Completes at once, or at the reactor's next turn.
struct Nothing {
    later: bool,
}

impl BlockDevice for Nothing {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("nothing", 1 << 30)
    }

    fn submit(&self, _request: Request, done: Completion) {
        if self.later {
            rt::spawn(async move { done.complete(Ok(())) });
        } else {
            done.complete(Ok(()));
        }
    }
}

#[test]
fn requests_allocate_nothing() {
    for (later, recorded) in [(false, false), (true, false), (false, true), (true, true)] {
        let allocated = rt::block_on_simulated(1, async move {
            let volume = Volume::new("v", Rc::new(Nothing { later }), false);
            let (recorder, _drain) = record::ring(256);
            volume.record(recorded.then(|| (Rc::new(recorder), 0)));
            let device = volume.handle().open();
            let buf = Buf::zeroed(4096);
            let round = async |count: u64| {
                for at in 0..count {
                    device.read(at * 4096, buf.clone()).await.expect("a read");
                    device.write(at * 4096, buf.clone()).await.expect("a write");
                }
            };
            round(100).await;
            let before = ALLOCATIONS.get();
            round(1000).await;
            ALLOCATIONS.get() - before
        });
        assert_eq!(
            allocated, 0,
            "completing later: {later}, recorded: {recorded}"
        );
    }
}
