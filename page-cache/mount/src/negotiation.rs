//! Negotiation of capabilities and limits with the kernel.

use std::io;

use fuser::{InitFlags, KernelConfig};

/// Maximum read or write, bytes. An append up to this length is atomic.
const REQUEST_BYTES: u32 = 1 << 20;
/// Maximum number of asynchronous requests that the kernel has in flight.
const BACKGROUND: u16 = 1024;

/// Requests the capabilities that a mount needs. Passthrough is required if `any_mapped`: a
/// directory is mapped.
pub(crate) fn negotiate(config: &mut KernelConfig, any_mapped: bool) -> io::Result<()> {
    let refused = |nearest: u32| io::Error::other(format!("FUSE supports {nearest} at most"));
    config.set_max_write(REQUEST_BYTES).map_err(refused)?;
    // Reads that wait for the source count. Few of them must not stop all others.
    let few = |nearest: u16| refused(nearest.into());
    config.set_max_background(BACKGROUND).map_err(few)?;
    config.set_congestion_threshold(BACKGROUND).map_err(few)?;
    // Without these capabilities, locks would be local to this node.
    let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
    let unknown = |_| io::Error::other("no FUSE locks in this kernel\n    help: use another");
    config.add_capabilities(locks).map_err(unknown)?;
    if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
        config.set_max_stack_depth(1).map_err(refused)?;
    } else if any_mapped {
        return Err(io::Error::other(
            "this kernel has no FUSE passthrough, without which no directory is mapped\n    \
             help: use Linux 6.9 or later, or run the directory process without --map",
        ));
    }
    // Without these capabilities, the kernel sends requests one by one, but correctly.
    let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
    let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
    // Without this capability, the kernel looks for file capabilities before each write to a file
    // of a mapped directory: a request for each.
    let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
    Ok(())
}
