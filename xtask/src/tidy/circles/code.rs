//! Rust source as tokens, without comments and literals, and the paths in it.

/// A path, such as `crate::map::Map` in three parts.
pub(super) type Path = Vec<String>;

/// Returns the tokens of a source: names, `::` and single characters.
pub(in crate::tidy) fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = skipped(rest).unwrap_or_else(|| {
            let len = token_len(rest, first);
            tokens.push(&rest[..len]);
            len
        });
        rest = &rest[len..];
    }
    tokens
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub(in crate::tidy) fn token_len(rest: &str, first: char) -> usize {
    if is_name(first) {
        return rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    }
    if rest.starts_with("::") {
        return 2;
    }
    first.len_utf8()
}

/// Returns the length of a leading space, comment or literal, which is not a token.
pub(in crate::tidy) fn skipped(rest: &str) -> Option<usize> {
    let to = |end: &str, from: usize| {
        let found = rest[from..].find(end);
        found.map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with(char::is_whitespace) {
        return Some(
            rest.find(|c: char| !c.is_whitespace())
                .unwrap_or(rest.len()),
        );
    }
    if rest.starts_with("//") {
        return Some(to("\n", 2));
    }
    if rest.starts_with("/*") {
        return Some(to("*/", 2));
    }
    if let Some(raw) = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')) {
        let hashes = raw.find(|c| c != '#').unwrap_or(0);
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(to(&end, rest.len() - raw.len() + hashes + 1));
        }
    }
    if rest.starts_with('"') {
        return Some(quoted(rest, '"'));
    }
    let is_character = |quoted: &str| {
        let mut inside = quoted.chars();
        let first = inside.next();
        first == Some('\\') || inside.next() == Some('\'')
    };
    // A lifetime is a quote before a name.
    let after = rest.strip_prefix('\'')?;
    Some(match is_character(after) {
        true => quoted(rest, '\''),
        false => 1,
    })
}

/// Returns the length of a literal that begins with a quote.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Returns the tokens without the items that are compiled for tests only.
pub(super) fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut remaining = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(&tokens[at..]) {
            at = end_of_item(tokens, at);
        } else {
            remaining.push(tokens[at]);
            at += 1;
        }
    }
    remaining
}

fn is_test_attribute(tokens: &[&str]) -> bool {
    if !matches!(tokens, ["#", "[", "cfg", "(", ..]) {
        return false;
    }
    let inside = tokens.iter().take_while(|token| **token != "]");
    let mut is_test = false;
    for token in inside {
        match *token {
            "not" => return false,
            "test" => is_test = true,
            _ => {}
        }
    }
    is_test
}

/// Returns the index after an item that begins with the attribute at `from`.
fn end_of_item(tokens: &[&str], from: usize) -> usize {
    let mut at = from;
    let mut depth = 0_usize;
    let mut attribute = false;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match *token {
            "#" => attribute = true,
            "]" if attribute && depth == 0 => attribute = false,
            _ if attribute => {}
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + usize::from(tokens.get(at) == Some(&";"));
                }
            }
            ";" if depth == 0 => return at,
            _ => {}
        }
    }
    at
}

/// Returns the declared modules that have a file of their own.
pub(super) fn declared(tokens: &[&str]) -> Vec<String> {
    let declared = tokens.windows(3).filter_map(|three| match three {
        ["mod", name, ";"] => Some((*name).to_owned()),
        _ => None,
    });
    declared.collect()
}

/// Returns the paths in the code that begin at the crate or a parent. A glob ends at its module.
pub(super) fn paths(tokens: &[&str]) -> Vec<Path> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let begins = matches!(*token, "crate" | "super" | "self")
            && tokens.get(at + 1) == Some(&"::")
            && (at == 0 || tokens[at - 1] != "::");
        if begins {
            let mut tree = Vec::new();
            use_tree(tokens, at, &[], &mut tree);
            found.extend(tree.into_iter().map(|(_, path)| path));
        }
    }
    found
}

/// Returns the names that `use` items import, with their paths.
pub(super) fn uses(tokens: &[&str]) -> Vec<(String, Path)> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if *token == "use" && tokens.get(at + 1).is_some_and(|next| *next != "<") {
            use_tree(tokens, at + 1, &[], &mut found);
        }
    }
    found
}

/// Parses a tree of paths after a prefix. Returns the index after it.
fn use_tree(
    tokens: &[&str],
    at: usize,
    prefix: &[String],
    found: &mut Vec<(String, Path)>,
) -> usize {
    let Some(token) = tokens.get(at) else {
        return at;
    };
    if *token == "{" {
        let mut at = at + 1;
        while at < tokens.len() && tokens[at] != "}" {
            at = match tokens[at] {
                "," => at + 1,
                _ => use_tree(tokens, at, prefix, found).max(at + 1),
            };
        }
        return at + 1;
    }
    let mut path = prefix.to_vec();
    if *token == "*" {
        found.push(("*".to_owned(), path));
        return at + 1;
    }
    if *token == "self" && !prefix.is_empty() {
        found.push((prefix[prefix.len() - 1].clone(), path));
        return at + 1;
    }
    path.push((*token).to_owned());
    let goes_on = |next: &&str| matches!(*next, "{" | "*") || next.starts_with(is_name);
    if tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(goes_on) {
        return use_tree(tokens, at + 2, &path, found);
    }
    match (tokens.get(at + 1), tokens.get(at + 2)) {
        (Some(&"as"), Some(name)) => {
            found.push(((*name).to_owned(), path));
            at + 3
        }
        _ => {
            found.push(((*token).to_owned(), path));
            at + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "a // crate::b\n/* c */ \"crate::d \\\" e\" r#\"f \" g\"# 'h' '\\'' &'i str";
        assert_eq!(tokens(text), ["a", "&", "i", "str"]);
    }

    #[test]
    fn a_tree_of_paths_is_spread_out() {
        let code = tokens("use crate::a::{self, b as c, d::{e, f::*}};");
        let found: Vec<String> = paths(&code).iter().map(|path| path.join("::")).collect();
        let expected = [
            "crate::a",
            "crate::a::b",
            "crate::a::d::e",
            "crate::a::d::f",
        ];
        assert_eq!(found, expected);
        let names: Vec<String> = uses(&code).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "c", "e", "*"]);
    }

    #[test]
    fn items_for_tests_are_left_out() {
        let code = "#[cfg(test)]\n#[allow(x)]\nmod tests { fn a() {} }\n#[cfg(test)]\nmod b;\n\
                    #[cfg(not(test))]\nmod c;\n#[cfg(test)]\nuse d::{e, f};\nmod g;";
        let code = without_tests(&tokens(code));
        assert_eq!(declared(&code), ["c", "g"]);
        assert!(!code.contains(&"d"));
    }
}
