//! Prints the overhead of a volume for a request on its own reactor, ns.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Instant;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, Request};
use forebay_io::rt::Executor;
use forebay_volume::Volume;

struct Nothing;

impl BlockDevice for Nothing {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("nothing", 1 << 30)
    }

    fn submit(&self, request: Request, done: Completion) {
        black_box(request);
        done.complete(Ok(()));
    }
}

fn main() {
    const ROUNDS: u64 = 5_000_000;
    let executor = Executor::new(|| ());
    let _entered = executor.enter();
    let bare: Rc<dyn BlockDevice> = Rc::new(Nothing);
    let volume = Volume::new("v", Rc::clone(&bare), false);
    let wrapped = volume.handle().open();
    let buf = Buf::zeroed(4096);
    let time = |device: &Rc<dyn BlockDevice>| {
        let started = Instant::now();
        for at in 0..ROUNDS {
            drop(black_box(device.read((at & 0xffff) * 4096, buf.clone())));
        }
        started.elapsed().as_nanos() as f64 / ROUNDS as f64
    };
    for _ in 0..3 {
        let (bare, wrapped) = (time(&bare), time(&wrapped));
        println!(
            "bare {bare:.1} ns, through a volume {wrapped:.1} ns, added {:.1} ns",
            wrapped - bare
        );
    }
}
