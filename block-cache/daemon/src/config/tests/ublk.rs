//! Block devices of this machine.

use super::*;

#[test]
fn a_block_device_has_a_number_of_its_own() {
    let disk = "vhost-user-blk = \"vm.sock\"";
    let parsed = parse(&GOOD.replace(disk, "ublk = 3")).expect("it is right");
    assert_eq!(parsed.exports[3].protocol, Protocol::Ublk(3));
    let report = broken(disk, "ublk = 1048576");
    assert!(report.contains("0 is /dev/ublkb0"), "{report}");
    let report = broken(disk, "ublk = 3\ninsecure = true");
    assert!(report.contains("that no network reaches"), "{report}");
    let twice = "ublk = 3\n[[export]]\nvolume = \"db\"\nublk = 3";
    let report = broken(disk, twice);
    assert!(report.contains("in the same place"), "{report}");
    let export = format!("volume = \"db\"\n{disk}");
    let report = broken(&export, "volume = \"db\"\nublk = 3\nfuse = \"/x\"");
    assert!(report.contains("names two protocols"), "{report}");
}
