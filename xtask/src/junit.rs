//! The report of nextest: JUnit XML with the output of every test.

use std::collections::BTreeSet;

use roxmltree::{Document, Node};
use serde_json::Value;

use crate::test_name::Test;

/// One test that ran.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) test: Test,
    pub(crate) seconds: f64,
    /// The kind of the failure, such as `test timeout`; `None` if the test passed.
    pub(crate) failure: Option<String>,
    /// Standard output, then standard error.
    pub(crate) output: String,
}

/// Parses a report.
///
/// # Errors
/// Returns an error if it is not the XML that nextest writes.
pub(crate) fn parse(text: &str) -> Result<Vec<Case>, String> {
    let unreadable = |error: String| format!("cannot parse the report of the tests: {error}");
    let document = Document::parse(text).map_err(|error| unreadable(error.to_string()))?;
    let cases = document
        .descendants()
        .filter(|node| node.has_tag_name("testcase"));
    cases.map(|node| case(node).map_err(unreadable)).collect()
}

fn case(node: Node<'_, '_>) -> Result<Case, String> {
    let attribute = |name| {
        node.attribute(name)
            .ok_or(format!("a test case has no {name}"))
    };
    let failed =
        |child: &Node<'_, '_>| child.has_tag_name("failure") || child.has_tag_name("error");
    let failure = node.children().find(failed);
    let output = |name| {
        node.children()
            .filter(move |child| child.has_tag_name(name))
    };
    let output = output("system-out").chain(output("system-err"));
    let seconds = attribute("time")?;
    Ok(Case {
        test: Test {
            binary: attribute("classname")?.into(),
            name: attribute("name")?.into(),
        },
        seconds: seconds
            .parse()
            .map_err(|_| format!("{seconds:?} is not a time"))?,
        failure: failure.map(|failure| failure.attribute("type").unwrap_or("failure").into()),
        output: output.filter_map(|child| child.text()).collect(),
    })
}

impl Case {
    /// Returns the lines that name a skipped check or a stale finding of the mutation sweep.
    pub(crate) fn notices(&self) -> impl Iterator<Item = &str> {
        let lines = self.output.lines().map(str::trim);
        lines.filter(|line| line.starts_with("SKIPPED") || line.starts_with("stale: "))
    }

    /// Returns the results for programs, printed as lines `ROW {json}`.
    ///
    /// # Errors
    /// Returns an error if the rest of such a line is not JSON.
    pub(crate) fn rows(&self) -> Result<Vec<Value>, String> {
        let lines = self.output.lines();
        let rows = lines.filter_map(|line| line.trim().strip_prefix("ROW "));
        let parse = |row| serde_json::from_str(row).map_err(|error| format!("ROW {row}: {error}"));
        rows.map(parse).collect()
    }

    /// Returns a command line that runs this test alone with the same variables, without nextest.
    pub(crate) fn replay(&self, variables: &[(&str, String)]) -> String {
        let Test { binary, name } = &self.test;
        let (package, target) = binary.split_once("::").unwrap_or((binary, ""));
        let target = match target.split_once('/') {
            Some((kind, name)) => format!("--{kind} {name}"),
            None if target.is_empty() => "--lib".to_owned(),
            None => format!("--test {target}"),
        };
        let variables = variables.iter();
        let variables = variables.map(|(name, value)| format!("{name}={} ", quoted(value)));
        let variables = variables.collect::<String>();
        format!("{variables}cargo test -p {package} {target} -- --exact {name} --nocapture")
    }
}

/// Quotes a value for a shell if necessary.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        value.into()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

/// Prints the `count` tests that took longest.
pub(crate) fn print_slowest(cases: &[Case], count: usize) {
    let mut slowest: Vec<_> = cases.iter().collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("\nthe slowest tests, seconds:");
    for case in slowest.iter().take(count) {
        println!("{:>8.1}  {}", case.seconds, case.test);
    }
}

/// Prints, once each, the lines that name a skipped check or a stale finding.
pub(crate) fn print_notices(cases: &[Case]) {
    for case in cases {
        // The tests of this program print such lines for planted input.
        if case.test.package() == env!("CARGO_PKG_NAME") {
            continue;
        }
        for line in case.notices().collect::<BTreeSet<_>>() {
            println!("{}: {line}", case.test);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="2" time="4.004">
    <testsuite name="a" tests="2" failures="1">
        <testcase name="x::one" classname="a" timestamp="2026-11-26T03:18:18+00:00" time="0.250">
            <system-out>
running 1 test
SKIPPED: no &lt;loop&gt; device
</system-out>
            <system-err>ROW {&quot;seeds&quot;: 3}
</system-err>
        </testcase>
        <testcase name="x::two" classname="a" time="4.003">
            <failure type="test timeout"/>
        </testcase>
    </testsuite>
    <testsuite name="b::it" tests="1" failures="1">
        <testcase name="three" classname="b::it" time="1.5">
            <failure message="panicked" type="test failure with exit code 101">backtrace</failure>
            <system-out>two SKIPPED words</system-out>
        </testcase>
    </testsuite>
</testsuites>
"#;

    #[test]
    fn a_report_has_times_failures_and_output() {
        let cases = parse(REPORT).expect("well-formed");
        let tests: Vec<_> = cases.iter().map(|case| case.test.to_string()).collect();
        assert_eq!(tests, ["a x::one", "a x::two", "b::it three"]);
        assert_eq!(cases[1].seconds, 4.003);
        let failures = cases.iter().map(|case| case.failure.as_deref());
        let expected = [
            None,
            Some("test timeout"),
            Some("test failure with exit code 101"),
        ];
        assert_eq!(failures.collect::<Vec<_>>(), expected);
        assert_eq!(
            cases[0].notices().collect::<Vec<_>>(),
            ["SKIPPED: no <loop> device"]
        );
        assert_eq!(cases[0].rows(), Ok(vec![serde_json::json!({"seeds": 3})]));
        assert_eq!(
            (cases[2].notices().count(), cases[2].rows()),
            (0, Ok(Vec::new()))
        );
    }

    #[test]
    fn a_row_that_is_no_json_is_an_error() {
        let cases = parse(&REPORT.replace("&quot;: 3}", "&quot;: 3")).expect("well-formed");
        assert!(cases[0].rows().is_err());
    }

    #[test]
    fn unreadable_reports_are_an_error() {
        for (from, to) in [
            ("</testsuites>", ""),
            ("1.5", "soon"),
            ("classname", "name2"),
        ] {
            assert!(parse(&REPORT.replace(from, to)).is_err(), "{from}");
        }
    }

    #[test]
    fn a_replay_names_package_target_test_and_variables() {
        let replay = |binary: &str, variables: &[(&str, String)]| {
            let case = Case {
                test: Test {
                    binary: binary.into(),
                    name: "x::one".into(),
                },
                seconds: 0.0,
                failure: None,
                output: String::new(),
            };
            case.replay(variables)
        };
        let end = "-- --exact x::one --nocapture";
        assert_eq!(replay("a", &[]), format!("cargo test -p a --lib {end}"));
        assert_eq!(
            replay("a::it", &[]),
            format!("cargo test -p a --test it {end}")
        );
        assert_eq!(
            replay("a::bin/b", &[]),
            format!("cargo test -p a --bin b {end}")
        );
        assert_eq!(
            replay("a", &[("N", "7".into()), ("PATH_2", "it's".into())]),
            format!(r"N=7 PATH_2='it'\''s' cargo test -p a --lib {end}")
        );
    }
}
