//! A volume with two block devices.

use forebay_block::ErrorKind;
use forebay_wire::ublk::{control, op, state};

use super::daemon::{Daemon, Media};
use super::fake::Fake;
use super::handshake::{self, Left};
use super::{refused, request, write};

#[test]
fn both_show_the_volume_and_each_has_an_end_of_its_own() {
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    let both = [0, 1].map(|number| daemon.attach_as(&driver, number, None).expect("made"));
    let data = vec![5; 4096];
    assert_eq!(driver.call(0, 0, 1, write(8), &data).0, 4096);
    let read = driver.call(1, 1, 1, request(op::READ, 0, 8, 8), &[]);
    assert_eq!(read, (4096, data.clone()));
    driver.mount(1, true);
    assert_eq!(
        both.each_ref().map(|one| one.in_use().expect("there")),
        [false, true]
    );
    assert_eq!(both[0].detach().expect("it goes"), Left::Removed);
    assert_eq!(both[1].detach().expect("it waits"), Left::Waiting);
    assert_eq!(driver.call(1, 0, 1, write(16), &data).0, 4096);
    drop(both);
    daemon.die();
    driver.after_death(1);
    assert_eq!(driver.info(0), None);
}

#[test]
fn a_gap_affects_both_devices() {
    let (driver, media) = (Fake::new(), Media::new());
    let first = Daemon::start(&media, false);
    let both = [0, 1].map(|number| first.attach_as(&driver, number, None).expect("made"));
    drop(both);
    first.die();
    for number in [0, 1] {
        driver.after_death(number);
    }
    // One device is removed and recreated: this has no effect on the other.
    handshake::remove(&driver, 0).expect("nobody serves it");
    driver.log();
    let second = Daemon::start(&media, false);
    let gap = Some("others wrote");
    let recreated = second.attach_as(&driver, 0, gap).expect("recreated");
    let (kind, report) = refused(second.attach_as(&driver, 1, gap));
    assert_eq!(kind, ErrorKind::InvalidInput, "{report}");
    assert!(report.contains("others wrote"), "{report}");
    let log = driver.log();
    assert!(log.contains(&control::ADD), "the first");
    assert!(!log.contains(&control::DELETE) && !log.contains(&control::START_RECOVERY));
    assert_eq!(driver.info(1).map(|info| info.state), Some(state::QUIESCED));
    recreated.detach().expect("it goes");
    second.die();
    // If nothing is missing, each continues.
    let third = Daemon::start(&media, false);
    let waited = third.attach_as(&driver, 1, None).expect("taken over");
    assert_eq!(driver.call(1, 0, 0, write(0), &[1; 4096]).0, 4096);
    waited.detach().expect("it goes");
    third.die();
}
