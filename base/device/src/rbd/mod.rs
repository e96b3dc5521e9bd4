//! An image of a Ceph cluster (RBD) as a block device, through librbd.
//!
//! librbd is loaded when the first image is opened (`api`). A machine without RBD images needs
//! none.
//!
//! **No call of librbd runs on the reactor.** Opening and closing have threads of their own.
//! Requests go to a sender thread, and outcomes return in batches with one wake-up (`port`).
//!
//! **librbd resends**, and this device does not. librbd keeps each request until the cluster has
//! carried it out, through restarts of OSDs and monitors. OSDs recognise a request that they have
//! carried out before, and requests to one object keep their order. So no late copy of a write
//! lands on a newer one, and no resend of the device's own is needed. The device ends no request
//! before librbd does, and the volume above bounds the time of its clients.
//!
//! **A write is durable with its answer.** librbd's cache is off (`rbd_cache`, `rbd_plugins`). The
//! OSDs of an object answer when all of them have the write on their media. So the device has no
//! volatile cache: a flush has nothing to do, and every write is FUA. An image whose own settings
//! turn a cache on is refused.
//!
//! **Bounded waits**: if the cluster has answered no read, or no write, for [`Times::patience`],
//! queued and new requests of that kind fail. Their error says so. Requests that librbd has stay
//! there: a timeout of librbd's own (`rados_osd_op_timeout`) would give up a write that may land
//! later, and is off. The kinds are separate, since a full cluster answers reads (`lane`).
//!
//! **One writer**: the exclusive lock is acquired before the first write (`lock`), and no client
//! gets it by asking. A client that takes it by force puts this one on the cluster's blocklist
//! first. No request of this client is carried out from then on. The device notices by the error of
//! a request, or by the question of a thread that asks every [`Times::keep`]. It then fails all
//! requests until the daemon is restarted, with an error that names the new holder.
//!
//! A snapshot is opened read-only, without a lock.

mod api;
mod cluster;
mod image;
mod lane;
mod lock;
mod open;
mod port;
mod request;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    BlockDevice, Completion, DeviceInfo, Error, ErrorKind, Identity, Op, Request, Result,
};
use forebay_io::rt;
use forebay_io::sync::WaitList;

use crate::remote::limits::RequestLimits;
use crate::remote::slots::Pending;
use crate::remote::{Close, CloseOnDrop};
use crate::uri_parts::hash;
use api::{Api, BLOCKLISTED, NOT_OWNER};
use cluster::failure;
pub use cluster::wait_until_closed;
use lane::Lane;
use open::Opened;
use port::Token;

/// Maximum data in a request, bytes.
const DATA_BYTES: u64 = 32 << 20;
/// Maximum length of a write of zeroes, bytes.
const ZEROES_BYTES: u64 = 64 << 20;
/// Unit in which BlueStore writes without reading, bytes.
const PHYSICAL_BYTES: u32 = 4096;

/// Place of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name of the pool.
    pub pool: String,
    /// Name of the image.
    pub image: String,
    /// Name of a snapshot of the image.
    pub snapshot: Option<String>,
    /// Name of this client in the cluster, without `client.`.
    pub client: String,
    /// The cluster's configuration, which names monitors and keyring.
    pub conf: PathBuf,
}

impl Address {
    /// Returns its name with the configuration of the cluster: another cluster may have the same
    /// names.
    #[must_use]
    pub fn in_cluster(&self) -> String {
        format!("{self} of {}", self.conf.display())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.image)?;
        match &self.snapshot {
            Some(snapshot) => write!(f, "@{snapshot}"),
            None => Ok(()),
        }
    }
}

/// Use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read and written, with its exclusive lock.
    Serve,
    /// It is read, and nothing about it changes: no lock is acquired and no other client is
    /// fenced.
    Look,
}

/// Time limits for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time limit for opening an image, with the wait for its lock: 120 s.
    pub open: Duration,
    /// Wait for the watch of a lock's holder to lapse, 45 s: the cluster's limit is 30 s, and
    /// its clocks are coarse.
    pub lapse: Duration,
    /// Time without an answer until requests fail: 60 s.
    pub patience: Duration,
    /// Pause between two questions for the lock: 5 s.
    pub keep: Duration,
    /// Time limit for finding the client that has taken the lock: 10 s.
    pub successor: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(120),
            lapse: Duration::from_secs(45),
            patience: Duration::from_secs(60),
            keep: Duration::from_secs(5),
            successor: Duration::from_secs(10),
        }
    }
}

/// An open image. It belongs to the reactor that it was opened on.
pub struct RbdDevice {
    shared: Rc<CloseOnDrop<Shared>>,
}

/// State of the exclusive lock.
enum Fence {
    /// This client holds it, or needs none.
    Open,
    /// It is lost, and the new holder is looked for. Requests wait.
    Closing(Vec<Pending>),
    /// It is lost. All requests fail.
    Closed(Error),
}

/// State that the device shares with its tasks.
struct Shared {
    api: &'static Api,
    address: Address,
    access: Access,
    times: Times,
    has_zeroes: bool,
    opened: Opened,
    info: RefCell<DeviceInfo>,
    lanes: [Lane; 2],
    fence: RefCell<Fence>,
    /// Size of the image after it has shrunk, bytes.
    shrunk_to: Cell<Option<u64>>,
    closed: Cell<bool>,
    closing: WaitList,
}

impl RbdDevice {
    /// Opens the image. To serve it, acquires its exclusive lock. Of a snapshot nothing is locked.
    ///
    /// # Errors
    /// - `NotFound` without librbd, and for a configuration, pool, image or snapshot that is
    ///   missing.
    /// - `Busy` if a live client holds the lock.
    /// - `Permission` if the cluster denies access.
    /// - `Unsupported` if the image has no exclusive lock, or settings that this device cannot use.
    /// - `TimedOut` if the cluster does not answer within [`Times::open`].
    ///
    /// # Panics
    /// If this thread runs no reactor.
    pub async fn open(address: &Address, access: Access) -> Result<Rc<Self>> {
        Self::open_with(address, access, Api::load, Times::default()).await
    }

    async fn open_with(
        address: &Address,
        access: Access,
        load: fn() -> Result<&'static Api>,
        times: Times,
    ) -> Result<Rc<Self>> {
        let made = open::open(address, access, load, times).await;
        let made = made.map_err(|error| error.context(format!("RBD image {address}")))?;
        let info = DeviceInfo {
            physical_block_bytes: PHYSICAL_BYTES,
            volatile_cache: false,
            identity: Identity::of(hash(made.identifiers.bytes()).max(1)),
            ..DeviceInfo::new(format!("rbd:{address}"), made.size_bytes / 512 * 512)
        };
        let shared = Rc::new(Shared {
            api: made.api,
            address: address.clone(),
            access,
            times,
            has_zeroes: made.has_zeroes,
            opened: made,
            info: RefCell::new(info),
            lanes: [Lane::new(0), Lane::new(1)],
            fence: RefCell::new(Fence::Open),
            shrunk_to: Cell::new(None),
            closed: Cell::new(false),
            closing: WaitList::new(),
        });
        shared.opened.start(times.keep)?;
        rt::spawn(collect(Rc::clone(&shared)));
        rt::spawn(watch(Rc::clone(&shared)));
        Ok(Rc::new(Self {
            shared: Rc::new(CloseOnDrop(shared)),
        }))
    }

    /// Returns whether it accepts no writes.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.shared.address.snapshot.is_some() || self.shared.access == Access::Look
    }

    /// Returns the error that all requests get from now on, if another client has the lock, or if
    /// the image has shrunk.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        match &*self.shared.fence.borrow() {
            Fence::Closed(error) => Some(error.clone()),
            Fence::Open | Fence::Closing(_) => None,
        }
    }

    fn limits(&self) -> RequestLimits {
        RequestLimits {
            read_only: self.read_only(),
            data_bytes: DATA_BYTES,
            zeroes_bytes: match self.shared.has_zeroes {
                true => ZEROES_BYTES,
                false => 0,
            },
        }
    }
}

impl BlockDevice for RbdDevice {
    fn info(&self) -> DeviceInfo {
        self.shared.info.borrow().clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let handle = || Self {
            shared: Rc::clone(&self.shared),
        };
        let info = self.shared.info.borrow();
        let whole = self.limits().admit(&info, request, done, handle);
        drop(info);
        if let Some((request, done)) = whole {
            self.shared.submit(request, done);
        }
    }
}

impl fmt::Debug for RbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RbdDevice")
            .field("image", &self.shared.info.borrow().name)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn submit(&self, request: Request, done: Completion) {
        let lane = &self.lanes[Lane::of(request.op)];
        let pending = Pending::new(request, done, 0);
        match &mut *self.fence.borrow_mut() {
            Fence::Open => {}
            Fence::Closing(waiting) => return waiting.push(pending),
            Fence::Closed(error) => {
                let error = error.clone();
                return pending.done.complete(Err(error));
            }
        }
        let stalled = lane.stalled.borrow().clone();
        match stalled {
            Some(error) => pending.done.complete(Err(error)),
            None => {
                lane.slots.borrow_mut().queue(pending);
                self.pump();
            }
        }
    }

    /// Gives queued requests to the sender, as far as there is room.
    fn pump(&self) {
        let mut commands = Vec::new();
        for lane in &self.lanes {
            lane.take(&mut commands);
        }
        self.opened.port.send(&mut commands);
    }

    /// Completes a request with librbd's return value.
    fn ended(self: &Rc<Self>, token: Token, result: i64) {
        let image = self.address.to_string();
        let pending = self.lanes[token.lane].ended(token.cid, &image);
        let is_read = pending.request.op == Op::Read;
        if result == BLOCKLISTED.into() || (result == NOT_OWNER.into() && !is_read) {
            self.lose_lock();
            match &mut *self.fence.borrow_mut() {
                Fence::Closing(waiting) => waiting.push(pending),
                Fence::Closed(error) => pending.done.complete(Err(error.clone())),
                Fence::Open => unreachable!("the lock is lost"),
            }
            return;
        }
        let what = || format!("RBD image {image}: {}", pending.in_words());
        let end = pending.request.offset + pending.request.len;
        let outcome = match result {
            0.. if !is_read && self.shrunk_to.get().is_some_and(|left| end > left) => Err(
                Error::new(ErrorKind::Lost, format!("{}: the image has shrunk", what())),
            ),
            ..0 => Err(failure(result, what())),
            // The image has shrunk.
            0.. if is_read && result as u64 != pending.request.len => {
                let what = format!("{}: only {result} bytes are left there", what());
                Err(Error::new(ErrorKind::OutOfRange, what))
            }
            _ => Ok(()),
        };
        pending.done.complete(outcome);
    }

    /// Lets no further request to the cluster, and looks for the new holder of the lock.
    fn lose_lock(self: &Rc<Self>) {
        if !matches!(*self.fence.borrow(), Fence::Open) {
            return;
        }
        let mut waiting = Vec::new();
        for lane in &self.lanes {
            waiting.append(&mut lane.slots.borrow_mut().take_waiting(|_| true));
        }
        *self.fence.borrow_mut() = Fence::Closing(waiting);
        self.opened.forget_lock();
        let this = Rc::clone(self);
        rt::spawn(async move {
            let holder = open::successor(this.api, &this.address, this.times.successor).await;
            let error = lost_lock(&this.address, holder);
            tracing::error!("{}", error.report());
            let closed = Fence::Closed(error.clone());
            if let Fence::Closing(waiting) = this.fence.replace(closed) {
                for pending in waiting {
                    pending.done.complete(Err(error.clone()));
                }
            }
        });
    }

    /// Notes the size of an image that has grown.
    fn grow(&self, size_bytes: u64) {
        let is = size_bytes / 512 * 512;
        let mut info = self.info.borrow_mut();
        if is <= info.size_bytes {
            return;
        }
        let was = std::mem::replace(&mut info.size_bytes, is);
        tracing::warn!(
            "RBD image {}: it has grown from {was} to {is} bytes: apply it with `forebay grow`",
            self.address
        );
    }

    /// Lets no further request to an image that has shrunk to `left` bytes.
    fn shrink(&self, left: u64) {
        if self.shrunk_to.replace(Some(left)).is_some() {
            return;
        }
        let what = format!(
            "RBD image {}: it was shrunk from {} to {left} bytes in service: DATA IS LOST\n\
             help: see what lies beyond in the volume; then restart the daemon",
            self.address,
            self.info.borrow().size_bytes
        );
        let error = Error::new(ErrorKind::Lost, what);
        tracing::error!("{}", error.report());
        let mut fence = self.fence.borrow_mut();
        if !matches!(*fence, Fence::Open) {
            return;
        }
        *fence = Fence::Closed(error.clone());
        drop(fence);
        for lane in &self.lanes {
            let waiting = lane.slots.borrow_mut().take_waiting(|_| true);
            for pending in waiting {
                pending.done.complete(Err(error.clone()));
            }
        }
    }
}

impl Close for Shared {
    fn close(&self) {
        self.closed.set(true);
        self.closing.wake_all();
        for lane in &self.lanes {
            let waiting = lane.slots.borrow_mut().take_waiting(|_| true);
            for pending in waiting {
                let over = Error::new(ErrorKind::ShuttingDown, "the device is closed");
                pending.done.complete(Err(over));
            }
        }
        self.opened.port.close();
    }
}

/// Error of a device whose lock another client has.
fn lost_lock(address: &Address, holder: Result<Option<String>>) -> Error {
    let holder = match holder {
        Ok(Some(holder)) => format!("{holder} holds it now"),
        Ok(None) => "no client holds it now".to_owned(),
        Err(_) => "its holder is unknown".to_owned(),
    };
    let what = format!(
        "RBD image {address}: its exclusive lock was taken from this client; {holder}\n\
         help: stop that client, and see whether it wrote to the image; then restart the daemon"
    );
    Error::new(ErrorKind::Busy, what)
}

/// Completes requests until the device is closed and librbd has none.
async fn collect(shared: Rc<Shared>) {
    let mut ended = Vec::new();
    loop {
        let changes = shared.opened.port.news(&mut ended).await;
        if let Some(size_bytes) = changes.grown_to {
            shared.grow(size_bytes);
        }
        if let Some(left) = changes.shrunk_to {
            shared.shrink(left);
        }
        for (token, result) in ended.drain(..) {
            shared.ended(token, result);
        }
        if changes.is_lock_lost {
            shared.lose_lock();
        }
        if shared.closed.get() && shared.lanes.iter().all(Lane::is_idle) {
            return;
        }
        shared.pump();
    }
}

/// Fails requests of a lane that gets no answers, until the device is closed.
async fn watch(shared: Rc<Shared>) {
    let patience = shared.times.patience;
    let image = shared.address.to_string();
    while !shared.closed.get() {
        let closed = shared.closing.until(|| shared.closed.get());
        rt::at_most(patience / 8, closed).await;
        for lane in &shared.lanes {
            let Some(error) = lane.look(&image, patience) else {
                continue;
            };
            let waiting = lane.slots.borrow_mut().take_waiting(|_| true);
            for pending in waiting {
                pending.done.complete(Err(error.clone()));
            }
        }
    }
}
