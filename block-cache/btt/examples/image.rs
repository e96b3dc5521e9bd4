//! Creates, fills and inspects a block translation table in a file, to exchange it with other
//! implementations.
//!
//! ```text
//! cargo run -p forebay-btt --example image -- format FILE BYTES 1.1|2.0 512|4096
//! cargo run -p forebay-btt --example image -- fill FILE SEED    random writes and zeroings
//! cargo run -p forebay-btt --example image -- dump FILE         clients' blocks, to stdout
//! cargo run -p forebay-btt --example image -- check FILE        checks the use of each block
//! ```

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_btt::layout::Version;
use forebay_btt::{Btt, FormatOptions, format};
use forebay_io::pmem::PmemMapping;
use forebay_io::sim::Rng;
use forebay_io::system;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["format", path, bytes, version, block] => make(Path::new(path), bytes, version, block),
        ["fill", path, seed] => number(seed).and_then(|seed| fill(Path::new(path), seed)),
        ["dump", path] => dump(Path::new(path)),
        ["check", path] => check(Path::new(path)),
        _ => Err(wrong(
            "format FILE BYTES VERSION BLOCK | fill FILE SEED | dump FILE | check FILE",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.report());
            ExitCode::FAILURE
        }
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| wrong("a number is expected"))
}

fn open(path: &Path) -> Result<Btt<PmemMapping>> {
    Btt::open(Arc::new(PmemMapping::open(path, None)?))
}

fn make(path: &Path, bytes: &str, version: &str, block: &str) -> Result<()> {
    let memory = PmemMapping::open(path, Some(number(bytes)?))?;
    let mut uuid = [0; 16];
    system::random(&mut uuid);
    let block_bytes = u32::try_from(number(block)?).map_err(|_| wrong("512 or 4096"))?;
    let mut options = FormatOptions::new(block_bytes, uuid);
    let found = Version::ALL
        .into_iter()
        .find(|known| known.to_string() == version);
    options.version = found.ok_or_else(|| wrong("the version is 1.1 or 2.0"))?;
    let made = format(&memory, &options)?;
    println!("{} blocks in {} arenas", made.blocks, made.arenas);
    Ok(())
}

/// Blocks are written up to several times each, some are zeroed, and most are left alone.
fn fill(path: &Path, seed: u64) -> Result<()> {
    let table = open(path)?;
    let rng = Rng::new(seed);
    let block_bytes = table.block_bytes() as usize;
    for _ in 0..2000 {
        let block = rng.below(table.blocks().min(900)) * (table.blocks() / table.blocks().min(900));
        if rng.chance(1, 8) {
            table.zero(block, 1)?;
            continue;
        }
        let source = Buf::zeroed(block_bytes);
        for at in (0..block_bytes).step_by(8) {
            source.copy_from(at, &rng.draw().to_le_bytes());
        }
        table.write(block, &source)?;
    }
    Ok(())
}

fn dump(path: &Path) -> Result<()> {
    let table = open(path)?;
    let target = Buf::zeroed(table.block_bytes() as usize);
    let mut out = std::io::stdout().lock();
    for block in 0..table.blocks() {
        table.read(block, &target)?;
        out.write_all(&target.to_vec())?;
    }
    Ok(out.flush()?)
}

fn check(path: &Path) -> Result<()> {
    let table = open(path)?;
    let usage = table.check()?;
    println!(
        "version {}, {} blocks of {} bytes: {} with data, {} zero, {} unreadable",
        table.version(),
        table.blocks(),
        table.block_bytes(),
        usage.data,
        usage.zero,
        usage.unreadable
    );
    Ok(())
}
