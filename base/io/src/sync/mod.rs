//! Synchronization of tasks of one reactor. Nothing here is shared between threads.

mod promise;
mod semaphore;
mod wait_list;

pub use promise::Promise;
pub use semaphore::{Acquire, Semaphore};
pub use wait_list::WaitList;

#[cfg(test)]
mod tests;
