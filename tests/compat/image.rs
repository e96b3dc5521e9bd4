//! Writes images of this version's caches, for the compat tests of all later versions: `cargo run
//! --release -p forebay-tests --example cache_image -- tests/compat/images/VERSION`. The version is
//! a date or a release.

mod life;

use std::path::Path;
use std::process::ExitCode;

use forebay_io::sim::Keep;

use life::{CACHE_BYTES, KINDS, VOLUME_BYTES, expected, live, run, world};

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("image: name a new folder: tests/compat/images/VERSION");
        return ExitCode::FAILURE;
    };
    match make(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("image: {folder}: {error} (an existing image is never overwritten)");
            ExitCode::FAILURE
        }
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir(folder)?;
    for kind in KINDS {
        let world = world();
        run(&world, async move |disks| live(&disks, kind).await);
        if !kind.closed {
            world.crash_power(Keep::None);
        }
        let written_back = world.disks()[1].peek(0, VOLUME_BYTES as usize);
        assert!(written_back != expected(), "something is dirty");
        for (disk, bytes) in world.disks().iter().zip([CACHE_BYTES, VOLUME_BYTES]) {
            let name = if bytes == CACHE_BYTES {
                "cache"
            } else {
                "backing"
            };
            let image = zstd::encode_all(&disk.peek(0, bytes as usize)[..], 19)?;
            std::fs::write(folder.join(format!("{}.{name}.zst", kind.name)), image)?;
        }
    }
    Ok(())
}
