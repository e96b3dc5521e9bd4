//! Serves memory over NVMe/TCP, to measure the protocol's own cost: `nvme_tcp_memory 127.0.0.1:4420
//! 512 [reactors]`. The size is in MiB. The volume is on the first reactor, and the connections are
//! spread over all reactors.

use std::sync::Arc;

use forebay_block::Result;
use forebay_device::mem::MemDevice;
use forebay_frontend::Spread;
use forebay_frontend::nvme_tcp::{Exports, Subsystem, serve_on};
use forebay_io::net::Listener;
use forebay_io::rt::{self, Remote};
use forebay_io::{Engine, Reactor, spawn_reactor};
use forebay_volume::Volume;

const NQN: &str = "nqn.2026-11.io.forebay:memory";

/// A reactor that serves connections.
fn reactor(number: usize) -> Result<Remote> {
    let (send, receive) = std::sync::mpsc::channel();
    spawn_reactor(&format!("net-{number}"), Engine::Auto, move || async move {
        let _ = send.send(rt::remote());
        std::future::pending::<()>().await;
    })?;
    Ok(receive.recv().expect("a reactor that runs says so"))
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:4420".to_owned());
    let address = address.parse()?;
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
    let size_mib: u64 = number(arguments.next()).unwrap_or(512);
    let reactors: u64 = number(arguments.next()).unwrap_or(1);
    let beside: Result<Vec<Remote>> = (1..reactors).map(|at| reactor(at as usize)).collect();
    let beside = beside?;
    let engine = Reactor::new(Engine::Auto)?;
    engine.run(async move {
        let device = MemDevice::new("memory", size_mib << 20);
        let volume = Volume::new("memory", device, false);
        let subsystem = Subsystem::new(NQN, None, b"example")?;
        subsystem.add(volume.handle())?;
        let exports = Arc::new(Exports::new());
        exports.add(subsystem)?;
        let listener = Listener::bind(&address)?;
        println!("{NQN} at {}", listener.address());
        let spread = Spread::new(std::iter::once(rt::remote()).chain(beside));
        serve_on(listener, exports, Arc::new(spread)).await
    })
}
