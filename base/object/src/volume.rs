//! A volume in object storage as a block device.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    Allocation, BlockDevice, Completion, DeviceInfo, Error, ErrorKind, Extents, ExtentsFuture,
    Identity, Op, Request, Result,
};
use forebay_io::rt;
use forebay_io::sync::Promise;

use crate::background;
use crate::claim::{Claimant, Condition, claimant};
use crate::closing::finish;
use crate::core::{Change, Core};
use crate::fault::Faults;
use crate::format::{Id, SECTOR_BYTES, new_id};
use crate::limits::Limits;
use crate::open::{Prepared, open, serve};
use crate::options::{Access, Options};
use crate::reader;
use crate::snapshots;
use crate::store::Store;
use crate::usage::Usage;
use crate::verification::{Verification, verify};
use crate::writer::{ATOMIC_SECTORS, flush, submit};

/// Unit in which clients should write, bytes. Smaller units cost more of the map.
const PHYSICAL_BYTES: u32 = 4096;
/// Time limit for a close.
const CLOSE: Duration = Duration::from_secs(120);

/// An open volume. It belongs to the reactor that it was opened on.
///
/// Dropping it ends its tasks. Writes that no flush covered may be lost then.
pub struct ObjectVolume {
    state: RefCell<State>,
    info: DeviceInfo,
    /// Work of the claim that is still to be made.
    prepared: Cell<Option<Prepared>>,
    /// Outcome of the first close.
    closed: RefCell<Option<Promise<Result<()>>>>,
}

/// Part of a volume that a claim replaces.
#[derive(Clone)]
struct State {
    core: Rc<Core>,
    /// Set when the background task has ended.
    ended: Promise<()>,
}

impl State {
    /// Starts the background task of a writer.
    fn begin(core: Core) -> Self {
        let (core, ended) = (Rc::new(core), Promise::new());
        match core.writer.is_some() {
            true => {
                let (core, ended) = (Rc::clone(&core), ended.clone());
                rt::spawn(async move {
                    background::run(core).await;
                    ended.set(());
                });
            }
            false => ended.set(()),
        }
        Self { core, ended }
    }
}

impl ObjectVolume {
    /// Opens the volume in a folder of a store. To serve it, becomes its writer and fences an
    /// earlier one.
    ///
    /// # Errors
    /// - `NotFound` if there is no volume and the options have no size or [`Access::Look`]. Also if
    ///   there is no snapshot of this name.
    /// - `InvalidInput` if the size is less than that of the volume, or no multiple of 4096.
    /// - `Busy` if another writer opens it at the same time.
    /// - `Unsupported` if the store replaces an object at a creation. Two writers could not be
    ///   fenced.
    /// - `Corrupt` for an object that does not verify.
    /// - Errors of the store.
    ///
    /// # Panics
    /// If this thread runs no reactor.
    pub async fn open(store: Rc<dyn Store>, options: Options) -> Result<Rc<Self>> {
        Self::open_with(store, options, Limits::default(), Faults::default()).await
    }

    pub(crate) async fn open_with(
        store: Rc<dyn Store>,
        options: Options,
        limits: Limits,
        faults: Faults,
    ) -> Result<Rc<Self>> {
        let (mut core, mut prepared) = open(store, &options, limits, faults).await?;
        if let (Some(claim), Access::Serve) = (prepared, options.access) {
            core = serve(&core, claim, new_id(), Condition::Always).await?;
            prepared = None;
        }
        let name = match &options.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", core.link.name()),
            None => core.link.name(),
        };
        let medium = core
            .identity
            .first_chunk()
            .map_or(0, |it| u64::from_le_bytes(*it));
        let wanted = prepared.and_then(|it| it.size_bytes).unwrap_or(0);
        let size_bytes = core.log.borrow().chain.size_bytes.max(wanted);
        let info = DeviceInfo {
            physical_block_bytes: PHYSICAL_BYTES,
            buffers_in_process: prepared.is_some() || core.writer.is_some(),
            atomic_write_bytes: u32::try_from(ATOMIC_SECTORS * SECTOR_BYTES).expect("small"),
            identity: Identity::of(medium.max(1)),
            ..DeviceInfo::new(name, size_bytes)
        };
        Ok(Rc::new(Self {
            state: RefCell::new(State::begin(core)),
            info,
            prepared: Cell::new(prepared),
            closed: RefCell::new(None),
        }))
    }

    fn core(&self) -> Rc<Core> {
        Rc::clone(&self.state.borrow().core)
    }

    /// Reads all data of a volume that has no writer, and of its snapshots, and verifies it against
    /// its checksums.
    ///
    /// # Errors
    /// `Busy` if objects are missing or damaged, and a writer has changed the volume meanwhile.
    /// Errors of the store. Missing and damaged objects are part of the result otherwise.
    pub async fn verify(&self) -> Result<Verification> {
        verify(&self.core()).await
    }

    /// Returns whether [`ObjectVolume::claim`] would create the volume.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.prepared.get().is_some_and(|it| it.is_new)
    }

    /// Returns the last writer that has claimed the volume; `None` if none has.
    ///
    /// # Errors
    /// `Corrupt` if the claim does not verify. Errors of the store.
    pub async fn last_writer(&self) -> Result<Option<Claimant>> {
        let core = self.core();
        let claim = core.log.borrow().chain.claim;
        claimant(&core.link, &core.volume, claim).await
    }

    /// Returns whether one of these writers has claimed the volume. Reads claims from the last one
    /// back.
    ///
    /// # Errors
    /// As [`ObjectVolume::last_writer`].
    pub async fn has_writer(&self, is_one: impl Fn(Id) -> bool) -> Result<bool> {
        let core = self.core();
        let claims = core.log.borrow().chain.claims.clone();
        for claim in claims.into_iter().rev() {
            let writer = claimant(&core.link, &core.volume, claim).await?;
            if writer.is_some_and(|writer| is_one(writer.id)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Becomes the writer `id` of a volume that was opened with [`Access::Prepare`], and fences an
    /// earlier writer. Creates the volume if it is new, and extends one that is smaller than its
    /// options say. Requests in progress fail. `id` is of this claim alone. The log has it twice if
    /// the earlier writer has written a checkpoint in the meantime.
    ///
    /// # Errors
    /// - `InvalidInput` if the volume was opened with another access, or is claimed already.
    /// - `Busy` if another writer has claimed the volume since it was opened; nothing is changed
    ///   then. Also if another writer claims the volume at the same time.
    /// - Errors of the store. The claim may have taken effect, and all later requests fail.
    pub async fn claim(&self, id: Id) -> Result<()> {
        let prepared = self.prepared.take();
        let prepared = prepared.ok_or(ErrorKind::InvalidInput)?;
        let core = serve(&self.core(), prepared, id, Condition::SameWriter).await?;
        if self.closed.borrow().is_some() {
            return Err(closed());
        }
        *self.state.borrow_mut() = State::begin(core);
        Ok(())
    }

    /// Returns whether it accepts no writes.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.core().writer.is_none()
    }

    /// Returns the error that all requests of the writer get from now on, if it is fenced, or if
    /// the log is damaged. The end of the volume is no failure.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let core = self.core();
        core.writer.as_ref()?;
        let failed = core.log.borrow().failed.clone();
        failed.filter(|error| error.kind() != ErrorKind::ShuttingDown)
    }

    /// Returns its use of the store.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let core = self.core();
        let log = core.log.borrow();
        let sums = log.chain.objects.sums();
        Usage {
            live_bytes: sums.live_bytes + sums.pinned_live_bytes,
            stored_bytes: sums.stored_bytes + sums.pinned_bytes + sums.dead_bytes + sums.free_bytes,
            objects: log.chain.objects.len() as u64,
            mapped_bytes: log.chain.map.sectors() * SECTOR_BYTES,
            ..core.link.counts()
        }
    }

    /// Creates a snapshot with all writes that were acknowledged before. A name consists of 1 to 64
    /// lower-case letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// - `InvalidInput` for another name.
    /// - `Busy` if there is a snapshot of this name, or if another writer has taken the volume.
    /// - `ReadOnly` for a volume that is not served.
    /// - Errors of the store. The snapshot may exist then.
    pub async fn snapshot(&self, name: &str) -> Result<()> {
        snapshots::create(&self.core(), name).await
    }

    /// Deletes a snapshot, and the objects that only it needed.
    ///
    /// # Errors
    /// - `NotFound` without a snapshot of this name.
    /// - `ReadOnly` for a volume that is not served.
    /// - Errors of the store.
    pub async fn delete_snapshot(&self, name: &str) -> Result<()> {
        snapshots::delete(&self.core(), name).await
    }

    /// As [`ObjectVolume::close_within`], with a limit of two minutes.
    ///
    /// # Errors
    /// As there.
    pub async fn close(&self) -> Result<()> {
        self.close_within(CLOSE).await
    }

    /// Makes all acknowledged writes durable, writes a checkpoint, and ends all tasks. Later
    /// requests fail. Waits for a store that does not answer for at most `limit`.
    ///
    /// # Errors
    /// - `Busy` if another writer has taken the volume.
    /// - `Unreachable` if the store does not answer. The volume is closed all the same, and the
    ///   error has the amount of data that is lost.
    pub async fn close_within(&self, limit: Duration) -> Result<()> {
        let earlier = self.closed.borrow().clone();
        if let Some(outcome) = earlier {
            return outcome.get().await;
        }
        let outcome = Promise::new();
        *self.closed.borrow_mut() = Some(outcome.clone());
        self.end_background();
        // A task goes on if the caller does not wait for it.
        let (State { core, ended }, closing) = (self.state.borrow().clone(), outcome.clone());
        let until = rt::now() + limit;
        rt::spawn(async move {
            let result = finish(&core, ended, until).await;
            core.fail(&closed());
            closing.set(result);
        });
        outcome.get().await
    }

    fn end_background(&self) {
        let core = self.core();
        core.closing.set(true);
        core.work.wake_all();
    }

    /// Returns the request if it has to be executed. Completes it otherwise.
    fn admit(&self, request: Request, done: Completion) -> Option<(Request, Completion)> {
        let is_change = !matches!(request.op, Op::Read | Op::Flush);
        let refused = match self.info.check(&request) {
            Ok(()) if is_change && self.read_only() => Err(ErrorKind::ReadOnly.into()),
            checked => checked,
        };
        if refused.is_err() || (request.op == Op::Flush && self.read_only()) {
            done.complete(refused);
            return None;
        }
        Some((request, done))
    }
}

/// Error of a closed volume.
fn closed() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the volume is closed")
}

impl Drop for ObjectVolume {
    fn drop(&mut self) {
        self.end_background();
        self.core().fail(&closed());
    }
}

impl BlockDevice for ObjectVolume {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let Some((request, done)) = self.admit(request, done) else {
            return;
        };
        let first = request.offset / SECTOR_BYTES;
        let sectors = first..first + request.len / SECTOR_BYTES;
        match (request.op, request.buf) {
            (Op::Read, Some(buf)) => reader::read(&self.core(), first, buf, done),
            (Op::Write { fua }, Some(buf)) => {
                submit(&self.core(), Change::Write { first, buf, fua }, done);
            }
            (Op::Flush, _) => flush(&self.core(), done),
            (Op::Discard, _) => {
                let fua = false;
                submit(&self.core(), Change::Zero { sectors, fua }, done);
            }
            (Op::WriteZeroes { fua, .. }, _) => {
                submit(&self.core(), Change::Zero { sectors, fua }, done);
            }
            (Op::Read | Op::Write { .. }, None) => {
                done.complete(Err(ErrorKind::InvalidInput.into()));
            }
        }
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        let core = self.core();
        let log = core.log.borrow();
        let answer = log.check().map(|()| {
            let mut extents = Extents::default();
            let sectors = range.start / SECTOR_BYTES..range.end / SECTOR_BYTES;
            log.chain.map.visit_while(sectors, |piece| {
                let allocation = match piece.place {
                    Some(_) => Allocation::Data,
                    None => Allocation::Hole,
                };
                let bytes = piece.sectors.start * SECTOR_BYTES..piece.sectors.end * SECTOR_BYTES;
                extents.push(bytes, allocation);
                !extents.is_full()
            });
            extents
        });
        Box::pin(std::future::ready(answer))
    }
}

impl fmt::Debug for ObjectVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectVolume")
            .field("name", &self.info.name)
            .finish_non_exhaustive()
    }
}
