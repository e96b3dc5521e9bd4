//! The distributed page cache across processes of one machine.
//!
//! - [`pool`]: what all share: frames in `/dev/shm`, the directory's sockets, and who is there.
//! - [`server`]: the process of the directory: connections, leases, deaths, its own start anew.
//! - [`node`]: the process of a node: joining, coming back, leaving. [`file`](mod@file): files for programs.
//!   [`names`]: the same by directory and name, for a mount, with [`locks`].
//! - [`tree`]: a directory tree as the store; [`device`]: a block device. [`status`]: what the directory says about all.
//!
//! A source has one pool at a time (`claim`). The protocol is [`forebay_pagecache`]'s; nothing here decides about a page. A node that is declared dead is ended
//! first: the kernel says that no thread of its process runs any more, and so neither its stores into shared memory
//! nor its writes to the store go on.

mod claim;
mod coherence;
pub mod device;
pub mod file;
mod keep;
mod link;
pub mod locks;
mod mapped;
pub mod names;
pub mod node;
pub mod pool;
mod room;
pub mod server;
pub mod status;
pub mod tree;

pub use coherence::Coherence;
pub use device::{DeviceNode, InFlight};
pub use file::{File, PageView};
pub use forebay_pagecache::client::Emulated;
pub use forebay_pagecache::directory::Placement;
pub use forebay_pagecache::message::NodeId;
pub use forebay_pagecache::node::Consistency;
pub use names::Names;
pub use node::{Node, Options};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
