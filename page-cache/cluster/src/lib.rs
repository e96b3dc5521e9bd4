//! The distributed page cache across processes of one machine.
//!
//! - [`pool`]: shared state of all processes: frames in `/dev/shm`, the directory's sockets, and
//!   the list of nodes.
//! - [`server`]: the directory process: connections, leases, deaths, its restart.
//! - [`node`]: the node process: joining, rejoining, leaving. [`file`](mod@file): files for
//!   programs. [`names`]: files by directory and name, for a mount, with [`locks`].
//! - [`tree`]: a directory tree as the store; [`device`]: a block device. [`status`]: the
//!   directory's report. [`command`]: requests of commands.
//!
//! A source has one pool at a time (`claim`). The protocol is in [`forebay_pagecache`]; this crate
//! makes no decision about a page. A node is ended before it is declared dead: the kernel reports
//! that no thread of its process runs any more. So its stores into shared memory and its writes to
//! the store have ended, too.

mod claim;
mod coherence;
pub mod command;
pub mod device;
pub mod file;
mod link;
pub mod locks;
mod mapped;
pub mod names;
pub mod node;
pub mod pool;
mod room;
mod second_names;
pub mod server;
pub mod status;
pub mod tree;

pub use coherence::Coherence;
pub use device::{DeviceNode, InFlight};
pub use file::{File, PageView, Reader};
pub use forebay_io::blocks::Change;
pub use forebay_pagecache::client::Emulated;
pub use forebay_pagecache::directory::Placement;
pub use forebay_pagecache::message::NodeId;
pub use forebay_pagecache::node::Consistency;
pub use names::Names;
pub use node::{Node, Options, Replicas, WriteBack};

/// Size of a page, bytes.
pub const PAGE_BYTES: usize = 4096;
