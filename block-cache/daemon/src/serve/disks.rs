//! Attaches volumes as block devices of this machine.

use std::collections::BTreeMap;

use forebay_block::Result;

/// A volume to attach as a block device.
pub(super) trait Disk {
    /// Returns the volume's name.
    fn volume(&self) -> &str;
}

/// Attaches all of them. Reads the reason for missing writes before the first attach, and removes
/// it after the last. The reason concerns each waiting device of the volume, even if another device
/// was recreated before.
///
/// # Errors
/// The first error of the three operations. Attached devices stay attached, and no reason is
/// removed.
pub(super) async fn attach_all<D: Disk>(
    disks: Vec<D>,
    gap: impl AsyncFn(&D) -> Result<Option<String>>,
    mut attach: impl AsyncFnMut(D, Option<String>) -> Result<()>,
    forget: impl AsyncFn(&str) -> Result<()>,
) -> Result<()> {
    let mut gaps = BTreeMap::new();
    for disk in &disks {
        if !gaps.contains_key(disk.volume()) {
            gaps.insert(disk.volume().to_owned(), gap(disk).await?);
        }
    }
    for disk in disks {
        let gap = gaps.get(disk.volume()).cloned().flatten();
        attach(disk, gap).await?;
    }
    for volume in gaps.keys() {
        forget(volume).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use forebay_block::ErrorKind;

    use super::*;

    impl Disk for (&str, u32) {
        fn volume(&self) -> &str {
            self.0
        }
    }

    /// Attaches devices while "db" may lack writes; one number may fail. Returns the reasons passed
    /// to each device, and the remaining records.
    fn attached(
        disks: Vec<(&'static str, u32)>,
        fails: Option<u32>,
    ) -> (Vec<(u32, bool)>, Vec<&'static str>) {
        let (attachments, remembered) = (RefCell::new(Vec::new()), RefCell::new(vec!["db"]));
        let all = attach_all(
            disks,
            async |disk| {
                let lacks = remembered.borrow().contains(&disk.0);
                Ok(lacks.then(|| "others wrote".to_owned()))
            },
            async |disk, gap| {
                attachments.borrow_mut().push((disk.1, gap.is_some()));
                match fails == Some(disk.1) {
                    true => Err(ErrorKind::InvalidInput.into()),
                    false => Ok(()),
                }
            },
            async |volume| {
                remembered.borrow_mut().retain(|name| *name != volume);
                Ok(())
            },
        );
        let outcome = match pin!(all).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("nothing here waits"),
        };
        assert_eq!(outcome.is_err(), fails.is_some());
        (attachments.into_inner(), remembered.into_inner())
    }

    #[test]
    fn two_devices_of_a_volume_are_notified_of_the_same() {
        let (attachments, remembered) = attached(vec![("db", 0), ("logs", 1), ("db", 2)], None);
        assert_eq!(attachments, [(0, true), (1, false), (2, true)]);
        assert_eq!(remembered, [""; 0], "all that wait have been told");
    }

    #[test]
    fn a_change_is_remembered_until_each_device_is_notified() {
        let (attachments, remembered) = attached(vec![("db", 0), ("db", 2)], Some(2));
        assert_eq!(attachments, [(0, true), (2, true)]);
        assert_eq!(
            remembered,
            ["db"],
            "the second waits for another process yet"
        );
    }
}
