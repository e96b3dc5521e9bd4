//! Tests of whole volumes over a store in memory.

mod failures;
mod opening;
mod requests;
mod uploads;
mod verification;

use std::future::Future;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt as _, Buf, Result};
use forebay_io::rt;

use crate::fault::Faults;
use crate::limits::Limits;
use crate::options::{Access, Options};
use crate::store::Store;
use crate::volume::ObjectVolume;

const MIB: u64 = 1 << 20;

fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    rt::block_on_in_order(future)
}

/// Options of a volume of `size` bytes that is served.
fn sized(size: u64) -> Options {
    Options {
        size_bytes: Some(size),
        ..Options::new(Access::Serve)
    }
}

fn snapshot(name: &str) -> Options {
    Options {
        snapshot: Some(name.to_owned()),
        ..Options::new(Access::Look)
    }
}

async fn open(store: &Rc<impl Store + 'static>, options: Options) -> Result<Rc<ObjectVolume>> {
    ObjectVolume::open(Rc::clone(store) as Rc<dyn Store>, options).await
}

async fn open_limited(
    store: &Rc<impl Store + 'static>,
    options: Options,
    limits: Limits,
) -> Result<Rc<ObjectVolume>> {
    let store = Rc::clone(store) as Rc<dyn Store>;
    ObjectVolume::open_with(store, options, limits, Faults::default()).await
}

async fn read(volume: &ObjectVolume, offset: u64, len: u64) -> Result<Vec<u8>> {
    let buf = Buf::scratch(len as usize);
    buf.fill(0xa5);
    volume.read(offset, buf.clone()).await?;
    Ok(buf.to_vec())
}

/// Returns a buffer of `len` times `byte`.
fn filled(len: u64, byte: u8) -> Buf {
    Buf::copied(&vec![byte; len as usize])
}

/// Returns data that do not compress.
fn noise(len: u64, seed: u64) -> Buf {
    let rng = forebay_io::sim::Rng::new(seed);
    let words = (0..len / 8).flat_map(|_| rng.draw().to_le_bytes());
    Buf::copied(&words.collect::<Vec<_>>())
}
