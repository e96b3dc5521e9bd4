//! The hit path, for requests that touch one block which is not locked. A read needs valid
//! granules. A write needs granules that are dirty already.
//!
//! Such a request is issued without a task. If the device answers at once, as memory does, the
//! request ends before any other task runs, and needs no lock. Otherwise the lock is taken
//! immediately, before any other task runs, and a task waits for the answer. The effect on the map
//! is that of the data path (`read::read`, `write::write`). Requests that this path cannot serve,
//! failed requests, and measured clean hits take the data path.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_block::{BlockDeviceExt, Completion, IoFuture, Op, Request, Result};
use forebay_io::rt;
use forebay_metadata::order::{Ordered, Part, Site};
use forebay_policy::cleaning::IoDevice;
use forebay_policy::{BlockId, BlockKey};

use crate::engine::Engine;
use crate::job::Job;
use crate::map::REWRITTEN;
use crate::options::Mode;
use crate::request::CachedVolume;
use crate::volume::AttachedVolume;
use crate::write;

/// A request that was issued to the data device.
struct Issued {
    region: BlockKey,
    granules: u64,
    id: BlockId,
    io: IoFuture,
    /// With checksums: the first cell, and the block.
    cells: Option<(usize, BlockKey)>,
}

impl CachedVolume {
    /// Serves a request on the hit path. Gives it back if that is impossible.
    pub(crate) fn try_hit_path(
        &self,
        request: Request,
        done: Completion,
    ) -> Result<(), (Request, Completion)> {
        let Some(issued) = self.issue(&request) else {
            return Err((request, done));
        };
        let Issued {
            region,
            granules,
            id,
            io,
            cells,
        } = issued;
        let engine = &self.engine;
        let write = request.op != Op::Read;
        let mut io = Ordered::new(Site::here(), io);
        let answer = Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(answer) = answer {
            if write {
                engine.committer.block_written(id);
            }
            let agrees = engine.slots.end_hit(cells, id, &request, answer.is_ok());
            if answer.is_err() || !agrees {
                return Err((request, done));
            }
            done.complete(match write && !engine.committer.is_alive() {
                true => engine.committer.check_alive(),
                false => Ok(()),
            });
            return Ok(());
        }
        let locked = !Site::here().lacks(Part::Lock);
        if locked {
            engine.locks.take(region, granules, write);
        }
        // No task has run since the block was found.
        let open = cells.filter(|_| write);
        let open = open.and_then(|(_, block)| engine.regions.keep_open(block));
        let (engine, volume) = (Rc::clone(engine), Rc::clone(&self.volume));
        volume.enter();
        let begun = volume.begin_io();
        rt::spawn(async move {
            let mut result = io.await;
            volume.end_io(IoDevice::Cache, begun);
            if write {
                engine.committer.block_written(id);
            }
            let agrees = engine.slots.end_hit(cells, id, &request, result.is_ok());
            drop(open);
            let failed = result.is_err() || !agrees;
            // Both are boxed, since they are seldom: each hit's future would have room for them.
            if write && (failed || !engine.committer.is_alive()) {
                result = Box::pin(engine.retry_write_hit(&volume, &request)).await;
            }
            if locked {
                engine.locks.release(region, granules, write);
            }
            // A read meanwhile may have seen what a failed flush or write left.
            if !write && (failed || engine.committer.has_doubts()) {
                result = Box::pin(engine.serve(&volume, request)).await;
            }
            volume.leave();
            done.complete(result);
        });
        Ok(())
    }

    fn issue(&self, request: &Request) -> Option<Issued> {
        let (engine, volume) = (&self.engine, &self.volume);
        let mode = volume.mode();
        let write = match request.op {
            Op::Read => false,
            Op::Write { fua: false } if mode.makes_dirty() && !engine.committer.is_sync() => true,
            _ => return None,
        };
        let buf = request.buf.as_ref()?;
        let part = engine.geometry.single_part(request.offset, request.len)?;
        let units = engine.geometry.units(&part);
        let granules = engine.geometry.region_granules(&part);
        let region = volume.region_key(part.region);
        let (id, offset, cells) = {
            let mut map = engine.map.borrow_mut();
            let found = map.overlapping(volume.id, part.region, units).next();
            let (id, span) = found.filter(|(_, span)| units & !span.mask() == 0)?;
            if !engine.locks.admits(region, granules, write)
                || engine.committer.has_doubts()
                || write && !engine.committer.is_alive()
            {
                return None;
            }
            let piece = engine.geometry.piece(&part, span);
            let (valid, dirty) = map.maps(id, span.class);
            // Clean hits that are measured may be read elsewhere.
            let usable = if write || mode == Mode::PassThrough || engine.admission.measures_hits() {
                dirty
            } else {
                valid
            };
            let asked = engine.geometry.touched(&piece);
            if asked & !usable != 0 {
                return None;
            }
            let offset = engine.geometry.data_offset(map.slot(id), piece.start);
            if (offset | request.len) & u64::from(engine.devices.data_block() - 1) != 0 {
                return None;
            }
            let cells = match &engine.checksums {
                None => None,
                Some(checksums) => {
                    let slot = map.slot(id);
                    let first = engine
                        .slots
                        .hit_cells(checksums, &piece, slot, write, volume.id)?;
                    Some((first, piece.block.key(volume.id)))
                }
            };
            if write {
                map.add_flags(id, REWRITTEN);
            }
            map.used(id, span.class, asked);
            (id, offset, cells)
        };
        engine
            .read_ahead
            .note_part(volume.id, &part, granules, write);
        let _ = volume.note_request(request.offset, request.len);
        let io = if write {
            volume.counters.write_hits.add(1);
            engine.devices.data().write(offset, buf.clone())
        } else {
            volume.counters.read_hits.add(1);
            engine.devices.data().read(offset, buf.clone())
        };
        Some(Issued {
            region,
            granules,
            id,
            io,
            cells,
        })
    }
}

impl Engine {
    /// Retries a write that failed on the hit path on the data path, before its lock is released.
    async fn retry_write_hit(
        self: &Rc<Self>,
        volume: &Rc<AttachedVolume>,
        request: &Request,
    ) -> Result<()> {
        let part = self.geometry.single_part(request.offset, request.len);
        let job = Job {
            part: part.expect("it was issued as one"),
            buf: request.buf.clone().expect("a write has one"),
            durable: false,
            bypass: false,
        };
        write::retry_hit(self, volume, job).await
    }
}
