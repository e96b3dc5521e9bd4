//! The exclusive lock of an image: who holds it, and how it is acquired.
//!
//! A holder that lives keeps a watch on the image. The watch of one that has ended lapses after 30
//! s (`osd_client_watch_timeout`), and only then does librbd take the lock from it. A start waits
//! for that, with one exception. The holder may be a process of this machine that has ended, by the
//! note that it left in the image's metadata. Its lock is broken at once. In both cases the former
//! holder is on the cluster's blocklist before this client writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::process::Process;

use super::image::{Image, NOTE, Owner};

/// Pause between two looks at a lock.
const PAUSE: Duration = Duration::from_millis(250);

/// Acquires the lock of an image, unless a live client holds it. Waits up to `lapse` to see whether
/// a holder lives. `abandoned` ends the wait.
///
/// # Errors
/// `Busy` with the name of the holder.
pub(super) fn acquire(image: &Image, lapse: Duration, abandoned: &AtomicBool) -> Result<()> {
    if let Some(owner) = await_free(image, lapse, abandoned)? {
        tracing::warn!(
            "RBD image {}: the process of this machine that held its lock has ended: the lock is \
             broken",
            image.name()
        );
        image.break_lock(&owner)?;
    }
    image.acquire()?;
    if let (Some(owner), Some(process)) = (image.owner()?, this_process()) {
        image.set_note(NOTE, Some(&format!("{} {process}", owner.address)))?;
    }
    Ok(())
}

/// Waits up to `lapse` until no live client holds the lock of an image. Changes nothing. Returns
/// the holder if it was a process of this machine that has ended.
///
/// # Errors
/// As [`acquire`].
pub(super) fn await_free(
    image: &Image,
    lapse: Duration,
    abandoned: &AtomicBool,
) -> Result<Option<Owner>> {
    let begin = Instant::now();
    let mut warned = false;
    loop {
        let Some(owner) = image.owner()? else {
            return Ok(None);
        };
        let note = image.note(NOTE);
        if is_of_ended_process(&owner, note.as_deref()) {
            return Ok(Some(owner));
        }
        // Without a watch the holder has ended.
        if owner.client.is_none() {
            return Ok(None);
        }
        let named = in_words(&owner, note.as_deref());
        if begin.elapsed() >= lapse {
            let what = format!(
                "its lock is held by {named}\n\
                 help: stop that client; `rbd lock ls` and `rbd status` show it"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if !std::mem::replace(&mut warned, true) {
            tracing::warn!(
                "RBD image {}: {named} holds its lock: waiting up to {lapse:?} to see whether that \
                 client lives",
                image.name()
            );
        }
        if abandoned.load(Ordering::Relaxed) {
            return Err(ErrorKind::ShuttingDown.into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the client that holds the lock of an image, in words, for one that has lost it.
pub(super) fn successor(image: &Image) -> Result<Option<String>> {
    let Some(owner) = image.owner()? else {
        return Ok(None);
    };
    let note = image.note(NOTE);
    Ok(Some(in_words(&owner, note.as_deref())))
}

/// Returns the holder of a lock for a message. The note names it better than its address does.
fn in_words(owner: &Owner, note: Option<&str>) -> String {
    match (owner.client, host_in(owner, note)) {
        (Some(client), Some((host, process))) => {
            format!("client.{client} (forebay, process {process} of {host})")
        }
        (Some(client), None) => format!("client.{client} at {}", owner.address),
        (None, _) => owner.address.clone(),
    }
}

/// Returns this process for a note: host, boot, PID namespace, number and start. `None` if the
/// kernel does not report one of them.
fn this_process() -> Option<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let id = std::process::id();
    let start = Process::open(id).ok()?.started();
    let host = host.trim().replace(char::is_whitespace, "-");
    Some(format!("{host} {} {id} {start}", place()?))
}

/// Returns boot and PID namespace of this process: numbers of processes mean others elsewhere.
fn place() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// Returns host and process of the holder, if the note is the holder's.
fn host_in<'a>(owner: &Owner, note: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let [address, host, _, _, process, _] = fields(note?)?;
    (address == owner.address).then_some((host, process))
}

/// Returns whether the note is the holder's, and the holder was a process that could be seen from
/// here, and has ended.
fn is_of_ended_process(owner: &Owner, note: Option<&str>) -> bool {
    let Some([address, _, boot, namespace, process, start]) = note.and_then(fields) else {
        return false;
    };
    if address != owner.address || place() != Some(format!("{boot} {namespace}")) {
        return false;
    }
    let (Ok(process), Ok(start)) = (process.parse(), start.parse::<u64>()) else {
        return false;
    };
    match Process::open(process) {
        Ok(other) => other.started() != start || other.has_ended(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

fn fields(note: &str) -> Option<[&str; 6]> {
    let fields: Vec<_> = note.split(' ').collect();
    fields.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ended_process_of_this_place_has_ended() {
        let owner = Owner {
            address: "10.0.0.1:0/7".to_owned(),
            client: Some(7),
        };
        let has_ended = |note: &str| is_of_ended_process(&owner, Some(note));
        let this = this_process().expect("it is known");
        assert!(!has_ended(&format!("10.0.0.1:0/7 {this}")), "it lives");
        let (rest, start) = this.rsplit_once(' ').expect("fields");
        let other: u64 = start.parse::<u64>().expect("a number") + 1;
        let earlier = format!("{rest} {other}");
        assert!(has_ended(&format!("10.0.0.1:0/7 {earlier}")));
        assert!(
            !has_ended(&format!("10.0.0.1:0/8 {earlier}")),
            "another's note"
        );
        let elsewhere = earlier.replace("pid:[", "pid:[1");
        assert!(!has_ended(&format!("10.0.0.1:0/7 {elsewhere}")));
        assert!(!has_ended("10.0.0.1:0/7 damaged"));
        let note = format!("10.0.0.1:0/7 {this}");
        let host = host_in(&owner, Some(&note)).expect("its note");
        assert_eq!(host.1, std::process::id().to_string());
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").spawn().expect("starts");
        let of_child = Process::open(child.id()).map(|child| child.started());
        child.kill().expect("it lives");
        child.wait().expect("it ended");
        let place = place().expect("it is known");
        let start = of_child.expect("it was there");
        let ended = format!("10.0.0.1:0/7 host {place} {} {start}", child.id());
        assert!(has_ended(&ended));
    }
}
