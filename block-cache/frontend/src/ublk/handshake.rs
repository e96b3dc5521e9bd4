//! Creation of a device, takeover from a dead process, and removal.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_wire::ublk::{INFO_BYTES, Info, PARAMS_BYTES, Params, control, feature, state};

use super::driver::{Driver, Node as _, refusal};
use super::export::{Export, NEEDED};
use super::path;
use super::queue::{self, BUDGET_BYTES, QueueEvent, Start};
use crate::net::Spread;

/// Time limit of a command that waits for nothing.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Time limit of the start, during which the kernel reads the partition table.
const START: Duration = Duration::from_secs(60);
/// Time limit of the stop, during which requests in flight end.
const STOP: Duration = Duration::from_secs(30);
/// Time limit for queues to release the device.
const LET_GO: Duration = Duration::from_secs(10);
/// Time limits that tests vary.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For the end of a running process, which may be about to end.
    pub(super) running: Duration,
    /// For the kernel to detect a dead process. This takes at most twice the 30 s of its timer if
    /// the process had requests of all tags, and no time otherwise.
    pub(super) dead: Duration,
}

impl Patience {
    pub(super) const REAL: Self = Self {
        running: Duration::from_secs(5),
        dead: Duration::from_secs(90),
    };
}

/// A served device.
pub(super) struct Attached<D: Driver> {
    driver: D,
    device: u32,
    recovers: bool,
    queues: u16,
    events: mpsc::Receiver<QueueEvent>,
}

/// State of a device after an orderly shutdown of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It was removed.
    Removed,
    /// It is in use and waits for the next server.
    Waiting,
}

/// Creates the block device of `export`, or takes over the one of an earlier process. Blocks.
pub(super) fn attach<D: Driver>(
    driver: &D,
    export: &Arc<Export>,
    device: u32,
    spread: &Arc<Spread>,
    patience: Patience,
) -> Result<Attached<D>> {
    check_features(driver, device)?;
    check_reactors::<D>(spread)?;
    let begin = Instant::now();
    let mut logged = false;
    loop {
        let Some(info) = info(driver, device)? else {
            return add(driver, export, device, spread);
        };
        let whose = || format!("{} is not this volume's", path(device).display());
        if info.note != export.note {
            let remedy = match driver.is_running(info.server) {
                true => format!(
                    "process {} serves it\nhelp: choose another number",
                    info.server
                ),
                false => format!(
                    "no process serves it\n\
                     help: choose another number, or remove it with `forebay remove-ublk {device}`"
                ),
            };
            return Err(Error::new(ErrorKind::Busy, remedy).context(whose()));
        }
        let running = driver.is_running(info.server);
        match info.state {
            state::DEAD => {
                delete(driver, device)?;
                return add(driver, export, device, spread);
            }
            state::QUIESCED => match resume(driver, export, &info, spread) {
                // The dead process still has it open.
                Err(error) if error.kind() == ErrorKind::Busy => {}
                outcome => return outcome,
            },
            _ => {}
        }
        let bound = if running {
            patience.running
        } else {
            patience.dead
        };
        if begin.elapsed() >= bound {
            let what = match running {
                true => format!(
                    "process {} serves it already\nhelp: stop that process first",
                    info.server
                ),
                false => format!(
                    "process {} has ended, and the kernel did not release its device within \
                     {bound:?}",
                    info.server
                ),
            };
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if !std::mem::replace(&mut logged, true) {
            let path = path(device).display().to_string();
            tracing::info!(
                "{path}: waiting for the end of process {}, which serves it",
                info.server
            );
        }
        std::thread::sleep(Duration::from_millis(50).min(bound / 4));
    }
}

/// Removes a device that no process serves.
pub(super) fn remove<D: Driver>(driver: &D, device: u32) -> Result<()> {
    let found = info(driver, device)?;
    let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such device"))?;
    if found.state == state::LIVE && driver.is_running(found.server) {
        let what = format!(
            "process {} serves it\nhelp: stop that process first",
            found.server
        );
        return Err(Error::new(ErrorKind::Busy, what));
    }
    delete(driver, device)
}

fn check_features<D: Driver>(driver: &D, device: u32) -> Result<()> {
    let asked = driver.control(control::GET_FEATURES, device, 0, vec![0; 8], AT_ONCE)?;
    let (result, bytes) = asked;
    if matches!(-result, libc::EPERM | libc::EACCES) {
        return Err(refusal(result, "to report its features\nhelp: run as root"));
    }
    let features = bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    if result < 0 || features & NEEDED != NEEDED {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the ublk driver of this kernel is too old: Linux 6.5 or later is required",
        ));
    }
    Ok(())
}

/// Checks this before the start: a device whose takeover was interrupted cannot be taken over
/// again.
fn check_reactors<D: Driver>(spread: &Arc<Spread>) -> Result<()> {
    let reactors = spread.connections().len();
    let places: Vec<_> = std::iter::repeat_with(|| spread.place())
        .take(reactors)
        .collect();
    let (sender, events) = mpsc::channel();
    for place in &places {
        let sender = sender.clone();
        let check = move || _ = sender.send(D::check_reactor());
        place.reactor().call(check);
    }
    for _ in &places {
        events.recv_timeout(LET_GO).map_err(|_| silent())??;
    }
    Ok(())
}

fn silent() -> Error {
    let what = "a reactor did not answer";
    Error::new(ErrorKind::TimedOut, what)
}

/// Returns the driver's information on a device, or `None` if the number is unknown.
fn info<D: Driver>(driver: &D, device: u32) -> Result<Option<Info>> {
    let data = vec![0; INFO_BYTES];
    let (result, bytes) = driver.control(control::GET_INFO, device, 0, data, AT_ONCE)?;
    match result {
        0 => Ok(bytes.first_chunk().map(|bytes| Info::decode(*bytes))),
        result if -result == libc::ENODEV => Ok(None),
        result => Err(refusal(
            result,
            "to report on the device\nhelp: run as root",
        )),
    }
}

/// Executes a command without data.
fn execute<D: Driver>(
    driver: &D,
    number: u32,
    device: u32,
    argument: u64,
    patience: Duration,
    doing: &str,
) -> Result<()> {
    let (result, _) = driver.control(number, device, argument, Vec::new(), patience)?;
    match result {
        0.. => Ok(()),
        result => Err(refusal(result, doing)),
    }
}

/// Removes a device that is not in use.
fn delete<D: Driver>(driver: &D, device: u32) -> Result<()> {
    let doing = "to remove the device";
    let deleted = execute(driver, control::DELETE, device, 0, AT_ONCE, doing);
    deleted.map_err(|error| match error.kind() {
        ErrorKind::TimedOut => error.context("it has ended, but is still in use\nhelp: unmount it"),
        _ => error,
    })
}

fn add<D: Driver>(
    driver: &D,
    export: &Arc<Export>,
    device: u32,
    spread: &Arc<Spread>,
) -> Result<Attached<D>> {
    let wanted = export.info(device, spread.connections().len());
    let data = wanted.encode().to_vec();
    let (result, bytes) = driver.control(control::ADD, device, 0, data, AT_ONCE)?;
    if result < 0 {
        let doing = "to create the device\n\
                     help: run as root, and choose a number that is not in use";
        return Err(refusal(result, doing));
    }
    let made = bytes
        .first_chunk()
        .map_or(wanted, |bytes| Info::decode(*bytes));
    let served = (|| {
        if made.features & wanted.features != wanted.features {
            let what = "the driver did not grant a feature that it reported";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let params = export.params().encode().to_vec();
        let (result, _) = driver.control(control::SET_PARAMS, device, 0, params, AT_ONCE)?;
        if result < 0 {
            return Err(refusal(result, "the size and blocks of the volume"));
        }
        let attached = serve(driver, export, &made, spread)?;
        let process = u64::from(std::process::id());
        execute(
            driver,
            control::START,
            device,
            process,
            START,
            "to start the device",
        )?;
        Ok(attached)
    })();
    if served.is_err() {
        // The queues end with the device, and the error is already reported.
        let _ = delete(driver, device);
    }
    served
}

fn resume<D: Driver>(
    driver: &D,
    export: &Arc<Export>,
    info: &Info,
    spread: &Arc<Spread>,
) -> Result<Attached<D>> {
    let device = info.device;
    let mut data = vec![0; PARAMS_BYTES];
    data[..4].copy_from_slice(&(PARAMS_BYTES as u32).to_ne_bytes());
    let (result, bytes) = driver.control(control::GET_PARAMS, device, 0, data, AT_ONCE)?;
    if result < 0 {
        return Err(refusal(result, "to report the parameters of the device"));
    }
    let made = bytes.first_chunk().and_then(|bytes| Params::decode(*bytes));
    let made = made.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it has no parameters"));
    let fits = made.and_then(|made| export.check_resume(info, &made));
    fits.context(|| {
        format!(
            "it waits for a process, and cannot be taken over\n\
             help: unmount its file systems, then remove it with `forebay remove-ublk {device}`: \
             its remaining users get errors"
        )
    })?;
    execute(
        driver,
        control::START_RECOVERY,
        device,
        0,
        AT_ONCE,
        "a second takeover of the device, if a process died in the first\n\
         help: remove it with `forebay remove-ublk`",
    )?;
    let attached = serve(driver, export, info, spread)?;
    let process = u64::from(std::process::id());
    // The device is not removed if this fails: its users wait, and another attempt may succeed.
    let end = execute(
        driver,
        control::END_RECOVERY,
        device,
        process,
        START,
        "to resume the device",
    );
    // Here, busy means that the device has left that state, so waiting would be useless.
    end.map_err(|error| Error::with_source(ErrorKind::Io, "taking it over", error))?;
    tracing::info!(
        "{}: taken over from process {}, with its unanswered requests",
        path(device).display(),
        info.server
    );
    Ok(attached)
}

/// Returns a queue's share of the device's memory: buffer sizes are powers of two.
fn budget_bytes(info: &Info) -> u64 {
    let share = BUDGET_BYTES / u64::from(info.queues.max(1)).next_power_of_two();
    share.max(u64::from(info.max_bytes).next_power_of_two())
}

/// Starts the queues.
fn serve<D: Driver>(
    driver: &D,
    export: &Arc<Export>,
    info: &Info,
    spread: &Arc<Spread>,
) -> Result<Attached<D>> {
    let node = driver.open(info.device)?;
    let (sender, events) = mpsc::channel();
    for queue in 0..info.queues {
        let place = spread.place();
        let reactor = place.reactor();
        let start = Start {
            device: info.device,
            queue,
            depth: info.depth,
            node: node.duplicate()?,
            volume: export.volume.clone(),
            recovers: info.features & feature::USER_RECOVERY != 0,
            budget_bytes: budget_bytes(info),
            place,
            events: sender.clone(),
        };
        reactor.call(move || queue::start(start));
    }
    drop(sender);
    // Waits for each queue, even after a failure. The driver does not end commands that arrive
    // after the end of the device, and so the device could not be removed.
    let (mut begun, mut outcome) = (0, Ok(()));
    while begun < info.queues {
        match events.recv_timeout(LET_GO) {
            Ok(QueueEvent::Begun(result)) => {
                begun += 1;
                outcome = outcome.and(result);
            }
            // A refused queue has ended already.
            Ok(QueueEvent::Ended) if outcome.is_err() => {}
            Ok(QueueEvent::Ended) | Err(_) => return Err(silent()),
        }
    }
    outcome?;
    Ok(Attached {
        driver: driver.clone(),
        device: info.device,
        recovers: info.features & feature::USER_RECOVERY != 0,
        queues: info.queues,
        events,
    })
}

impl<D: Driver> Attached<D> {
    pub(super) const fn device(&self) -> u32 {
        self.device
    }

    /// Returns whether the block device is claimed: by a mounted file system, a mapping or swap
    /// space.
    pub(super) fn in_use(&self) -> Result<bool> {
        Ok(self.driver.claim(self.device)?.is_none())
    }

    /// Shuts the device down: it is removed, or it waits if it can and is in use. Blocks with a
    /// time limit.
    pub(super) fn detach(&self) -> Result<Left> {
        let claim = self.driver.claim(self.device)?;
        if claim.is_none() && self.recovers {
            return Ok(Left::Waiting);
        }
        let device = self.device;
        execute(
            &self.driver,
            control::STOP,
            device,
            0,
            STOP,
            "to stop the device",
        )?;
        let begin = Instant::now();
        let mut left = self.queues;
        while left > 0 {
            let patience = LET_GO.saturating_sub(begin.elapsed());
            match self.events.recv_timeout(patience) {
                Ok(_) => left -= 1,
                Err(_) => {
                    let what = "a queue did not release the device";
                    return Err(Error::new(ErrorKind::TimedOut, what));
                }
            }
        }
        drop(claim);
        delete(&self.driver, device)?;
        Ok(Left::Removed)
    }
}
