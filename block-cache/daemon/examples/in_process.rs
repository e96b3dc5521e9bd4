//! Forebay as a library: a stack is opened in this process, on a reactor of ours, and does I/O.
//!
//! `cargo run --package forebay --example in_process`

use std::path::Path;

use forebay::block::{BlockDeviceExt, Buf, Result};
use forebay::{Config, Engine, Reactor, Stack, Wishes};

/// A cache in memory in front of a slow device, which is memory too, made slow.
const CONFIG: &str = r#"
[[device]]
name = "fast"
kind = "mem"
size = "64M"
volatile = true     # yes: what is not written back goes with this process

[[device]]
name = "store"
kind = "mem"
size = "256M"

[[device]]
name = "slow"
kind = "emulate"
on = "store"
latency = "2ms"

[cache]
data = "fast"

[[volume]]
name = "data"
backing = "slow"
mode = "wb"

[server]
state = "state"
"#;

pub(crate) fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("forebay-example-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    // Relative paths start at the directory of the configuration, whether or not there is a file.
    let config = Config::parse(&directory.join("forebay.toml"), CONFIG)?;
    let reactor = Reactor::new(Engine::Auto)?;
    let result = reactor.run(use_stack(config));
    std::fs::remove_dir_all(Path::new(&directory))?;
    result
}

async fn use_stack(config: Config) -> Result<()> {
    let stack = Stack::open(&config, &Wishes::default()).await?;
    let volume = stack.volume("data")?.open();
    println!("volume of {} bytes", volume.info().size_bytes);

    let block = Buf::copied(&[7; 4096]);
    for number in 0..64 {
        volume.write(number * 4096, block.clone()).await?;
    }
    volume.flush().await?;

    let back = Buf::scratch(4096);
    volume.read(5 * 4096, back.clone()).await?;
    assert_eq!(back.to_vec(), [7; 4096], "what was written is read");

    let status = stack.status();
    let data = &status.volumes[0];
    println!(
        "{} writes, {} hits of {} reads, {} bytes not yet on the slow device",
        data.operation("write").count,
        data.read_hits,
        data.read_hits + data.read_misses,
        data.dirty_bytes
    );
    assert_eq!(data.read_hits, 1, "the read was answered by the cache");

    println!("{}", stack.write_back(None).await?);
    assert_eq!(
        stack.dirty_bytes(None),
        0,
        "everything is on the slow device"
    );
    stack.close().await
}
