//! Interface to a ublk driver, and the kernel's. The tests have another one.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_block::{Buf, Context as _, Error, ErrorKind, Result};
use forebay_io::passthrough::{CommandDevice, Controller, View};
use forebay_wire::ublk::{self, Control, DESCRIPTOR_BYTES, IO_BYTES};

/// A ublk driver.
pub(super) trait Driver: Clone + Send + Sync + 'static {
    /// A device that is served.
    type Node: Node;
    /// Exclusive claim on a block device.
    type Claim;

    /// Executes a control command with `data`, which the driver reads and writes. Returns the
    /// result, which may be a negated error number, and the data. Blocks, at most for `patience`.
    fn control(
        &self,
        number: u32,
        device: u32,
        argument: u64,
        data: Vec<u8>,
        patience: Duration,
    ) -> Result<(i32, Vec<u8>)>;

    /// Checks whether queues can be served on the calling reactor.
    fn check_reactor() -> Result<()>;

    /// Opens a device to serve it.
    fn open(&self, device: u32) -> Result<Self::Node>;

    /// Writes out all data that was written to the block device without a flush, and claims the
    /// device. Returns `None` if it is in use: by a mounted file system, a mapping or swap space.
    fn claim(&self, device: u32) -> Result<Option<Self::Claim>>;

    /// Returns whether a process exists and has not ended.
    fn is_running(&self, process: i32) -> bool;
}

/// A device that is served.
pub(super) trait Node: Send + Sized + 'static {
    /// A queue of the device.
    type Port: Port;

    /// Duplicates the node for another queue.
    fn duplicate(&self) -> Result<Self>;

    /// Opens one of the queues, on the calling reactor.
    fn port(self, queue: u16, depth: u16) -> Result<Self::Port>;
}

/// A queue that is served.
pub(super) trait Port: 'static {
    /// Submits a command to the driver and resolves to its result.
    fn command(&self, number: u32, argument: [u8; IO_BYTES]) -> impl Future<Output = i32>;

    /// Returns the request of a tag.
    fn descriptor(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES];

    /// Copies the data of a tag's write request into `buf`.
    fn copy_from_driver(&self, tag: u16, buf: &Buf) -> Result<()>;

    /// Copies the data of a tag's read request from `buf`.
    fn copy_to_driver(&self, tag: u16, buf: &Buf) -> Result<()>;
}

/// The kernel's driver. It executes control commands one at a time.
#[derive(Clone)]
pub(super) struct KernelDriver(Arc<Mutex<Controller>>);

/// Path for control commands.
const CONTROL: &str = "/dev/ublk-control";

impl KernelDriver {
    /// Opens the driver.
    ///
    /// # Errors
    /// `NotFound` without the driver, `Permission` without the right to use it.
    pub(super) fn new() -> Result<Self> {
        let controller = Controller::open(Path::new(CONTROL)).context(|| {
            format!(
                "{CONTROL}\n\
                 help: run as root, on Linux 6.5 or later, with the module ublk_drv (`modprobe \
                 ublk_drv`)"
            )
        })?;
        Ok(Self(Arc::new(Mutex::new(controller))))
    }
}

/// Returns the path of a block device.
fn block_path(device: u32) -> String {
    super::path(device).display().to_string()
}

impl Driver for KernelDriver {
    type Node = KernelNode;
    type Claim = File;

    fn control(
        &self,
        number: u32,
        device: u32,
        argument: u64,
        data: Vec<u8>,
        patience: Duration,
    ) -> Result<(i32, Vec<u8>)> {
        let mut controller = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let len = u16::try_from(data.len()).map_err(io::Error::other)?;
        let outcome = controller.command(number, data, patience, |address| {
            let command = Control {
                device,
                address,
                len,
                data: argument,
            };
            command.encode()
        });
        outcome.context(|| CONTROL.to_owned())
    }

    fn check_reactor() -> Result<()> {
        CommandDevice::check_reactor()
    }

    fn open(&self, device: u32) -> Result<KernelNode> {
        let path = format!("/dev/ublkc{device}");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.context(|| path)?;
        Ok(KernelNode(file.into()))
    }

    fn claim(&self, device: u32) -> Result<Option<File>> {
        let path = block_path(device);
        let mut options = OpenOptions::new();
        let file = match options.read(true).custom_flags(libc::O_EXCL).open(&path) {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(None),
            Err(error) => return Err(error).context(|| path),
        };
        file.sync_all().context(|| path)?;
        Ok(Some(file))
    }

    fn is_running(&self, process: i32) -> bool {
        // A process that ended and was not reaped still exists, as a zombie.
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        let state = stat.ok().and_then(|stat| {
            // The name of the program may contain blanks and parentheses.
            let (_, fields) = stat.rsplit_once(')')?;
            fields.trim_start().chars().next()
        });
        state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
    }
}

/// A device of the kernel's driver.
pub(super) struct KernelNode(OwnedFd);

impl Node for KernelNode {
    type Port = KernelPort;

    fn duplicate(&self) -> Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    fn port(self, queue: u16, depth: u16) -> Result<KernelPort> {
        let device = CommandDevice::adopt(self.0)?;
        let len = usize::from(depth) * DESCRIPTOR_BYTES;
        let descriptors = device.map(ublk::descriptors_offset(queue), len)?;
        Ok(KernelPort {
            queue,
            device,
            descriptors,
        })
    }
}

/// A queue of such a device, on this reactor.
pub(super) struct KernelPort {
    queue: u16,
    device: CommandDevice,
    /// Requests by tag, in memory that the driver writes.
    descriptors: View,
}

impl Port for KernelPort {
    fn command(&self, number: u32, argument: [u8; IO_BYTES]) -> impl Future<Output = i32> {
        self.device.command(number, argument)
    }

    fn descriptor(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        self.descriptors.read(usize::from(tag) * DESCRIPTOR_BYTES)
    }

    fn copy_from_driver(&self, tag: u16, buf: &Buf) -> Result<()> {
        self.device.read_at(ublk::data_offset(self.queue, tag), buf)
    }

    fn copy_to_driver(&self, tag: u16, buf: &Buf) -> Result<()> {
        self.device
            .write_at(ublk::data_offset(self.queue, tag), buf)
    }
}

/// Returns the error of a control command with a negative result. `action` is what it was to do.
pub(super) fn refusal(result: i32, action: &str) -> Error {
    let error = io::Error::from_raw_os_error(-result);
    let kind = match -result {
        libc::EPERM | libc::EACCES => ErrorKind::Permission,
        libc::EEXIST | libc::EBUSY => ErrorKind::Busy,
        libc::ENODEV => ErrorKind::NotFound,
        libc::EOPNOTSUPP => ErrorKind::Unsupported,
        libc::EINVAL => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, format!("the driver refused {action}"), error)
}
