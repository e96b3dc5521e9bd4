//! Several errors of one file, and misspelled names.

use super::*;

/// Returns the reported problems, each from its place on.
fn problems(text: &str) -> Vec<String> {
    let report = parse(text).expect_err("it is wrong").report();
    let parts = report.split("/etc/forebay.toml:").skip(1);
    parts.map(str::to_owned).collect()
}

/// Returns the example with `from` replaced by `to`, for each of these.
fn changed(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(GOOD.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is in the example");
        text.replacen(from, to, 1)
    })
}

#[test]
fn the_nearest_name_is_suggested() {
    for (from, to, nearest) in [
        ("latency = ", "latecny = ", "`latency`"),
        ("backing = ", "backng = ", "`backing`"),
        ("mode = ", "mod = ", "`mode`"),
        ("durability = ", "durabilty = ", "`durability`"),
        ("reactors = ", "reactor = ", "`reactors`"),
        ("kind = \"file\"", "kind = \"flie\"", "`file`"),
        ("io = \"threads\"", "io = \"thread\"", "`threads`"),
        ("durability = \"sync\"", "durability = \"synch\"", "`sync`"),
        ("[server]", "[servr]", "`[server]`"),
        ("[[volume]]", "[volum]", "`[[volume]]`"),
        ("[[export]]", "[[exprot]]", "`[[export]]`"),
    ] {
        let problems = problems(&changed(&[(from, to)]));
        let suggested = problems
            .iter()
            .any(|part| part.contains(&format!("did you mean {nearest}?")));
        assert!(suggested, "{to}: {problems:?}");
    }
    // No name is near.
    for (from, to) in [
        ("reactors = ", "colour = "),
        ("io = \"threads\"", "io = \"steam engine\""),
    ] {
        let problems = problems(&changed(&[(from, to)]));
        assert!(!problems[0].contains("did you mean"), "{problems:?}");
        assert!(problems[0].contains("use one of `"), "{problems:?}");
    }
}

#[test]
fn a_wrong_value_is_answered_in_words() {
    for (from, to, words) in [
        (
            "reactors = 2",
            "reactors = \"2\"",
            "expected a whole number from 1 to 64",
        ),
        (
            "reactors = 2",
            "reactors = \"2\"",
            "help: write reactors = 2, without quotes",
        ),
        (
            "reactors = 2",
            "reactors = \"two\"",
            "help: write the value as the kind that is expected",
        ),
        (
            "reactors = 2",
            "reactors = -2",
            "expected a whole number from 1 to 64",
        ),
        (
            "reactors = 2",
            "reactors = 65",
            "help: write a number from 1 to 64",
        ),
        (
            "iops = 3000",
            "iops = -5",
            "expected a whole number from 1 to 4294967295",
        ),
        (
            "iops = 3000",
            "iops = 4294967296",
            "help: write a number from 1 to 4294967295, or leave",
        ),
        ("direct = false", "direct = 1", "true or false"),
        (
            "direct = false",
            "direct = 'true'",
            "help: write direct = true, without quotes",
        ),
        (
            "backing = \"slow\"",
            "backing = 7",
            "help: write backing = \"7\", with quotes",
        ),
        (
            "burst = \"2s\"",
            "burst = 2",
            "help: write a duration such as \"1ms\", in quotes",
        ),
    ] {
        let problems = problems(&changed(&[(from, to)]));
        assert!(problems[0].contains(words), "{to}: {problems:?}");
        for kind in ["usize", "u32", "u64", "boolean"] {
            assert!(!problems[0].contains(kind), "{to}: {problems:?}");
        }
    }
}

/// The value that was meant is known: it hides no other problem of its table.
#[test]
fn a_number_in_quotes_hides_nothing_of_its_table() {
    for (quoted, count) in [("reactors = \"2\"", 2), ("reactors = \"65\"", 3)] {
        let problems = problems(&changed(&[
            ("reactors = 2", quoted),
            ("control = \"/run/x.sock\"", "metrics = \"0.0.0.0:9809\""),
        ]));
        assert_eq!(problems.len(), count, "{problems:?}");
    }
    // A text that is no number is one problem.
    let problems = problems(&changed(&[("reactors = 2", "reactors = \"two\"")]));
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn a_refused_name_is_no_remedy() {
    let problems = problems(&changed(&[("name = \"db\"", "name = \"d b\"")]));
    let others = problems
        .iter()
        .filter(|part| !part.contains("cannot be the name"));
    for part in others {
        let (_, help) = part.split_once("help: ").expect("a remedy");
        assert!(!help.contains("d b"), "{part}");
    }
}

#[test]
fn all_errors_of_a_file_are_reported_in_its_order() {
    let unknown_keys = [("latency = ", "latecny = "), ("reactors = ", "reactor = ")];
    let values = [
        ("iops = 3000", "iops = \"many\""),
        ("dirty_limit = \"40%\"", "dirty_limit = \"400%\""),
        ("burst = \"2s\"", "burst = \"2 moons\""),
        ("direct = false", "direct = \"no\""),
    ];
    // References and addresses.
    let meaning = [
        ("backing = \"slow\"", "backing = \"fast\""),
        ("127.0.0.1:10809", "0.0.0.0:10809"),
        ("reactors = 2", "reactors = 65"),
    ];
    let all = [&unknown_keys[..], &values[..]].concat();
    for (changes, count) in [
        (&unknown_keys[..], 2),
        (&values[..], 4),
        (&all[..], 6),
        (&meaning[..], 3),
        (&[unknown_keys[0], meaning[0], meaning[1]][..], 3),
        // The wrong value of one table hides no problem of another one.
        (
            &[values[0], values[1], meaning[0], meaning[1], meaning[2]][..],
            5,
        ),
    ] {
        let problems = problems(&changed(changes));
        assert_eq!(problems.len(), count, "{changes:?}: {problems:?}");
        let lines: Vec<usize> = problems
            .iter()
            .map(|part| {
                part.split(':')
                    .next()
                    .expect("a line")
                    .parse()
                    .expect("a number")
            })
            .collect();
        assert!(lines.is_sorted(), "{lines:?}");
        assert!(
            problems.iter().all(|part| part.contains("\n    help: ")),
            "{problems:?}"
        );
    }
}

#[test]
fn errors_of_the_syntax_are_reported_together() {
    let problems = problems(&changed(&[
        ("path = \"db.img\"", "path = db.img"),
        ("promotion = \"nhit:2\"", "promotion = nhit:2"),
    ]));
    assert_eq!(problems.len(), 2, "{problems:?}");
}

#[test]
fn a_missing_key_and_its_consequences_are_reported_once() {
    let problems = problems(&changed(&[
        ("kind = \"emulate\"\n", ""),
        ("mode = \"wb\"", "mode = \"xx\""),
    ]));
    assert_eq!(
        problems.len(),
        2,
        "no error of the device that is missing by that: {problems:?}"
    );
    assert!(problems[0].contains("missing field `kind`"), "{problems:?}");
}

#[test]
fn a_required_key_with_a_wrong_value_is_not_missing() {
    for (from, to) in [
        ("kind = \"file\"", "kind = \"flie\""),
        ("kind = \"emulate\"", "kind = 7"),
        ("backing = \"slow\"", "backing = [\"slow\"]"),
        ("data = \"ssd\"", "data = 1"),
    ] {
        let problems = problems(&changed(&[(from, to)]));
        assert_eq!(problems.len(), 1, "{to}: {problems:?}");
        assert!(!problems[0].contains("missing field"), "{problems:?}");
    }
    // Another table lacks the key.
    let problems = problems(&changed(&[
        ("kind = \"file\"", "kind = \"flie\""),
        ("kind = \"emulate\"\n", ""),
    ]));
    assert_eq!(problems.len(), 2, "{problems:?}");
    let missing = |part: &&String| part.contains("missing field `kind`");
    assert_eq!(problems.iter().filter(missing).count(), 1, "{problems:?}");
}

#[test]
fn the_report_of_a_file_of_errors_has_a_limit() {
    let keys: String = (0..100)
        .map(|number| format!("key{number} = 1\n"))
        .collect();
    let problems = problems(&format!("{GOOD}\n{keys}"));
    assert!((2..=20).contains(&problems.len()), "{}", problems.len());
}
