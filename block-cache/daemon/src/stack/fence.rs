//! Fences a volume whose backing device has failed for good: another machine has taken it over, or
//! its data is damaged.

use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::Error;
use forebay_io::rt;

use super::Served;

/// Returns the error that all requests of a device get from now on, once there is one.
pub(super) type Failure = Rc<dyn Fn() -> Option<Error>>;

/// Pause between two looks at a backing device.
const LOOK: Duration = Duration::from_millis(500);

/// Waits until the backing device of a volume has failed for good, and lets no further request of
/// clients through. Hits of the cache would answer with older data, and the cache would acknowledge
/// writes that never reach the device.
pub(super) async fn fence_after(failure: Failure, served: Weak<Served>) {
    loop {
        rt::sleep(LOOK).await;
        let Some(served) = served.upgrade() else {
            return;
        };
        if let Some(error) = failure() {
            let name = &served.config.name;
            tracing::error!(
                "volume {name:?} serves no request any more: {}",
                error.report()
            );
            return served.volume.fence(error);
        }
    }
}
