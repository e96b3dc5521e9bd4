//! A part of an image in memory as a block device.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Op, Request, Result};

/// Contents of a medium.
pub(crate) type Image = Rc<RefCell<Vec<u8>>>;

/// A part of an image with the properties that the guest's kernel reported: 512-byte blocks, a
/// volatile cache, FUA.
#[derive(Debug)]
pub(crate) struct Window {
    image: Image,
    start: usize,
    info: DeviceInfo,
}

impl Window {
    /// Creates a device over the bytes of `range`.
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are shared as trait objects"
    )]
    pub(crate) fn new(name: &str, image: &Image, range: Range<usize>) -> Rc<dyn BlockDevice> {
        Rc::new(Self {
            image: Rc::clone(image),
            start: range.start,
            info: DeviceInfo::new(name, range.len() as u64),
        })
    }

    fn run(&self, request: &Request) -> Result<()> {
        self.info.check(request)?;
        let mut image = self.image.borrow_mut();
        let bytes = &mut image[self.start + request.offset as usize..][..request.len as usize];
        match request.op {
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes { .. } => bytes.fill(0),
            Op::Read | Op::Write { .. } => {
                let buf = request.buf.as_ref().ok_or(ErrorKind::InvalidInput)?;
                if request.op == Op::Read {
                    buf.copy_from(0, bytes);
                } else {
                    buf.copy_to(0, bytes);
                }
            }
        }
        Ok(())
    }
}

impl BlockDevice for Window {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        done.complete(self.run(&request));
    }
}
