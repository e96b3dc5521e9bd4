//! A volume as a device. A request is split at regions; `split` splits each part at the existing
//! blocks.

mod hit_path;

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{
    BlockDevice, Buf, Completion, DeviceInfo, ErrorKind, ExtentsFuture, Op, Request, Result,
};
use forebay_io::rt;
use forebay_policy::Route;

use crate::engine::Engine;
use crate::extents::extents;
use crate::geometry::{Extent, Geometry};
use crate::job::Job;
use crate::parallel;
use crate::volume::{AttachedVolume, volume_info};
use crate::{degraded, read, write};

/// A cached volume as a device: the result of `Cache::attach`.
pub(crate) struct CachedVolume {
    pub(crate) engine: Rc<Engine>,
    pub(crate) volume: Rc<AttachedVolume>,
}

impl BlockDevice for CachedVolume {
    fn info(&self) -> DeviceInfo {
        volume_info(
            self.volume.name.clone(),
            self.volume.size_bytes(),
            &self.volume.backing.device().info(),
            &self.engine.devices.data().info(),
            self.engine.geometry,
            self.engine.settings.durability,
        )
    }

    fn submit(&self, request: Request, done: Completion) {
        let (size, block) = (self.volume.size_bytes(), self.volume.logical_block);
        if let Err(error) = request.check(size, block) {
            return done.complete(Err(error));
        }
        if self.volume.is_detaching() {
            return done.complete(Err(ErrorKind::ShuttingDown.into()));
        }
        let Err((request, done)) = self.try_hit_path(request, done) else {
            return;
        };
        let (engine, volume) = (Rc::clone(&self.engine), Rc::clone(&self.volume));
        volume.enter();
        rt::spawn(async move {
            let result = engine.serve(&volume, request).await;
            if result.is_err() {
                engine.failures.note_failure(&volume).await;
            }
            volume.leave();
            done.complete(result);
        });
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        Box::pin(extents(&self.engine, &self.volume, range))
    }
}

/// A read or write of a volume, before it is split at regions.
struct Transfer {
    /// Requested bytes of the volume.
    bytes: Range<u64>,
    /// Buffer of the requested bytes.
    buf: Buf,
    /// Whether the write is durable before its answer.
    durable: bool,
    /// Whether blocks that the cache does not hold are bypassed.
    bypass: bool,
}

impl Transfer {
    /// Returns the job of the requested bytes in `wide`, an extent of the requested bytes and their
    /// read-ahead. The job is empty if the extent has read-ahead only.
    fn job(&self, geometry: Geometry, wide: Extent) -> Job<Extent> {
        let start = geometry.region_offset(&wide);
        let end = start + wide.len() as u64;
        let requested = self.bytes.start.clamp(start, end)..self.bytes.end.clamp(start, end);
        let part = Extent {
            start: wide.start + (requested.start - start) as u32,
            end: wide.start + (requested.end - start) as u32,
            ..wide
        };
        let first = requested.start.clamp(self.bytes.start, self.bytes.end);
        let at = (first - self.bytes.start) as usize;
        Job {
            part,
            buf: self.buf.slice(at..at + part.len()),
            durable: self.durable,
            bypass: self.bypass,
        }
    }
}

impl Engine {
    /// Serves a request.
    pub(crate) async fn serve(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        request: Request,
    ) -> Result<()> {
        let sync = self.committer.is_sync();
        match request.op {
            Op::Flush => match write::flush(self, volume).await {
                Err(_) if self.is_degraded(volume) => degraded::flush(self, volume).await,
                result => result,
            },
            Op::Discard => write::zero(self, volume, request.offset, request.len, None, sync).await,
            Op::WriteZeroes { fua, unmap } => {
                let durable = fua || sync;
                write::zero(
                    self,
                    volume,
                    request.offset,
                    request.len,
                    Some(unmap),
                    durable,
                )
                .await
            }
            Op::Read | Op::Write { .. } => self.transfer(volume, request).await,
        }
    }

    /// Serves a read or write. Splits it, with the read-ahead of a read, at regions.
    async fn transfer(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        request: Request,
    ) -> Result<()> {
        let is_write = request.op != Op::Read;
        let fua = request.op == Op::Write { fua: true };
        let bytes = request.offset..request.offset + request.len;
        let sequential = volume.note_request(bytes.start, request.len);
        let wide = self
            .read_ahead
            .range(volume, bytes.clone(), is_write, sequential);
        let visit = match is_write && !sequential {
            true => self.admission.route_write(volume, bytes.clone()),
            false => None,
        };
        let transfer = Transfer {
            bytes,
            buf: request.buf.expect("checked on submission"),
            durable: is_write && (fua || self.committer.is_sync()),
            bypass: sequential || visit.is_some_and(|visit| visit.route != Route::Cache),
        };
        let len = wide.end - wide.start;
        let mut parts = self
            .geometry
            .parts(wide.start, len)
            .map(|part| (transfer.job(self.geometry, part), part));
        let (job, first) = parts.next().expect("a request has a part");
        let result = if first.len() as u64 == len {
            self.run(volume, job, first, is_write).await
        } else {
            // Requested data gets room before read-ahead data.
            let (requested, ahead): (Vec<_>, Vec<_>) = std::iter::once((job, first))
                .chain(parts)
                .partition(|(job, _)| job.part.len() > 0);
            let parts = requested.into_iter().chain(ahead).map(|(job, part)| {
                let (engine, volume) = (Rc::clone(self), Rc::clone(volume));
                async move { engine.run(&volume, job, part, is_write).await }
            });
            parallel::all(parts).await
        };
        self.admission.write_ended(volume, visit, &result);
        result
    }

    /// Serves a part of a read or write, which lies in one region.
    async fn run(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        job: Job<Extent>,
        wide: Extent,
        is_write: bool,
    ) -> Result<()> {
        match is_write {
            true => write::write(self, volume, job).await,
            false => read::read(self, volume, job, wide).await,
        }
    }
}
