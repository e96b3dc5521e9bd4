//! Sizes of backing and cache devices, of which `check` and `serve` say the same.

use super::checked::{LoopDevice, both_refuse};
use super::support::{Place, text};

/// A loop device over a file without a sector has no medium, like a detached one.
#[test]
fn block_devices_without_a_block_are_refused_in_every_role_and_mode() {
    let place = Place::new("no-medium", "wt");
    let config = place.path("forebay.toml");
    let device_of = |bytes: u64| {
        let file = place.path(&format!("of-{bytes}"));
        std::fs::File::create(&file)
            .expect("made")
            .set_len(bytes)
            .expect("sparse");
        LoopDevice::new(&file, &[])
    };
    let (Some(empty), Some(tiny)) = (device_of(0), device_of(100)) else {
        return;
    };
    for device in [&empty, &tiny] {
        for (file, mode) in [
            ("db.img", "wt"),
            ("db.img", "wb"),
            ("db.img", "pt"),
            ("cache", "wb"),
        ] {
            place.configure(mode, "");
            let original = std::fs::read_to_string(&config).expect("there");
            let from = format!("path = \"{file}\"");
            assert!(original.contains(&from), "{original}");
            let path = text(&device.0);
            let changed = original.replace(&from, &format!("path = \"{path}\""));
            std::fs::write(&config, changed).expect("written");
            let remedy = format!("`losetup {path} FILE`");
            let what = format!("{path} has 0 bytes, less than a block");
            both_refuse(&place, &["forebay.toml:", &what, &remedy]);
        }
    }
    place.configure("wt", "");
    place.serve(&[]).terminate();
}
