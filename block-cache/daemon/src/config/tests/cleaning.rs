//! Cleaning and its marks, and the disk on which it is measured.

use super::*;

#[test]
fn cleaning_and_its_marks_are_checked() {
    let marks = "dirty_limit = \"40%\"\ndirty_low = \"41%\"";
    let report = broken("dirty_limit = \"40%\"", marks);
    assert!(
        report.contains("above the high one, `dirty_limit`, of 40%"),
        "{report}"
    );
    let limit = "dirty_limit = \"40%\"";
    let with = |policy: &str| format!("{limit}\ncleaning = \"{policy}\"");
    let report = broken(limit, &with("lru"));
    assert!(report.contains("no cleaning policy \"lru\""), "{report}");
    let config = parse(&GOOD.replace(limit, &with("alru"))).expect("right");
    let cache = config.cache.expect("there is a cache");
    assert_eq!(cache.cleaning, forebay_cache::Cleaning::Alru);
    assert_eq!(
        (cache.dirty_low_percent, cache.dirty_limit_percent),
        (13, 40)
    );
    let plain = parse(GOOD).expect("right").cache.expect("there is a cache");
    assert_eq!(plain.cleaning, forebay_cache::Cleaning::Auto);
}

#[test]
fn admission_is_named() {
    let limit = "dirty_limit = \"40%\"";
    let with = |admission: &str| format!("{limit}\nadmission = \"{admission}\"");
    let report = broken(limit, &with("often"));
    assert!(report.contains("no admission \"often\""), "{report}");
    let of = |text: &str| parse(text).expect("right").cache.expect("there is a cache");
    let measured = of(&GOOD.replace(limit, &with("measured")));
    assert_eq!(measured.admission, forebay_cache::Admission::Measured);
    assert_eq!(of(GOOD).admission, forebay_cache::Admission::Always);
}

/// A disk's profile can be used over any device.
#[test]
fn a_disk_is_emulated_over_anything() {
    let slow = "kind = \"emulate\"\non = \"disk\"\nprofile = \"hdd\"";
    let start = GOOD.find("kind = \"emulate\"").expect("it has one");
    let end = start + GOOD[start..].find("\n\n").expect("something follows");
    let text = format!("{}{slow}{}", &GOOD[..start], &GOOD[end..]);
    let config = parse(&text).expect("right");
    let DeviceKind::EmulatedDisk { profile, .. } = &config.device("slow").kind else {
        panic!("{config:?}");
    };
    assert_eq!(profile.name, "hdd");
    assert_eq!(config.stack("slow").len(), 2);
}
