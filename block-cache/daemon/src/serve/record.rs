//! Recording: transfers the engine's ring to a client, as a trace. The control plane's thread
//! drains the ring. If this thread or the client is too slow, the ring fills. Requests are then
//! counted as lost, but none ever waits.

use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::system::wall_clock;
use forebay_trace::native::{self, FRAME_BYTES, RECORD_BYTES};
use forebay_trace::write::{WriteOptions, Writer};
use forebay_trace::{Format, Volumes};
use forebay_volume::record::{self, Drain, ring};
use tokio::sync::{Semaphore, watch};

use super::engine::Handle;
use crate::control::protocol::Recorded;
use crate::control::server::{Caller, Part};
use forebay_terminal::size::human_count;

/// Capacity of the ring, requests: 6 MiB, a fifth of a second at more than a million a second.
const RING_REQUESTS: usize = 1 << 18;
/// Interval of draining the ring. Each time takes processor time from clients with one request in
/// flight. An interval of 50 ms cost 1.3% of their throughput, this one 0.5% (`cargo xtask bench
/// record`).
const TICK: Duration = Duration::from_millis(200);
/// Number of ticks between two messages while nothing is recorded.
const SILENT_TICKS: u32 = 5;
/// Requests in one part, which is one frame of the native format.
const PIECE_REQUESTS: usize = 16 << 10;
const _: () = assert!(PIECE_REQUESTS <= native::MAX_FRAME_REQUESTS);
// The ring's records have the format of the trace, so they are sent unchanged.
const _: () = assert!(record::RECORD_BYTES == RECORD_BYTES);
/// Size of a part besides its records, bytes: a frame of requests and one with the number of lost
/// requests.
const PIECE_BYTES: u64 = 2 * FRAME_BYTES as u64;
/// Time that the daemon's end waits for the end of a recording.
const END: Duration = Duration::from_secs(5);

/// Recordings of a daemon, one at a time.
#[derive(Debug)]
pub(super) struct Recordings {
    place: Semaphore,
    stop: watch::Sender<bool>,
}

impl Default for Recordings {
    fn default() -> Self {
        Self {
            place: Semaphore::new(1),
            stop: watch::channel(false).0,
        }
    }
}

impl Recordings {
    /// Records until the client ends it, the daemon stops, or the trace has `max_bytes`. Returns a
    /// description of the result.
    pub(super) async fn run(
        &self,
        engine: &Handle,
        names: Vec<String>,
        max_bytes: Option<u64>,
        caller: Caller,
    ) -> Result<String> {
        let Ok(_place) = self.place.try_acquire() else {
            let what = "a recording is in progress already\n\
                        help: wait for its end, or interrupt it: one at a time is made";
            return Err(Error::new(ErrorKind::Busy, what));
        };
        let (recorder, drain) = ring(RING_REQUESTS);
        let begun = engine.ask(move |engine| async move {
            let names = engine.stack.record(&names, recorder)?;
            Ok::<_, Error>((names, wall_clock()))
        });
        let (names, zero) = begun.await??;
        tracing::info!("recording {}", names.join(", "));
        let mut recording = Recording::new(names, drain, zero, max_bytes)?;
        let why = recording
            .until_its_end(&caller, self.stop.subscribe())
            .await;
        engine
            .ask(|engine| async move { engine.stack.end_recording() })
            .await?;
        // Requests since the last tick.
        while recording.piece(&caller).await? > 0 {}
        let done = recording.in_words(why);
        tracing::info!("{done}");
        Ok(done)
    }

    /// Ends a recording, and waits for its end, for at most [`END`].
    pub(super) async fn end(&self) {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(END, self.place.acquire()).await;
        if ended.is_err() {
            tracing::warn!("the recording's client does not read: the recording lacks its end");
        }
    }
}

struct Recording {
    writer: Writer<Vec<u8>>,
    volumes: Volumes,
    drain: Drain,
    left_bytes: u64,
    total: Recorded,
}

impl Recording {
    fn new(
        names: Vec<String>,
        drain: Drain,
        zero: Duration,
        max_bytes: Option<u64>,
    ) -> Result<Self> {
        let options = WriteOptions {
            zero_unix_ns: u64::try_from(zero.as_nanos()).unwrap_or(0),
            ..WriteOptions::default()
        };
        let mut volumes = Volumes::new();
        if let Some(name) = names.iter().find(|name| volumes.number(name).is_none()) {
            let what = format!(
                "a trace cannot hold volume {name:?}: its name is too long\n\
                 help: record other volumes (--volume), or give it a shorter name"
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let mut writer = Writer::new(Vec::new(), Format::Native, &options)?;
        writer.write(&[], &volumes)?;
        Ok(Self {
            writer,
            volumes,
            drain,
            left_bytes: max_bytes.unwrap_or(u64::MAX),
            total: Recorded::default(),
        })
    }

    /// Sends parts at each tick. Returns the reason of the end.
    async fn until_its_end(
        &mut self,
        caller: &Caller,
        mut stop: watch::Receiver<bool>,
    ) -> &'static str {
        let mut interrupted = caller.interrupted.clone();
        // The header is sent at once: the client names its file then.
        if self.piece(caller).await.is_err() {
            return "no client takes it";
        }
        let mut silent = SILENT_TICKS;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return "the daemon stops",
                _ = interrupted.wait_for(|interrupted| *interrupted) => return "as asked",
                () = tokio::time::sleep(TICK) => {}
            }
            let ended = self.drain.ended();
            // Requests that arrive now are for the next tick.
            loop {
                let Ok(requests) = self.piece(caller).await else {
                    return "no client takes it";
                };
                if requests > 0 {
                    silent = 0;
                }
                if requests < PIECE_REQUESTS {
                    break;
                }
            }
            if ended {
                return "no recorded volume is served any more";
            }
            if self.left_bytes < PIECE_BYTES + RECORD_BYTES as u64 {
                return "it has the size that it may have";
            }
            silent += 1;
            if silent > SILENT_TICKS {
                silent = 0;
                let sign = Part::Trace(Recorded::default(), Vec::new());
                if caller.parts.send(sign).await.is_err() {
                    return "no client takes it";
                }
            }
        }
    }

    /// Sends a part, if there is one. Returns the number of requests in it.
    async fn piece(&mut self, caller: &Caller) -> Result<usize> {
        // The first one has the file's header.
        let mut bytes = std::mem::take(self.writer.get_mut());
        let besides_bytes = bytes.len() as u64 + PIECE_BYTES;
        let room = self.left_bytes.saturating_sub(besides_bytes) / RECORD_BYTES as u64;
        let limit = PIECE_REQUESTS.min(usize::try_from(room).unwrap_or(PIECE_REQUESTS));
        let frame = bytes.len();
        bytes.resize(frame + FRAME_BYTES, 0);
        let requests = self.drain.take(&mut bytes, limit);
        match requests {
            0 => bytes.truncate(frame),
            _ => native::complete_requests(&mut bytes[frame..]),
        }
        let lost = self.drain.lost() - self.total.lost;
        if bytes.is_empty() && (lost == 0 || room == 0) {
            return Ok(0);
        }
        self.writer.lost(lost)?;
        bytes.append(self.writer.get_mut());
        let recorded = Recorded {
            bytes: bytes.len() as u64,
            requests: requests as u64,
            lost,
        };
        self.left_bytes = self.left_bytes.saturating_sub(recorded.bytes);
        self.total.bytes += recorded.bytes;
        self.total.requests += recorded.requests;
        self.total.lost += recorded.lost;
        let sent = caller.parts.send(Part::Trace(recorded, bytes)).await;
        sent.map_err(|_| Error::new(ErrorKind::Disconnected, "the client has left"))?;
        Ok(requests)
    }

    fn in_words(&self, why: &str) -> String {
        let lost = match self.total.lost {
            0 => "none lost".to_owned(),
            lost => format!(
                "{} lost: the ring was full",
                human_count(lost, "more request")
            ),
        };
        format!(
            "the recording has ended, {why}: {} of {}, {lost}",
            human_count(self.total.requests, "request"),
            human_count(self.volumes.names().len() as u64, "volume"),
        )
    }
}
