//! The names that a Rust source declares.

use super::super::circles::code::tokens;

/// Keywords that precede a declared name.
const ITEMS: [&str; 9] = [
    "const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union",
];

/// Words that may stand where a name does.
const KEYWORDS: [&str; 8] = ["box", "crate", "fn", "mut", "pub", "ref", "self", "super"];

/// Returns the declared names: items, parameters, fields, variants and variables of `let`. Each is
/// a part of `text`.
pub(super) fn declared(text: &str) -> Vec<&str> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if ITEMS.contains(token) {
            let name = tokens[at + 1..].iter().position(|token| *token != "mut");
            found.extend(name.map(|skipped| at + 1 + skipped));
        }
        match *token {
            // A type of functions has no name.
            "fn" if tokens.get(at + 1) != Some(&"(") => {
                let after = after_generics(&tokens, at + 2);
                found.extend(members(&tokens, after, "("));
            }
            "struct" | "union" => found.extend(members(&tokens, at, "{")),
            "enum" => found.extend(variants(&tokens, at)),
            "let" => found.extend(pattern(&tokens, at)),
            _ => {}
        }
    }
    let names = found.into_iter().map(|at| tokens[at]);
    names.filter(|name| is_name(name)).collect()
}

/// Returns the line of a part of `text`, from 1.
pub(super) fn line_of(text: &str, part: &str) -> usize {
    let offset = part.as_ptr().addr() - text.as_ptr().addr();
    1 + text[..offset].matches('\n').count()
}

fn is_name(token: &str) -> bool {
    let begins = |c: char| c.is_alphabetic() || c == '_';
    token.starts_with(begins) && !KEYWORDS.contains(&token)
}

/// Returns the index after a list of generic parameters, if one begins at `from`.
fn after_generics(tokens: &[&str], from: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match *token {
            "<" => depth += 1,
            // An arrow ends no list.
            ">" if tokens[at - 1] != "-" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if *token == ">" { at + 1 } else { at };
        }
    }
    from
}

/// Returns the tokens inside the first brackets that begin with `open` after an item's keyword,
/// with their depth from 1. Returns nothing if the item ends before.
fn inside(tokens: &[&str], item: usize, open: &str) -> Vec<(usize, usize)> {
    let ends = |token: &&str| [open, ";", "{"].contains(token);
    let Some(begin) = tokens[item..].iter().position(ends) else {
        return Vec::new();
    };
    if tokens[item + begin] != open {
        return Vec::new();
    }
    let mut depth = 0;
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate().skip(item + begin) {
        match *token {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => found.push((at, depth)),
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// Returns the parameters or fields of an item: the names before a colon.
fn members(tokens: &[&str], item: usize, open: &str) -> Vec<usize> {
    let inside = inside(tokens, item, open).into_iter();
    let is_member = |(at, depth): &(usize, usize)| *depth == 1 && tokens.get(at + 1) == Some(&":");
    inside.filter(is_member).map(|(at, _)| at).collect()
}

/// Returns the variants of an enum, and their fields.
fn variants(tokens: &[&str], item: usize) -> Vec<usize> {
    let inside = inside(tokens, item, "{").into_iter();
    let is_declared = |(at, depth): &(usize, usize)| match depth {
        1 => ["{", ",", "]"].contains(&tokens[at - 1]),
        2 => tokens.get(at + 1) == Some(&":") && ["{", ",", "]"].contains(&tokens[at - 1]),
        _ => false,
    };
    inside.filter(is_declared).map(|(at, _)| at).collect()
}

/// Returns the variables of a `let`. A name before a colon in braces is a field of another type.
fn pattern(tokens: &[&str], item: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(item + 1) {
        match *token {
            "=" | ";" => break,
            ":" if depth == 0 => break,
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {
                let next = tokens.get(at + 1);
                let is_field = depth > 0 && next == Some(&":");
                let is_path = next == Some(&"::") || next == Some(&"(") || next == Some(&"{");
                let is_variable = token.starts_with(|c: char| c.is_lowercase() || c == '_');
                if is_variable && !is_field && !is_path {
                    found.push(at);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(usize, &str)> {
        let names = declared(text).into_iter();
        names.map(|name| (line_of(text, name), name)).collect()
    }

    #[test]
    fn items_and_their_parameters_are_declared() {
        let text = "mod a;\nconst B: u8 = c;\nstatic mut D: u8 = 0;\n\
                    fn e<F: Fn(u8) -> u8>(\n    g: H,\n    mut i: &J,\n) {}";
        let expected = [(1, "a"), (2, "B"), (3, "D"), (4, "e"), (5, "g"), (6, "i")];
        assert_eq!(names(text), expected);
    }

    #[test]
    fn fields_and_variants_are_declared() {
        let text =
            "struct A<B: C> {\n    d: E<F>,\n    #[g(h = i)]\n    pub(super) j: fn(k: u8),\n}";
        assert_eq!(names(text), [(1, "A"), (2, "d"), (4, "j")]);
        let text = "enum A {\n    #[b]\n    C,\n    D(e::F),\n    G { h: I },\n    J = 1,\n}";
        assert_eq!(
            names(text),
            [(1, "A"), (3, "C"), (4, "D"), (5, "G"), (5, "h"), (6, "J")]
        );
        assert_eq!(names("struct A(B);\nlet c = 1;"), [(1, "A"), (2, "c")]);
    }

    #[test]
    fn variables_of_patterns_are_declared() {
        let text = "let (a, Some(mut b)) = c;\nlet D { e, f: g, .. } = h;\nlet i: J = k::l();";
        assert_eq!(
            names(text),
            [(1, "a"), (1, "b"), (2, "e"), (2, "g"), (3, "i")]
        );
        assert_eq!(
            names("if let Some(a) = b && let c::D(e) = f {}"),
            [(1, "a"), (1, "e")]
        );
    }
}
