//! A backing device that does not respond. Clients get errors and hits are served. Dirty data is
//! abandoned only on request.

use std::time::{Duration, Instant};

use super::support::Place;
use super::{block, check_blocks, write_blocks};

/// Configures a backing device that takes an hour for each write.
fn stall(place: &Place) {
    place.edit_config(&[
        (
            "[cache]",
            "[[device]]\nname = \"stuck\"\nkind = \"emulate\"\non = \"disk\"\n\
             write_latency = \"1h\"\n\n[cache]",
        ),
        (
            "backing = \"disk\"",
            "backing = \"stuck\"\ntimeout = \"3s\"",
        ),
    ]);
}

#[test]
fn abandoned_data_of_a_stalled_device_is_named_and_never_comes_back() {
    let place = Place::new("stalls", "wb");
    stall(&place);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..16);
    assert!(place.ok(&["mode", "db", "wt"]).contains("now in mode wt"));
    let begin = Instant::now();
    let status = nbd.write(32 << 20, &block(1)).expect("an answer");
    assert_ne!(status, 0, "it timed out");
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "{:?}",
        begin.elapsed()
    );
    // The ranges are quarantined, and requests are refused at once. Cached data is served.
    assert_ne!(nbd.read(32 << 20, 4096).expect("an answer").err(), None);
    check_blocks(&mut nbd, 0..16);
    let status = place.status();
    let volume = &status["volumes"][0];
    assert_eq!(
        (&volume["timed_out"], &volume["overdue"]),
        (&1.into(), &1.into())
    );
    assert!(
        place
            .ok(&["status"])
            .contains("1 request timed out, 1 of them still in the device")
    );
    let answer = place.ok(&["detach", "--abandon-dirty", "db"]);
    assert!(
        answer.contains("64 KiB of dirty data ABANDONED"),
        "{answer}"
    );
    assert!(answer.contains("65536 bytes at 0"), "{answer}");
    let list = std::fs::read_to_string(place.path("state").join("db.abandoned")).expect("a list");
    assert!(list.ends_with("\n0 65536\n"), "{list}");
    daemon.terminate();
    // The device has its writes from before the volume was abandoned. All later data is wiped.
    std::fs::write(place.path("db.img"), vec![0; 64 << 20]).expect("wiped");
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    for number in 0..16 {
        let data = nbd.read(number * 4096, 4096).expect("an answer");
        assert_eq!(data, Ok(vec![0; 4096]), "block {number} came back");
    }
    assert!(place.ok(&["flush"]).contains("wrote 0 B"));
    daemon.terminate();
    let disk = std::fs::read(place.path("db.img")).expect("there");
    assert!(
        disk.iter().all(|byte| *byte == 0),
        "something was written back"
    );
}
