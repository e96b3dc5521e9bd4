//! A volume's backing device, and what of it is not flushed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Op, Request, Result};
use forebay_io::sync::Semaphore;
use forebay_metadata::order::{self, Ordered, Part, Site};

use crate::plant::{Fault, planted};

/// A backing device with a count of what was written since its last flush.
pub(crate) struct Backing {
    pub(crate) device: Rc<dyn BlockDevice>,
    volatile: bool,
    fua: bool,
    /// Writes that were started and completed, and how many of them a flush has covered. Those that
    /// made themselves durable are counted only while they are in flight.
    started: Cell<u64>,
    completed: Cell<u64>,
    flushed: Cell<u64>,
    durable_in_flight: Cell<u64>,
    /// One flush at a time: of two, the one that is told of lost data may be answered last.
    flushing: Semaphore,
    failed: RefCell<Option<Error>>,
    /// It is being flushed though nobody waits for that.
    pub(crate) behind: Cell<bool>,
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backing")
            .field("started", &self.started)
            .field("completed", &self.completed)
            .field("flushed", &self.flushed)
            .finish_non_exhaustive()
    }
}

impl Backing {
    pub(crate) fn new(device: Rc<dyn BlockDevice>) -> Self {
        let info = device.info();
        // What a process that died wrote, through this cache or without it, may sit in the device's
        // cache; a client that lived on will flush it through us.
        let written = u64::from(info.volatile_cache);
        Self {
            device,
            volatile: info.volatile_cache,
            fua: info.fua,
            started: Cell::new(written),
            completed: Cell::new(written),
            flushed: Cell::new(0),
            durable_in_flight: Cell::new(0),
            flushing: Semaphore::new(1),
            failed: RefCell::new(None),
            behind: Cell::new(false),
        }
    }

    /// Whether anything was written, or is being written, that no flush has covered.
    pub(crate) fn unflushed(&self) -> bool {
        self.started.get() != self.flushed.get() || self.durable_in_flight.get() > 0
    }

    /// Everything that changes the device goes through here. With `durable`, what was written is on
    /// media when this returns.
    #[track_caller]
    pub(crate) fn change(
        &self,
        request: Request,
        durable: bool,
    ) -> impl Future<Output = Result<()>> + '_ {
        self.change_at(Site::here(), request, durable)
    }

    async fn change_at(&self, site: Site, mut request: Request, durable: bool) -> Result<()> {
        let fua = durable && self.volatile && self.fua;
        match &mut request.op {
            Op::Write { fua: flag } | Op::WriteZeroes { fua: flag, .. } => {
                *flag = fua && !site.lacks(Part::Fua);
            }
            _ => {}
        }
        let by_itself = fua && request.op != Op::Discard || !self.volatile;
        let counter = if by_itself {
            &self.durable_in_flight
        } else {
            &self.started
        };
        counter.set(counter.get() + 1);
        let result = Ordered::new(site, self.device.start(request)).await;
        if by_itself {
            counter.set(counter.get() - 1);
        } else {
            self.completed.set(self.completed.get() + 1);
        }
        if by_itself && self.volatile && result.is_err() {
            // What failed may have got as far as the device's cache, where it can be read.
            self.started.set(self.started.get() + 1);
            self.completed.set(self.completed.get() + 1);
        }
        result?;
        if durable && !by_itself && !Site::here().lacks(Part::Step) {
            self.flush().await?;
        }
        Ok(())
    }

    #[track_caller]
    pub(crate) fn write(
        &self,
        offset: u64,
        buf: Buf,
        durable: bool,
    ) -> impl Future<Output = Result<()>> + '_ {
        self.change_at(Site::here(), Request::write(offset, buf, false), durable)
    }

    /// Makes what was written so far durable.
    ///
    /// A failed flush is never tried again into success: the device may have dropped what it held, so
    /// every later flush of this attachment fails too. Data that is still in the cache stays dirty.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.flushing.acquire(1).await;
        let result = self.flush_alone().await;
        self.flushing.release(1);
        result
    }

    async fn flush_alone(&self) -> Result<()> {
        self.check()?;
        let covered = self.completed.get();
        if self.volatile
            && let Err(error) = order::flush(self.device.as_ref()).await
        {
            let name = self.device.info().name;
            tracing::error!(device = name, error = %error.report(), "a flush of the backing device failed");
            let error = Error::with_source(
                ErrorKind::Io,
                format!(
                    "a flush of {name} failed: what was written to it since the last good one may be lost; restart to attach it again"
                ),
                error,
            );
            if planted(Fault::RetryFailedFlush) {
                return Err(error);
            }
            self.failed.borrow_mut().get_or_insert(error);
        }
        self.check()?;
        // Writes that were in flight when the flush began may be covered or not: they count as not.
        self.flushed.set(self.flushed.get().max(covered));
        Ok(())
    }

    /// Whether a flush has failed.
    pub(crate) fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}
