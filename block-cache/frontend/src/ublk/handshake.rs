//! How a device comes to be, is taken over from a process that died, and goes.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_wire::ublk::{INFO_BYTES, Info, PARAMS_BYTES, Params, control, feature, state};

use super::driver::{Driver, Node as _, refusal};
use super::export::{Export, NEEDED};
use super::path;
use super::queue::{self, BUDGET_BYTES, Start, Told};
use crate::net::Spread;

/// Time that a command may take which waits for nobody.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Time that the start may take, in which the kernel reads the partition table.
const START: Duration = Duration::from_secs(60);
/// Time that the end may take, in which requests in flight end.
const STOP: Duration = Duration::from_secs(30);
/// Time that queues have to let go of the device.
const LET_GO: Duration = Duration::from_secs(10);
/// Times that vary in tests.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For a process that runs, which may be about to end.
    pub(super) running: Duration,
    /// For the kernel to see that a process has died: at most twice the 30 s of its timer where the dead one had
    /// requests of all tags, else at once.
    pub(super) dead: Duration,
}

impl Patience {
    pub(super) const REAL: Self = Self {
        running: Duration::from_secs(5),
        dead: Duration::from_secs(90),
    };
}

/// A device, served.
pub(super) struct Attached<D: Driver> {
    driver: D,
    device: u32,
    recovers: bool,
    queues: u16,
    told: mpsc::Receiver<Told>,
}

/// What becomes of a device when its server leaves in an orderly way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It is gone.
    Removed,
    /// It is in use and waits for the next server.
    Waiting,
}

/// Makes `export` a block device, or takes over the one that a process before made of it. Blocks.
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
    let mut told = false;
    loop {
        let Some(info) = info(driver, device)? else {
            return add(driver, export, device, spread);
        };
        let whose = || format!("{} is not this volume's", path(device).display());
        if info.note != export.note {
            let remedy = match driver.is_running(info.server) {
                true => format!("process {} serves it: choose another number", info.server),
                false => format!(
                    "no process serves it: choose another number, or remove it with `forebay remove-ublk {device}`"
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
                    "process {} serves it already: stop that one first",
                    info.server
                ),
                false => format!(
                    "process {} has ended, and the kernel did not take the device from it within {bound:?}",
                    info.server
                ),
            };
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if !std::mem::replace(&mut told, true) {
            let path = path(device).display().to_string();
            tracing::info!(
                "{path}: waiting for the end of process {}, which serves it",
                info.server
            );
        }
        std::thread::sleep(Duration::from_millis(50).min(bound / 4));
    }
}

/// Ends a device that no process serves.
pub(super) fn remove<D: Driver>(driver: &D, device: u32) -> Result<()> {
    let found = info(driver, device)?;
    let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such device"))?;
    if found.state == state::LIVE && driver.is_running(found.server) {
        let what = format!("process {} serves it: stop that one first", found.server);
        return Err(Error::new(ErrorKind::Busy, what));
    }
    delete(driver, device)
}

fn check_features<D: Driver>(driver: &D, device: u32) -> Result<()> {
    let asked = driver.control(control::GET_FEATURES, device, 0, vec![0; 8], AT_ONCE)?;
    let (result, bytes) = asked;
    if matches!(-result, libc::EPERM | libc::EACCES) {
        return Err(refusal(result, "to tell its features (run as root)"));
    }
    let features = bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    if result < 0 || features & NEEDED != NEEDED {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the ublk driver of this kernel is too old: Linux 6.5 or later is needed",
        ));
    }
    Ok(())
}

/// Before anything is begun: a device whose takeover has begun and not ended cannot be taken over by another process.
fn check_reactors<D: Driver>(spread: &Arc<Spread>) -> Result<()> {
    let reactors = spread.connections().len();
    let places: Vec<_> = std::iter::repeat_with(|| spread.place())
        .take(reactors)
        .collect();
    let (tell, told) = mpsc::channel();
    for place in &places {
        let tell = tell.clone();
        let check = move || _ = tell.send(D::check_reactor());
        place.reactor().call(check);
    }
    for _ in &places {
        told.recv_timeout(LET_GO).map_err(|_| silent())??;
    }
    Ok(())
}

fn silent() -> Error {
    let what = "a reactor did not answer";
    Error::new(ErrorKind::TimedOut, what)
}

/// A device as the driver knows it; none if it knows none of the number.
fn info<D: Driver>(driver: &D, device: u32) -> Result<Option<Info>> {
    let data = vec![0; INFO_BYTES];
    let (result, bytes) = driver.control(control::GET_INFO, device, 0, data, AT_ONCE)?;
    match result {
        0 => Ok(bytes.first_chunk().map(|bytes| Info::decode(*bytes))),
        result if -result == libc::ENODEV => Ok(None),
        result => Err(refusal(result, "to tell of the device (run as root)")),
    }
}

/// Gives a command that has no data.
fn tell<D: Driver>(
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

/// Removes a device, which nobody may be using any more.
fn delete<D: Driver>(driver: &D, device: u32) -> Result<()> {
    let doing = "to remove the device";
    let deleted = tell(driver, control::DELETE, device, 0, AT_ONCE, doing);
    deleted.map_err(|error| match error.kind() {
        ErrorKind::TimedOut => {
            error.context("it has ended, but its last user has to let go of it (unmount it)")
        }
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
        let doing = "to make the device (is the number taken? is this root?)";
        return Err(refusal(result, doing));
    }
    let made = bytes
        .first_chunk()
        .map_or(wanted, |bytes| Info::decode(*bytes));
    let served = (|| {
        if made.features & wanted.features != wanted.features {
            let what = "the driver did not grant what it said it could";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let params = export.params().encode().to_vec();
        let (result, _) = driver.control(control::SET_PARAMS, device, 0, params, AT_ONCE)?;
        if result < 0 {
            return Err(refusal(result, "the size and blocks of the volume"));
        }
        let attached = serve(driver, export, &made, spread)?;
        let process = u64::from(std::process::id());
        tell(
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
        // Queues end with it; what is wrong is told already.
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
        return Err(refusal(result, "to tell what the device is like"));
    }
    let made = bytes.first_chunk().and_then(|bytes| Params::decode(*bytes));
    let made = made.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it has no parameters"));
    let fits = made.and_then(|made| export.check_resume(info, &made));
    fits.context(|| {
        format!(
            "it waits with its users, and cannot go on: unmount what can be unmounted, then remove it with `forebay \
             remove-ublk {device}`, by which users that are left get errors"
        )
    })?;
    tell(
        driver,
        control::START_RECOVERY,
        device,
        0,
        AT_ONCE,
        "a second takeover of the device, if a process died in the first: remove it with `forebay remove-ublk`",
    )?;
    let attached = serve(driver, export, info, spread)?;
    let process = u64::from(std::process::id());
    // Not removed if it fails: its users wait, and another try may do better.
    let end = tell(
        driver,
        control::END_RECOVERY,
        device,
        process,
        START,
        "to go on with it",
    );
    // Busy means here that it is not in that state any more, which is nothing to wait for.
    end.map_err(|error| Error::with_source(ErrorKind::Io, "taking it over", error))?;
    tracing::info!(
        "{}: taken over from process {}, with what that one had not answered",
        path(device).display(),
        info.server
    );
    Ok(attached)
}

/// A queue's share of the memory of a device: buffers come in powers of two.
fn budget_bytes(info: &Info) -> u64 {
    let share = BUDGET_BYTES / u64::from(info.queues.max(1)).next_power_of_two();
    share.max(u64::from(info.max_bytes).next_power_of_two())
}

/// Begins the queues.
fn serve<D: Driver>(
    driver: &D,
    export: &Arc<Export>,
    info: &Info,
    spread: &Arc<Spread>,
) -> Result<Attached<D>> {
    let node = driver.open(info.device)?;
    let (tell, told) = mpsc::channel();
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
            tell: tell.clone(),
        };
        reactor.call(move || queue::start(start));
    }
    drop(tell);
    // Each of them, also after a failure: the driver does not end commands that come after the end of the device, and
    // the device could not be removed.
    let (mut begun, mut outcome) = (0, Ok(()));
    while begun < info.queues {
        match told.recv_timeout(LET_GO) {
            Ok(Told::Begun(result)) => {
                begun += 1;
                outcome = outcome.and(result);
            }
            // One that was refused has ended already.
            Ok(Told::Ended) if outcome.is_err() => {}
            Ok(Told::Ended) | Err(_) => return Err(silent()),
        }
    }
    outcome?;
    Ok(Attached {
        driver: driver.clone(),
        device: info.device,
        recovers: info.features & feature::USER_RECOVERY != 0,
        queues: info.queues,
        told,
    })
}

impl<D: Driver> Attached<D> {
    pub(super) const fn device(&self) -> u32 {
        self.device
    }

    /// Whether somebody has the block device for himself: a mounted file system, a mapping, swap space.
    pub(super) fn in_use(&self) -> Result<bool> {
        Ok(self.driver.claim(self.device)?.is_none())
    }

    /// Leaves the device in an orderly way: it is removed, or waits if it can and is in use. Blocks, but not for ever.
    pub(super) fn detach(&self) -> Result<Left> {
        let claim = self.driver.claim(self.device)?;
        if claim.is_none() && self.recovers {
            return Ok(Left::Waiting);
        }
        let device = self.device;
        tell(
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
            match self.told.recv_timeout(patience) {
                Ok(_) => left -= 1,
                Err(_) => {
                    let what = "a queue did not let go of the device";
                    return Err(Error::new(ErrorKind::TimedOut, what));
                }
            }
        }
        drop(claim);
        delete(&self.driver, device)?;
        Ok(Left::Removed)
    }
}
