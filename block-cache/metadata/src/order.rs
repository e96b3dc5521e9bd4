//! Orderings that protect data, each identified by its place in the source. Tests leave each one
//! out, and must then find lost data ("mutation sweep", CONTRIBUTING.md).
//!
//! Any code that issues a flush, asks for FUA, or waits until something is durable goes through a
//! [`Site`]. With the feature `plant` a site records that it was reached and can be made to leave
//! its step out. Without it, a site is nothing, and everything here is just the operation that it
//! wraps.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, IoFuture, Result};

/// Step that can be left out at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The step is not taken at all.
    Step,
    /// Begins the step and does not wait for its end.
    Wait,
    /// A write that should be on media when it completes is an ordinary one.
    Fua,
    /// Leaves out the mutual exclusion.
    Lock,
}

/// A place in the source at which an order protects data.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    #[cfg(feature = "plant")]
    at: &'static std::panic::Location<'static>,
}

impl Site {
    /// The caller's place.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn here() -> Self {
        Self {
            #[cfg(feature = "plant")]
            at: std::panic::Location::caller(),
        }
    }

    /// Whether a test took this part out.
    #[cfg(not(feature = "plant"))]
    #[inline]
    #[must_use]
    pub const fn lacks(self, part: Part) -> bool {
        _ = part;
        false
    }

    /// Whether a test took this part out.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn lacks(self, part: Part) -> bool {
        planted::lacks(self.at, part)
    }
}

#[cfg(feature = "plant")]
mod planted {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::panic::Location;

    use super::Part;

    /// A part of a site: file, line, column, part.
    pub type SitePart = (&'static str, u32, u32, Part);

    thread_local! {
        static REACHED: RefCell<BTreeSet<SitePart>> = const { RefCell::new(BTreeSet::new()) };
        static LACKING: Cell<Option<SitePart>> = const { Cell::new(None) };
    }

    pub(super) fn lacks(at: &'static Location<'static>, part: Part) -> bool {
        let this = (at.file(), at.line(), at.column(), part);
        if let Some(lacking) = LACKING.get() {
            return lacking == this;
        }
        REACHED.with_borrow_mut(|reached| reached.insert(this));
        false
    }

    /// Takes a part of a site out for this thread, or puts it back.
    pub fn take_out(part: Option<SitePart>) {
        LACKING.set(part);
    }

    /// Returns the sites that this thread reached with no step left out, since the last call.
    #[must_use]
    pub fn reached() -> BTreeSet<SitePart> {
        REACHED.take()
    }
}

#[cfg(feature = "plant")]
pub use planted::{SitePart, reached, take_out};

/// An operation that the caller waits for.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Ordered(Option<IoFuture>);

impl Ordered {
    /// Waits for `io`, unless the waiting at `site` is left out.
    pub fn new(site: Site, io: IoFuture) -> Self {
        Self((!site.lacks(Part::Wait)).then_some(io))
    }
}

impl Future for Ordered {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.0 {
            Some(io) => Pin::new(io).poll(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

/// Flushes a device.
#[track_caller]
pub fn flush(device: &dyn BlockDevice) -> Ordered {
    let site = Site::here();
    if site.lacks(Part::Step) {
        return Ordered(None);
    }
    Ordered::new(site, device.flush())
}

/// Writes.
#[track_caller]
pub fn write(device: &dyn BlockDevice, offset: u64, buf: Buf) -> Ordered {
    Ordered::new(Site::here(), device.write(offset, buf))
}

/// Writes, waits for the write, and flushes.
///
/// # Errors
/// The device's own. The content on media is then unknown.
pub async fn write_durably(
    device: &dyn BlockDevice,
    parts: impl IntoIterator<Item = (u64, Buf)>,
) -> Result<()> {
    write_all(device, parts).await?;
    flush(device).await
}

/// Writes one after the other, and waits for each.
///
/// # Errors
/// The device's own.
pub async fn write_all(
    device: &dyn BlockDevice,
    parts: impl IntoIterator<Item = (u64, Buf)>,
) -> Result<()> {
    for (offset, buf) in parts {
        write(device, offset, buf).await?;
    }
    Ok(())
}

/// Writes with FUA.
#[track_caller]
pub fn write_fua(device: &dyn BlockDevice, offset: u64, buf: Buf) -> Ordered {
    let site = Site::here();
    if site.lacks(Part::Fua) {
        return Ordered::new(site, device.write(offset, buf));
    }
    Ordered::new(site, device.write_fua(offset, buf))
}
