//! The texts of messages in a Rust source.

use super::super::circles::code::{skipped, token_len};
use super::{CALLS, MACROS, VARIABLES};

/// Tests inside of a file are its last item.
const TESTS: &str = "#[cfg(test)]\nmod ";

/// Returns the place of the tests in a source, or its end. `mod NAME;` has its tests elsewhere.
fn end_of_code(text: &str) -> usize {
    let modules = text.match_indices(TESTS);
    let inside = |place: &usize| {
        let name = &text[place + TESTS.len()..];
        name.find(['{', ';'])
            .is_some_and(|at| name[at..].starts_with('{'))
    };
    let mut places = modules.map(|(place, _)| place).filter(inside);
    places.next().unwrap_or(text.len())
}

/// Returns the messages of a source, each with its line, from 1, and without escapes.
pub(super) fn messages(text: &str) -> Vec<(usize, String)> {
    let code = &text[..end_of_code(text)];
    let mut place = Place::default();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(first) = code[at..].chars().next() {
        let rest = &code[at..];
        let len = match skipped(rest) {
            Some(len) => {
                if first == '"' && place.is_message() {
                    let line = 1 + code[..at].matches('\n').count();
                    found.push((line, unescaped(&rest[1..len.max(2) - 1])));
                }
                len
            }
            None => {
                let len = token_len(rest, first);
                place.take(&rest[..len]);
                len
            }
        };
        at += len;
    }
    found
}

/// A place in the code, by the brackets around it.
#[derive(Default)]
struct Place<'a> {
    /// For each open bracket, whether it is that of a message's call.
    brackets: Vec<bool>,
    /// Last tokens, the newest first.
    last: [&'a str; 3],
    /// Bracket depth of the `let` that defines a message variable.
    variable: Option<usize>,
}

impl<'a> Place<'a> {
    fn take(&mut self, token: &'a str) {
        let [name, before, path] = self.last;
        match token {
            "(" => {
                let is_call = CALLS.contains(&name)
                    || ["::", "."].contains(&before)
                        && CALLS.contains(&&*format!("{path}{before}{name}"))
                    || name == "!" && MACROS.contains(&&*format!("{before}!"));
                self.brackets.push(is_call);
            }
            "[" | "{" => self.brackets.push(false),
            ")" | "]" | "}" => {
                self.brackets.pop();
            }
            ";" if self.variable == Some(self.brackets.len()) => self.variable = None,
            "=" if before == "let" && VARIABLES.contains(&name) => {
                self.variable = Some(self.brackets.len());
            }
            _ => {}
        }
        // A block that ends without the statement's end.
        self.variable = self.variable.filter(|depth| *depth <= self.brackets.len());
        self.last = [token, name, before];
    }

    fn is_message(&self) -> bool {
        self.variable.is_some() || self.brackets.contains(&true)
    }
}

/// Replaces the escapes of a literal.
fn unescaped(literal: &str) -> String {
    let mut text = String::with_capacity(literal.len());
    let mut rest = literal.chars();
    while let Some(c) = rest.next() {
        match (c, rest.as_str().chars().next()) {
            ('\\', Some('\n')) => rest = rest.as_str().trim_start().chars(),
            ('\\', Some(escaped)) => {
                rest.next();
                text.push(if escaped == 'n' { '\n' } else { escaped });
            }
            _ => text.push(c),
        }
    }
    text
}

/// Removes the placeholders of a format.
pub(super) fn without_placeholders(text: &str) -> String {
    replaced(text, "")
}

/// Replaces the placeholders of a format by a word.
pub(super) fn with_nouns(text: &str) -> String {
    replaced(text, "it")
}

fn replaced(text: &str, word: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        rest = match after.strip_prefix('{') {
            Some(after) => after,
            None => {
                out.push_str(word);
                after.split_once('}').map_or("", |(_, after)| after)
            }
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_lines_and_no_escapes() {
        let text =
            "fn a() {\n    b().context(|| {\n        \"\\\"c\\\" \\\n         d\\ne\"\n    });\n}";
        assert_eq!(messages(text), [(3, "\"c\" d\ne".to_owned())]);
    }

    #[test]
    fn tests_end_a_source_unless_they_have_their_own() {
        let tests = |body: &str| format!("#[cfg(test)]\nmod tests{body}\n");
        let call = "fn a() {\n    b(\"c\").context(\"d\")\n}\n";
        let own = format!("{}{call}", tests(";"));
        assert_eq!(messages(&own), [(4, "d".to_owned())]);
        let inside = format!("{}{call}", tests(" {\n}"));
        assert_eq!(messages(&inside), []);
    }

    #[test]
    fn placeholders_are_replaced() {
        assert_eq!(without_placeholders("a {b:?}, {}{c} {{d}}"), "a ,  d}}");
        assert_eq!(with_nouns("a {b:?}"), "a it");
    }
}
