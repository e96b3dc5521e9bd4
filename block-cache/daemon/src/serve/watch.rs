//! Logs the errors of devices: the first one at once, then at most one line in ten seconds for each
//! device, with a count. The reactors only count. Also logs files and mounts that other programs
//! have removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::Handle;
use super::exports::Shared;
use crate::stack::LOOK;
use crate::status::DeviceStatus;
use forebay_terminal::size::human_bytes;

/// Interval between checks of the devices.
const EVERY: Duration = Duration::from_secs(1);
/// Least time between two lines about the same device.
const WINDOW: Duration = Duration::from_secs(10);

/// Last known state of the devices.
#[derive(Default)]
pub(super) struct Watch {
    devices: BTreeMap<String, Seen>,
    /// Problem of the state directory at the last check.
    trouble: Option<String>,
    /// Problems of open files and of mounts at the last check.
    file_troubles: Vec<String>,
    exports: Arc<Shared>,
}

struct Seen {
    errors: u64,
    logged_at: Option<Instant>,
    size_bytes: u64,
}

impl Watch {
    /// Creates a watch on the devices and these exports.
    pub(super) fn new(exports: Arc<Shared>) -> Self {
        Self {
            exports,
            ..Self::default()
        }
    }

    /// Checks the devices for ever.
    pub(super) async fn run(&mut self, engine: &Handle) {
        loop {
            self.look(engine).await;
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Checks the devices once.
    pub(super) async fn look(&mut self, engine: &Handle) {
        let paths = engine.ask(|engine| async move { engine.stack.paths() });
        if let Ok(paths) = paths.await {
            // A path that does not answer delays no other check.
            let _ = tokio::time::timeout(LOOK, paths.look()).await;
        }
        let seen = engine.ask(|engine| async move {
            let stack = &engine.stack;
            // The cache also looks at what these show.
            let devices = stack.devices();
            let is_reported = stack.look_for_cut().await;
            (
                is_reported,
                devices,
                stack.state_trouble(),
                stack.file_troubles(),
            )
        });
        let (is_reported, devices, trouble, mut files) = seen.await.unwrap_or_default();
        files.extend(self.exports.lost_mounts());
        for line in self.news(Instant::now(), &devices, is_reported) {
            tracing::error!("{line}");
        }
        if let Some(trouble) = &trouble
            && self.trouble.is_none()
        {
            tracing::error!("{trouble}");
        }
        self.trouble = trouble;
        for line in files.iter().filter(|it| !self.file_troubles.contains(it)) {
            tracing::error!("{line}");
        }
        self.file_troubles = files;
    }

    /// Returns the lines to log. `is_reported` says whether the cache reports a truncation of its
    /// devices.
    fn news(&mut self, now: Instant, devices: &[DeviceStatus], is_reported: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for device in devices {
            let (name, size) = (&device.name, device.size_bytes);
            let seen = self.devices.entry(name.clone()).or_insert(Seen {
                errors: 0,
                logged_at: None,
                size_bytes: size,
            });
            let before = std::mem::replace(&mut seen.size_bytes, size);
            let is_new = device.role == "backing" || !is_reported;
            if size < before && is_new {
                lines.push(format!(
                    "device {name:?} has shrunk from {} to {}: requests beyond its end fail until \
                     it has its size again; data of a truncated file IS LOST",
                    human_bytes(before),
                    human_bytes(size)
                ));
            }
            let new = device.errors.saturating_sub(seen.errors);
            let quiet = seen
                .logged_at
                .is_some_and(|logged_at| now - logged_at < WINDOW);
            if new == 0 || quiet {
                continue;
            }
            (seen.errors, seen.logged_at) = (device.errors, Some(now));
            let last = device.last_error.as_deref().unwrap_or("not known");
            lines.push(match new {
                1 => format!("device {name:?} ({}): {last}", device.role),
                _ => format!(
                    "device {name:?} ({}): {new} errors, the last: {last}",
                    device.role
                ),
            });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_logged_at_once_and_the_rest_counted() {
        let mut watch = Watch::default();
        let begin = Instant::now();
        let device = |errors: u64, size_bytes| {
            vec![DeviceStatus {
                name: "disk".into(),
                role: "backing".into(),
                size_bytes,
                errors,
                last_error: Some(format!("error {errors}")),
                ..DeviceStatus::default()
            }]
        };
        let mut news = |s, errors, size| {
            watch.news(begin + Duration::from_secs(s), &device(errors, size), false)
        };
        let none = Vec::<String>::new();
        assert_eq!(news(0, 0, 4096), none);
        assert_eq!(news(1, 1, 4096), ["device \"disk\" (backing): error 1"]);
        assert_eq!(news(2, 1, 4096), none);
        assert_eq!(news(3, 500, 4096), none, "one line in ten seconds");
        assert_eq!(news(10, 900, 4096), none);
        let logged_at = "device \"disk\" (backing): 999 errors, the last: error 1000";
        assert_eq!(news(11, 1000, 4096), [logged_at]);
        assert_eq!(news(30, 1000, 4096), none);
        assert!(news(31, 1000, 512)[0].contains("shrunk from 4 KiB to 512 B"));
        assert_eq!(news(32, 1000, 512), none);
    }
}
