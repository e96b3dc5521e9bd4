//! A device that keeps what is written to it in memory, over one that is not changed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use forebay_block::{
    BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, Op, Request, Result,
};
use forebay_io::rt;

/// The layer in memory.
pub(super) struct Overlay {
    below: Rc<dyn BlockDevice>,
    info: DeviceInfo,
    /// By number, the logical blocks that were written.
    written: RefCell<HashMap<u64, Box<[u8]>>>,
}

/// A handle to it, which its reads share.
struct Handle(Rc<Overlay>);

impl Overlay {
    pub(super) fn over(below: &Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
        let info = DeviceInfo {
            volatile_cache: false,
            ..below.info()
        };
        Rc::new(Handle(Rc::new(Self {
            below: Rc::clone(below),
            info,
            written: RefCell::default(),
        })))
    }

    fn block_bytes(&self) -> usize {
        self.info.logical_block_bytes as usize
    }

    fn blocks(&self, request: &Request) -> std::ops::Range<u64> {
        let block = u64::from(self.info.logical_block_bytes);
        request.offset / block..(request.offset + request.len) / block
    }

    fn write(&self, request: &Request, bytes: Option<&[u8]>) {
        let len = self.block_bytes();
        let mut written = self.written.borrow_mut();
        for (nth, block) in self.blocks(request).enumerate() {
            let part = match bytes {
                Some(bytes) => bytes[nth * len..(nth + 1) * len].into(),
                None => vec![0; len].into(),
            };
            written.insert(block, part);
        }
    }

    async fn read(&self, request: &Request, buf: &Buf) -> Result<()> {
        self.below.read(request.offset, buf.clone()).await?;
        let written = self.written.borrow();
        for (nth, block) in self.blocks(request).enumerate() {
            if let Some(bytes) = written.get(&block) {
                buf.copy_from(nth * self.block_bytes(), bytes);
            }
        }
        Ok(())
    }
}

impl BlockDevice for Handle {
    fn info(&self) -> DeviceInfo {
        self.0.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let overlay = &self.0;
        if let Err(error) = overlay.info.check(&request) {
            return done.complete(Err(error));
        }
        match (request.op, &request.buf) {
            (Op::Read, Some(buf)) => {
                let (overlay, buf) = (Rc::clone(overlay), buf.clone());
                rt::spawn(async move { done.complete(overlay.read(&request, &buf).await) });
            }
            (Op::Write { .. }, Some(buf)) => {
                overlay.write(&request, Some(&buf.to_vec()));
                done.complete(Ok(()));
            }
            (Op::WriteZeroes { .. } | Op::Discard, _) => {
                overlay.write(&request, None);
                done.complete(Ok(()));
            }
            _ => done.complete(Ok(())),
        }
    }
}
