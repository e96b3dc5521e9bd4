//! Object stores: a directory, and a remote store with a real S3 server.

mod contract;
mod directory;
#[cfg(feature = "remote")]
mod remote;

use std::path::Path;

use forebay_io::{Engine, Reactor};

/// Runs a test on a reactor.
fn run<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(test)
}

fn here() -> &'static Path {
    Path::new("/")
}
