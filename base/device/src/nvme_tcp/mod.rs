//! A namespace of an NVMe/TCP target as a block device. This is the initiator's side of the
//! protocol in [`forebay_wire::nvme_tcp`].
//!
//! The device has one admin queue and one I/O queue, on the reactor that it was connected on. One
//! send carries all commands that were queued while the previous send ran. The data of a write
//! travels in the command's capsule if the target accepts it there. Otherwise it follows the
//! target's R2T. The data of a read is received directly into the caller's buffer.
//!
//! Each queue authenticates this host if the target asks for it ([`Uri::secrets`]).
//!
//! **A lost association is reestablished**, until the device is dropped. An association is lost
//! when a connection breaks or the target breaks the protocol. It is also lost when a command or a
//! keep-alive is not answered within its time ([`Times`]). Commands without an answer are sent
//! again. Requests that arrive meanwhile are queued.
//!
//! - **No write lands late.** If a command without an answer changes the namespace, the device
//!   waits before it reconnects: twice the keep-alive time after the loss. By then the target must
//!   have ended the old association. Commands in flight at once have no order among each other. So
//!   no other order is preserved: a caller that needs an order waits for the answer.
//! - **Unflushed changes are sent again**, because a target with a volatile cache may have lost
//!   power. The device copies each change that was acknowledged since the last flush,
//!   and sends the newest data of each byte before any other command. Some changes cannot be sent
//!   again: there was no room for a copy, or the write had failed. Then one flush fails and names
//!   the bytes: either all flushes that wait, or the first one after the loss. A cache then writes
//!   back those bytes again, and a client learns of the loss.
//! - **Away**: if the target does not return within [`Times::patience`], all queued and new
//!   requests fail with `Unreachable`. The device keeps trying.
//! - **Repeated losses**: a request that was in flight at five losses in a row fails, since it may
//!   be the reason for them.
//! - **Another namespace** at the same address is never written to, nor one that has shrunk or
//!   offers less. All queued and new requests fail at once with an error that says so. The device
//!   keeps trying.
//!
//! The device does not touch the memory of a request after its answer. It gives no answer and sends
//! nothing again before the tasks of the lost connection have ended.

mod associate;
mod authenticate;
mod queue;
mod receive;
mod reconnect;
mod send;
#[cfg(test)]
mod tests;
mod uri;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Completion, DeviceInfo, Request, Result};
use forebay_io::rt;

use crate::remote::limits::RequestLimits;
use crate::remote::{Close, CloseOnDrop, Rules, Session};
use associate::{Offer, associate};
use send::Link;
pub use uri::Uri;

/// Time limits for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Keep-alive timeout of the association, and time limit for the answer to a keep-alive: 5 s.
    pub keep_alive: Duration,
    /// Time limit for the answer to a command, and for an association: 30 s.
    pub answer: Duration,
    /// Time after a loss until queued requests fail: 60 s.
    pub patience: Duration,
    /// Pause before each attempt to reconnect: 1 s.
    pub pause: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            pause: Duration::from_secs(1),
        }
    }
}

/// A connected namespace. It belongs to the reactor that it was connected on.
pub struct NvmeTcpDevice {
    shared: Rc<CloseOnDrop<Shared>>,
    info: DeviceInfo,
}

/// State that the device shares with its tasks.
struct Shared {
    uri: Uri,
    times: Times,
    offer: Offer,
    session: Session,
    /// Current connection, if there is one.
    link: RefCell<Option<Rc<Link>>>,
}

impl NvmeTcpDevice {
    /// Connects to the namespace that `uri` names.
    ///
    /// # Errors
    /// - `Disconnected` if the target does not answer.
    /// - `NotFound` if the subsystem or the namespace does not exist.
    /// - `Permission` if the target does not allow this host, or if the authentication of either
    ///   side fails.
    /// - `Unsupported` if the namespace or the target cannot be used.
    /// - `TimedOut` if the association takes longer than [`Times::answer`].
    ///
    /// # Panics
    /// If this thread runs no reactor.
    pub async fn connect(uri: &Uri) -> Result<Rc<Self>> {
        Self::connect_within(uri, Times::default()).await
    }

    /// Like [`NvmeTcpDevice::connect`], with other time limits.
    ///
    /// # Errors
    /// As for [`NvmeTcpDevice::connect`].
    ///
    /// # Panics
    /// As for [`NvmeTcpDevice::connect`].
    pub async fn connect_within(uri: &Uri, times: Times) -> Result<Rc<Self>> {
        let made = reconnect::associate_in_time(uri, &times).await;
        let association = made.map_err(|error| {
            error.context(format!(
                "NVMe/TCP target {uri}\nhelp: start the target, or name another one"
            ))
        })?;
        let offer = association.offer;
        let block_bytes = 1 << offer.block_shift;
        let name = uri.to_string();
        let info = DeviceInfo {
            logical_block_bytes: block_bytes,
            physical_block_bytes: offer.preferred_bytes,
            // A larger unit of the controller holds only for writes of at most that length.
            atomic_write_bytes: block_bytes,
            volatile_cache: offer.volatile_cache,
            discard: offer.deallocates,
            identity: offer.identity,
            ..DeviceInfo::new(name.clone(), offer.size_bytes)
        };
        let rules = Rules {
            size_bytes: offer.size_bytes,
            volatile_cache: offer.volatile_cache,
            depth: offer.depth,
            patience: times.patience,
            pause: times.pause,
            silence: 2 * offer.keep_alive,
            quarantine: Duration::ZERO,
        };
        let shared = Rc::new(Shared {
            uri: uri.clone(),
            times,
            offer,
            session: Session::new("NVMe/TCP target", name, rules),
            link: RefCell::default(),
        });
        rt::spawn(reconnect::stay_connected(Rc::clone(&shared), association));
        let device = Rc::new(Self {
            shared: Rc::new(CloseOnDrop(Rc::clone(&shared))),
            info,
        });
        // This device has no copies of the changes that an earlier process left unflushed. If the
        // target lost them, a later flush would still succeed, and clients of that process may live
        // on. The flush here covers those changes, or reports that they may be lost.
        if offer.volatile_cache {
            shared.session.judge_first_flush(device.flush().await);
        }
        Ok(device)
    }

    /// Returns whether the namespace is read-only.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.shared.offer.read_only
    }

    /// Returns the number of associations that were lost so far.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.shared.session.losses()
    }

    fn limits(&self) -> RequestLimits {
        let offer = &self.shared.offer;
        let data_bytes = offer.max_bytes.into();
        RequestLimits {
            read_only: offer.read_only,
            data_bytes,
            zeroes_bytes: match offer.write_zeroes {
                true => data_bytes,
                false => 0,
            },
        }
    }
}

impl BlockDevice for NvmeTcpDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let handle = || Self {
            shared: Rc::clone(&self.shared),
            info: self.info.clone(),
        };
        let whole = self.limits().admit(&self.info, request, done, handle);
        if let Some((request, done)) = whole {
            self.shared.submit(request, done);
        }
    }
}

impl std::fmt::Debug for NvmeTcpDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeTcpDevice")
            .field("target", &self.shared.session.name)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn submit(self: &Rc<Self>, request: Request, done: Completion) {
        let connected = self.link.borrow().is_some();
        self.session.submit(request, done, connected);
        self.pump();
    }

    /// Sends queued requests while slots are free.
    fn pump(self: &Rc<Self>) {
        let Some(link) = self.link.borrow().clone() else {
            return;
        };
        let now = rt::now();
        loop {
            let seated = self.session.slots.borrow_mut().assign_slot(now);
            let Some(cid) = seated else { break };
            link.send_command(self, cid);
        }
    }
}

impl Close for Shared {
    fn close(&self) {
        self.session.close();
        if let Some(link) = self.link.borrow().as_ref() {
            link.changed.wake_all();
        }
    }
}
