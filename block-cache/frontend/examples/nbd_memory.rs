//! Serves memory over NBD, to measure the protocol's own cost: `nbd_memory unix:/tmp/nbd.sock 512
//! [other]`. The size is in MiB. `other` puts the volume on a second reactor, so that every request
//! crosses threads.

use std::sync::Arc;

use forebay_block::Result;
use forebay_device::mem::MemDevice;
use forebay_frontend::nbd::{Exports, serve};
use forebay_io::net::Listener;
use forebay_io::{Engine, Reactor, spawn_reactor};
use forebay_volume::{Volume, VolumeHandle};

fn volume(size_bytes: u64) -> Volume {
    Volume::new("memory", MemDevice::new("memory", size_bytes), false)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:10809".to_owned());
    let address = address.parse()?;
    let size_mib: u64 = arguments
        .next()
        .and_then(|size| size.parse().ok())
        .unwrap_or(512);
    let size_bytes = size_mib << 20;
    let handle: Option<VolumeHandle> = if arguments.next().is_some() {
        let (send, receive) = std::sync::mpsc::channel();
        spawn_reactor("engine", Engine::Auto, move || async move {
            let volume = volume(size_bytes);
            let _ = send.send(volume.handle());
            std::future::pending::<()>().await;
        })?;
        receive.recv().ok()
    } else {
        None
    };
    let reactor = Reactor::new(Engine::Auto)?;
    let engine = reactor.engine_name();
    reactor.run(async move {
        let local = handle.is_none().then(|| volume(size_bytes));
        let handle = handle.or_else(|| local.as_ref().map(Volume::handle));
        let exports = Arc::new(Exports::new());
        exports.add(handle.expect("a volume"), "memory")?;
        let listener = Listener::bind(&address)?;
        println!("{} ({engine})", listener.address());
        serve(listener, exports).await
    })
}
