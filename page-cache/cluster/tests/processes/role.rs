//! Behaviour of this program when a test has started it as a process of a cluster. Otherwise the
//! test in here does nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_cluster::server::{self, Server};
use forebay_cluster::{File, Node, Options, PAGE_BYTES, Placement};

use super::cluster::node_id;

/// Pages of the file that nodes read and write.
pub(crate) const PAGES: u64 = 48;
/// Number of writing nodes: each writes the pages whose number modulo this is its own.
pub(crate) const WRITERS: u64 = 3;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by who starts this"))
}

fn number(name: &str) -> u64 {
    variable(name).parse().expect("a number")
}

#[test]
fn role() {
    match std::env::var("FOREBAY_ROLE").as_deref() {
        Ok("directory") => directory(),
        Ok("node") => node(),
        Ok(other) => panic!("no role {other}"),
        Err(_) => {}
    }
}

fn say(line: &str) {
    // The test harness may have begun a line.
    println!("\n@ {line}");
}

fn directory() {
    let pages = u32::try_from(number("FOREBAY_PAGES")).expect("few");
    let (source, pool) = (variable("FOREBAY_SOURCE"), variable("FOREBAY_POOL"));
    let mut options = server::Options::new(&PathBuf::from(source), &PathBuf::from(pool), pages);
    options.lease = Duration::from_millis(number("FOREBAY_LEASE_MS"));
    options.rescue = Duration::from_millis(number("FOREBAY_RESCUE_MS"));
    options.placement = match variable("FOREBAY_PLACEMENT").as_str() {
        "node" => Some(Placement::Node),
        "pool" => Some(Placement::Pool),
        _ => None,
    };
    let server = Server::open(options).expect("it opens");
    say("ready");
    server.run().expect("it runs until it is killed");
}

/// Returns the words of a page: its number, and how often it was written.
pub(crate) fn word(page: u64, count: u64) -> u64 {
    (page + 1) << 40 | count
}

/// Returns how often the page was written, according to the least written word. Every word must
/// name this page, or nothing.
pub(crate) fn count(page: u64, bytes: &[u8]) -> u64 {
    let words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8")));
    let counts = words.map(|word| {
        assert!(
            word == 0 || word >> 40 == page + 1,
            "page {page} shows {word:x}, of another"
        );
        word & ((1 << 40) - 1)
    });
    counts.min().expect("a page has words")
}

pub(crate) fn read(file: &File, page: u64) -> forebay_block::Result<u64> {
    let mut bytes = [0; PAGE_BYTES];
    file.read_at(page * PAGE_BYTES as u64, &mut bytes)?;
    Ok(count(page, &bytes))
}

pub(crate) fn write(file: &File, page: u64, count: u64) -> forebay_block::Result<()> {
    let bytes: Vec<u8> = word(page, count).to_le_bytes().repeat(PAGE_BYTES / 8);
    file.write_at(page * PAGE_BYTES as u64, &bytes)
}

/// Writes its own pages and reads all, until its input ends. Prints `F page count` for acknowledged
/// flushes.
fn node() {
    let own = number("FOREBAY_NODE");
    let mut options = Options::new(
        &PathBuf::from(variable("FOREBAY_POOL")),
        node_id(u8::try_from(own).expect("few")),
        u32::try_from(number("FOREBAY_PAGES")).expect("few"),
    );
    options.patience = Duration::from_secs(30);
    let node = Node::join(options).expect("it joins");
    say("joined");
    let (stop, file) = (AtomicBool::new(false), node.open("data").ok());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut line = String::new();
            while std::io::stdin()
                .read_line(&mut line)
                .is_ok_and(|count| count > 0)
            {}
            stop.store(true, Ordering::Relaxed);
        });
        // Without the file, the node only stays connected.
        let Some(file) = &file else {
            return;
        };
        scope.spawn(|| {
            let mut page = own;
            while !stop.load(Ordering::Relaxed) {
                page = (page * 7 + 3) % PAGES;
                read(file, page).expect("a page can be read");
                // Lets other processes run on a small machine.
                std::thread::yield_now();
            }
        });
        write_all(file, own, &stop);
    });
    say("stopped");
    drop((file, node));
    say("left");
    // A process that continues after its node has left.
    std::thread::sleep(Duration::from_millis(number("FOREBAY_LINGER_MS")));
}

fn write_all(file: &File, own: u64, stop: &AtomicBool) {
    let pages: Vec<u64> = (0..PAGES)
        .filter(|page| page % WRITERS == own % WRITERS)
        .collect();
    let mut counts: Vec<u64> = pages
        .iter()
        .map(|page| read(file, *page).expect("read"))
        .collect();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let mut written = Vec::new();
        for (page, count) in pages.iter().zip(&mut counts) {
            if (page + round) % 3 != 0 {
                *count += 1;
                write(file, *page, *count).expect("a page can be written");
                written.push((*page, *count));
            }
        }
        match file.fsync() {
            Ok(()) => {
                for (page, count) in written {
                    say(&format!("F {page} {count}"));
                }
            }
            Err(error) => say(&format!("lost: {}", error.report())),
        }
    }
}
