//! Durations that are too short or too long are refused with the key, the place and the range.

use super::*;

#[test]
fn absurd_durations_are_refused_with_the_key_the_place_and_the_range() {
    let limit = "dirty_limit = \"40%\"";
    let commit = |time: &str| {
        let line = format!("{limit}\ncommit_interval = \"{time}\"");
        (limit, line)
    };
    let burst = |time: &str| ("burst = \"2s\"", format!("burst = \"{time}\""));
    let latency = |time: &str| ("\nlatency = \"1ms\"", format!("\nlatency = \"{time}\""));
    let read = |time: &str| {
        let line = format!("latency = \"1ms\"\nread_latency = \"{time}\"");
        ("latency = \"1ms\"", line)
    };
    let write = |time: &str| {
        let line = format!("latency = \"1ms\"\nwrite_latency = \"{time}\"");
        ("latency = \"1ms\"", line)
    };
    let flush = |time: &str| {
        let line = format!("flush_latency = \"{time}\"");
        ("flush_latency = \"2ms\"", line)
    };
    let cases = [
        (
            commit("1ns"),
            "`commit_interval` of 1 ns is less",
            "1ms to 1h",
        ),
        (
            commit("0s"),
            "`commit_interval` of 0 s is less",
            "1ms to 1h",
        ),
        (
            commit("999us"),
            "`commit_interval` of 999 us is less",
            "1ms to 1h",
        ),
        (
            commit("3601s"),
            "`commit_interval` of 60 min 1 s is more",
            "1ms to 1h",
        ),
        (
            commit("9999h"),
            "`commit_interval` of 416 d 15 h is more",
            "1ms to 1h",
        ),
        (burst("1ns"), "`burst` of 1 ns is less", "1ms to 1h"),
        (burst("0s"), "`burst` of 0 s is less", "1ms to 1h"),
        (burst("48h"), "`burst` of 2 d 0 h is more", "1ms to 1h"),
        (
            latency("90m"),
            "`latency` of 90 min 0 s is more",
            "0s to 1h",
        ),
        (
            read("61m"),
            "`read_latency` of 61 min 0 s is more",
            "0s to 1h",
        ),
        (
            write("61m"),
            "`write_latency` of 61 min 0 s is more",
            "0s to 1h",
        ),
        (
            flush("2h"),
            "`flush_latency` of 2 h 0 min is more",
            "0s to 1h",
        ),
    ];
    for ((from, to), what, range) in cases {
        let report = broken(from, &to);
        assert!(report.contains(what), "{to}: {report}");
        assert!(report.contains(range), "{to}: {report}");
        assert!(
            ["less than the minimum, ", "more than the maximum, "]
                .iter()
                .any(|part| report.contains(part)),
            "{to}: {report}"
        );
        let shown = format!("{}\n", to.lines().last().expect("a line"));
        assert!(
            report.contains(&format!("| {shown}")),
            "the line is shown: {report}"
        );
    }
}

#[test]
fn the_ends_of_the_ranges_are_taken() {
    let limit = "dirty_limit = \"40%\"";
    for time in ["1ms", "1h", "60s"] {
        let line = format!("{limit}\ncommit_interval = \"{time}\"");
        parse(&GOOD.replacen(limit, &line, 1)).expect(time);
        let line = format!("burst = \"{time}\"");
        parse(&GOOD.replacen("burst = \"2s\"", &line, 1)).expect(time);
    }
    for time in ["0s", "1ns", "1h"] {
        let line = format!("flush_latency = \"{time}\"");
        parse(&GOOD.replacen("flush_latency = \"2ms\"", &line, 1)).expect(time);
    }
}
