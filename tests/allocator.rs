//! The allocator of the tests that run many lives. The fuzz targets have their own.

use mimalloc::MiMalloc;

/// Takes a sixth of the processor time off the lives, which allocate a small block per request.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
