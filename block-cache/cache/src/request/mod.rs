//! A volume as a device. A request is split at regions, and each part at the existing blocks.

mod hit_path;

use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Op, Request, Result};
use forebay_io::rt;
use forebay_policy::Route;

use crate::engine::Engine;
use crate::geometry::Extent;
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
}

impl Engine {
    pub(crate) async fn serve(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        request: Request,
    ) -> Result<()> {
        let result = self.serve_request(volume, request).await;
        if let Err(error) = &result {
            volume.log_failure(error);
        }
        result
    }

    async fn serve_request(
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
            Op::Read | Op::Write { .. } => {
                let buf = request.buf.expect("checked on submission");
                let is_write = request.op != Op::Read;
                let fua = request.op == Op::Write { fua: true };
                let (start, end) = (request.offset, request.offset + request.len);
                let sequential = volume.note_request(start, request.len);
                let wide = self
                    .read_ahead
                    .range(volume, start..end, is_write, sequential);
                let visit = match is_write && !sequential {
                    true => self.admission.route_write(volume, start..end),
                    false => None,
                };
                let bypass = sequential || visit.is_some_and(|visit| visit.route != Route::Cache);
                let job = move |wide: Extent| {
                    // The part of the request within this part of the range.
                    let from = self.geometry.region_offset(&wide);
                    let to = from + wide.len() as u64;
                    let asked = start.clamp(from, to)..end.clamp(from, to);
                    let part = Extent {
                        start: wide.start + (asked.start - from) as u32,
                        end: wide.start + (asked.end - from) as u32,
                        ..wide
                    };
                    let at = (asked.start.clamp(start, end) - start) as usize;
                    Job {
                        part,
                        buf: buf.slice(at..at + part.len()),
                        durable: is_write && (fua || sync),
                        bypass,
                    }
                };
                let mut parts = self.geometry.parts(wide.start, wide.end - wide.start);
                let first = parts.next().expect("a request has a part");
                if first.len() as u64 == wide.end - wide.start {
                    let result = self.run(volume, job(first), first, is_write).await;
                    self.admission.write_ended(volume, visit, &result);
                    return result;
                }
                // Requested data gets room before read-ahead data.
                let parts = std::iter::once(first)
                    .chain(parts)
                    .map(|part| (job(part), part));
                let (asked, beside): (Vec<_>, Vec<_>) =
                    parts.partition(|(job, _)| job.part.len() > 0);
                let parts = asked.into_iter().chain(beside).map(|(job, part)| {
                    let (engine, volume) = (Rc::clone(self), Rc::clone(volume));
                    async move { engine.run(&volume, job, part, is_write).await }
                });
                let result = parallel::all(parts).await;
                self.admission.write_ended(volume, visit, &result);
                result
            }
        }
    }

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
