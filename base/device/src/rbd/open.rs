//! Opening and closing of an image, on threads that may block.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;

use forebay_block::{Context as _, Error, ErrorKind, Op, Result};
use forebay_io::answer::Answer;
use forebay_io::rt;

use super::api::Api;
use super::image::Image;
use super::port::Port;
use super::{Access, Address, Times, lock, request};

/// Outcome of a request to an image that has shrunk: `EIO`.
const CUT: i64 = -5;

/// An open image. Its drop closes the image on another thread.
pub(super) struct Opened {
    pub(super) api: &'static Api,
    pub(super) port: Arc<Port>,
    /// Size at the open, bytes.
    pub(super) size_bytes: u64,
    /// Identifiers of cluster, pool, image and snapshot.
    pub(super) identifiers: String,
    pub(super) has_zeroes: bool,
    is_locked: bool,
    /// The image, until the drop.
    image: Option<Arc<Image>>,
}

impl Opened {
    fn image(&self) -> &Arc<Image> {
        self.image.as_ref().expect("it is open")
    }

    /// Notes that another client has the lock.
    pub(super) fn forget_lock(&self) {
        self.image().forget_lock();
    }

    /// Starts the threads of the image.
    ///
    /// # Errors
    /// The system's, if it has no thread.
    pub(super) fn start(&self, keep: Duration) -> Result<()> {
        let (port, image) = (Arc::clone(&self.port), Arc::clone(self.image()));
        if !self.is_locked {
            // A snapshot keeps its size, and nothing is written to an image without the lock.
            return spawn("rbd-send", move || send(&port, &image, |_| false));
        }
        let largest = Arc::new(AtomicU64::new(self.size_bytes));
        let known = Arc::clone(&largest);
        spawn("rbd-send", move || {
            send(&port, &image, |port| has_shrunk(port, &image, &known));
        })?;
        let (port, image) = (Arc::clone(&self.port), Arc::clone(self.image()));
        spawn("rbd-lock", move || {
            watch_lock_and_size(&port, &image, &largest, keep)
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.port.close();
        let image = self.image.take();
        // Without a thread, the close must block this one.
        let _ = spawn("rbd-close", move || drop(image));
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).context(|| format!("a thread {name}"))
}

/// Starts requests until the image is closed and none is in flight. Starts no change to an image
/// that has shrunk: librbd would cut a change off at the end, and report success.
fn send(port: &Arc<Port>, image: &Image, has_shrunk: impl Fn(&Port) -> bool) {
    let mut batch = VecDeque::new();
    loop {
        port.next(&mut batch);
        if batch.is_empty() {
            return;
        }
        let is_whole = !has_shrunk(port);
        for command in batch.drain(..) {
            match is_whole || command.op == Op::Read {
                true => request::start(image, command, port),
                false => port.ended(command.token, CUT),
            }
        }
    }
}

/// Reports that an image is longer or shorter than the `largest` size seen, bytes. Returns whether
/// it is shorter.
fn has_shrunk(port: &Port, image: &Image, largest: &AtomicU64) -> bool {
    // Loaded before the question: meanwhile, another thread may see a longer image.
    let before = largest.load(Ordering::Acquire);
    match image.size_bytes() {
        Ok(now) if now < before => {
            port.report_changes(|changes| changes.shrunk_to = Some(now));
            true
        }
        Ok(now) if now > before => {
            largest.fetch_max(now, Ordering::AcqRel);
            port.report_changes(|changes| changes.grown_to = Some(now));
            false
        }
        // The requests themselves report what is wrong with the cluster.
        Ok(_) | Err(_) => false,
    }
}

/// Asks the cluster for the lock and the size of the image each `pause`, and reports changes. Ends
/// when the image is closed or has shrunk, or when the lock is lost.
fn watch_lock_and_size(port: &Port, image: &Image, largest: &AtomicU64, pause: Duration) {
    let mut doubts = 0;
    while port.sleep_while_open(pause) {
        if has_shrunk(port, image, largest) {
            return;
        }
        // librbd changes the lock's cookie when it has connected to the cluster once more. A
        // question at that moment finds no lock, and the next one does.
        doubts = match image.is_owner() {
            Ok(false) => doubts + 1,
            Ok(true) | Err(_) => 0,
        };
        if doubts == 2 {
            return port.report_changes(|changes| changes.is_lock_lost = true);
        }
    }
}

/// Sets a flag when it is dropped.
struct Abandon(Arc<AtomicBool>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Opens an image and acquires its lock, within [`Times::open`].
pub(super) async fn open(
    address: &Address,
    access: Access,
    load: fn() -> Result<&'static Api>,
    times: Times,
) -> Result<Opened> {
    let (answer, abandon) = (Answer::default(), Abandon(Arc::default()));
    let work = {
        let (answer, address) = (answer.clone(), address.clone());
        let abandoned = Arc::clone(&abandon.0);
        move || {
            answer.give(load().and_then(|api| open_here(api, &address, access, times, &abandoned)))
        }
    };
    spawn("rbd-open", work)?;
    let opened = rt::at_most(times.open, answer.get()).await;
    opened.unwrap_or_else(|| {
        let what = format!(
            "the cluster has not opened it within {:?}\n\
             help: see `ceph -c {} health detail`",
            times.open,
            address.conf.display()
        );
        Err(Error::new(ErrorKind::TimedOut, what))
    })
}

fn open_here(
    api: &'static Api,
    address: &Address,
    access: Access,
    times: Times,
    abandoned: &AtomicBool,
) -> Result<Opened> {
    // librbd reports no lock's holder of an image that is open for reading alone. It acquires the
    // lock only for a change, which a look never sends.
    let image = Image::open(api, address)?;
    let is_locked = address.snapshot.is_none() && access == Access::Serve;
    if is_locked {
        lock::acquire(&image, times.lapse, abandoned)?;
    } else if address.snapshot.is_none() {
        lock::await_free(&image, times.lapse, abandoned)?;
    }
    Ok(Opened {
        api,
        port: Arc::default(),
        size_bytes: image.size_bytes()?,
        identifiers: image.identifiers(address.snapshot.as_deref())?,
        has_zeroes: image.has_zeroes(),
        is_locked,
        image: Some(Arc::new(image)),
    })
}

/// Returns the client that holds the lock, in words, by a connection that is on no blocklist.
/// Returns `None` if none does.
///
/// # Errors
/// Those of the cluster; `TimedOut` if it does not answer within `limit`.
pub(super) async fn successor(
    api: &'static Api,
    address: &Address,
    limit: Duration,
) -> Result<Option<String>> {
    let answer = Answer::default();
    let work = {
        let (answer, address) = (answer.clone(), address.clone());
        move || {
            let image = Image::open(api, &address);
            answer.give(image.and_then(|image| lock::successor(&image)));
        }
    };
    spawn("rbd-look", work)?;
    let found = rt::at_most(limit, answer.get()).await;
    found.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))
}
