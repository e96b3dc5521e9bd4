//! Two nodes use one file, with one copy of each page in memory. Here the nodes and the directory
//! are in one process, so that the example needs no preparation. They may be in any processes of
//! the machine.
//!
//! `cargo run -p forebay-cluster --example shared_file`

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_block::Result;
use forebay_cluster::command;
use forebay_cluster::pool::Pool;
use forebay_cluster::server::{self, Server};
use forebay_cluster::{Node, NodeId, Options, PAGE_BYTES};

/// Runs the example in its own directories.
pub(crate) fn main() -> Result<()> {
    let name = format!("forebay-example-{}", std::process::id());
    let (source, pool) = (
        std::env::temp_dir().join(&name),
        PathBuf::from("/dev/shm").join(&name),
    );
    std::fs::create_dir_all(&source)?;
    let result = share(&source, &pool);
    std::fs::remove_dir_all(&source)?;
    std::fs::remove_dir_all(&pool)?;
    result
}

fn share(source: &Path, pool: &Path) -> Result<()> {
    let directory = Server::open(server::Options::new(source, pool, 1024))?;
    // It serves until the process ends.
    std::thread::spawn(move || directory.run());

    let node = |number| {
        let id = NodeId::new(number).expect("a number below 32");
        Node::join(Options::new(pool, id, 256))
    };
    let (one, other) = (node(1)?, node(2)?);
    let written = one.create("greeting")?;
    written.write_at(0, b"Hello from node 1")?;

    // Visible at once, without a message: there is one copy, and both nodes map it.
    let read = other.open("greeting")?;
    let mut text = [0; 17];
    read.read_at(0, &mut text)?;
    assert_eq!(&text, b"Hello from node 1");

    // A view is the copy itself.
    let view = read.map(0)?;
    written.write_at(11, b"NODE")?;
    let mut words = [0; 24];
    view.load(0, &mut words);
    assert_eq!(&words[..17], b"Hello from NODE 1");
    drop(view);

    // Now durable in the source.
    written.fsync()?;
    assert_eq!(
        std::fs::read(source.join("greeting"))?,
        b"Hello from NODE 1"
    );
    println!(
        "{} bytes a page, one copy; node 2 counted {:?}",
        PAGE_BYTES,
        other.counts()
    );

    // Both nodes leave. The pool may be removed after the directory has noticed.
    drop((written, read, one, other));
    while !command::status(&Pool::new(pool)?)?.nodes.is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
