//! The form of a refusal: a short line for each problem, and a line `help:` with the remedy.

/// Longest line of a problem without paths, characters.
const LINE_CHARACTERS: usize = 120;

const HELP: &str = "    help: ";

/// Start of further lines of a remedy.
const INDENT: &str = "          ";

/// Returns `text` with each remedy in one line.
#[must_use]
pub fn unwrapped(text: &str) -> String {
    text.replace(&format!("\n{INDENT}"), " ")
}

/// Checks the last error in the output of a command.
///
/// # Panics
/// Panics if one of its problems has a longer line, a name twice, or no help. Panics, too, if a
/// remedy has a longer line.
pub fn check_refusal(said: &str) {
    if let Some(wrong) = wrong_form(said) {
        panic!("{wrong}: {said}");
    }
}

/// Returns the reason why a refusal has the wrong form.
fn wrong_form(said: &str) -> Option<String> {
    let begins = said.rmatch_indices("forebay: ").map(|(at, _)| at);
    let mut begins = begins.filter(|at| *at == 0 || said[..*at].ends_with('\n'));
    let Some(begin) = begins.next() else {
        return Some("there is no error".into());
    };
    let mut lines = said[begin..].trim_end().lines().peekable();
    while let Some(problem) = lines.next() {
        if let Some(wrong) = too_long(problem) {
            return Some(wrong);
        }
        if let Some(name) = doubled(problem) {
            return Some(format!("{name} is named twice in a line"));
        }
        // The line of the configuration.
        lines.next_if(|line| line.trim_start().split_once(" | ").is_some_and(is_numbered));
        let Some(mut help) = lines.next().filter(|line| line.starts_with(HELP)) else {
            return Some("a problem without help".into());
        };
        loop {
            if let Some(wrong) = too_long(help) {
                return Some(wrong);
            }
            match lines.next_if(|line| line.starts_with(INDENT)) {
                Some(next) => help = next,
                None => break,
            }
        }
    }
    None
}

fn too_long(line: &str) -> Option<String> {
    let characters = without_paths(line).chars().count();
    (characters > LINE_CHARACTERS).then(|| format!("a line of {characters} characters"))
}

fn is_numbered((number, _): (&str, &str)) -> bool {
    number.parse::<u32>().is_ok()
}

/// Removes absolute paths.
fn without_paths(line: &str) -> String {
    let mut text = String::new();
    let mut is_path = false;
    let mut before = ' ';
    for c in line.chars() {
        let ends = c.is_whitespace() || ",:;()`\"".contains(c);
        is_path = if is_path {
            !ends
        } else {
            c == '/' && !before.is_alphanumeric()
        };
        if !is_path {
            text.push(c);
        }
        before = c;
    }
    text
}

/// Returns a noun with a quoted name, as in `volume "db"`, that is in a line twice.
fn doubled(line: &str) -> Option<String> {
    let parts: Vec<&str> = line.split('"').collect();
    let named = |at: usize| {
        let noun = parts[at - 1].trim_end().rsplit(' ').next()?;
        Some(format!("{noun} {:?}", parts[at]))
    };
    let names: Vec<String> = (1..parts.len()).step_by(2).filter_map(named).collect();
    let mut twice = names.iter().enumerate();
    let (_, name) = twice.find(|(at, name)| names[..*at].contains(name))?;
    Some(name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_of_the_form_is_found() {
        let long = "word ".repeat(30);
        for (said, wrong) in [
            ("forebay: a\n    help: b\n", None),
            (
                "log\nforebay: /a/b:2: c\n     2 | d\n    help: e\n/a/b:3: f\n    help: g\n",
                None,
            ),
            ("a\n", Some("no error")),
            ("forebay: a\n", Some("without help")),
            ("forebay: a\n    help: b\nc\n", Some("without help")),
            (
                &format!("forebay: {long}\n    help: b\n"),
                Some("a line of"),
            ),
            (
                &format!("forebay: /{}\n    help: b\n", "a".repeat(200)),
                None,
            ),
            (
                "forebay: a\n    help: b\n          c\nd\n    help: e\n",
                None,
            ),
            (
                &format!("forebay: a\n    help: {long}\n"),
                Some("a line of"),
            ),
            (
                &format!("forebay: a\n    help: b\n          {long}\n"),
                Some("a line of"),
            ),
            (
                "forebay: volume \"a\": volume \"a\" is b\n    help: c\n",
                Some("twice"),
            ),
            (
                "forebay: volume \"a\": volume \"b\" is c\n    help: d\n",
                None,
            ),
        ] {
            let found = wrong_form(said);
            match wrong {
                None => assert_eq!(found, None, "{said}"),
                Some(wrong) => assert!(found.is_some_and(|it| it.contains(wrong)), "{said}"),
            }
        }
    }
}
