//! Parses text to raw tables. Continues after an error, so that all errors of a file are reported
//! together.

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::File;
use super::problem::{Problems, Span, without_quotes};

/// Most problems that are reported for one file.
const MOST: usize = 20;

/// Returns the tables of `text`, without keys whose values are wrong; `None` if errors make further
/// checks meaningless. Adds errors to `problems`.
pub(super) fn read(text: &str, problems: &mut Problems<'_>) -> Option<File> {
    let (mut tree, errors) = DeTable::parse_recoverable(text);
    let mut lines = Vec::new();
    for error in &errors {
        let line = problems.line(error.span().unwrap_or(0..0).start);
        // Further errors of a line mostly follow from its first.
        if lines.len() < MOST && !lines.contains(&line) {
            problems.add_syntax(error);
            lines.push(line);
        }
    }
    if !errors.is_empty() {
        return None;
    }
    let mut is_whole = true;
    // Keys whose wrong values are removed, each with the span of its table. They are not missing.
    let mut wrong = Vec::new();
    // Places of tables without such a key.
    let mut incomplete = Vec::new();
    // Texts that were replaced by the values in them.
    let mut unquoted: Vec<Span> = Vec::new();
    for _ in 0..MOST {
        let error = match File::deserialize(Deserializer::from(tree.clone())) {
            Ok(file) => {
                incomplete
                    .iter()
                    .for_each(|offset| problems.mute_table(*offset));
                return is_whole.then_some(file);
            }
            Err(error) => error,
        };
        let is_missing = |(table, key): &(Span, String)| {
            error.span().as_ref() == Some(table)
                && error.message() == format!("missing field `{key}`")
        };
        let is_known = error.span().is_some_and(|span| unquoted.contains(&span));
        if !wrong.iter().any(is_missing) && !is_known {
            problems.add_syntax(&error);
        }
        let span = error.span()?;
        // The file means `reactors = 2` where it has `reactors = "2"`: the rest is checked with it.
        if error.message().starts_with("invalid type: string ") && !unquoted.contains(&span) {
            unquoted.push(span.clone());
            let value = without_quotes(&text[span.clone()]).map(DeValue::parse);
            if let Some(Ok(value)) = value {
                let value = Spanned::new(span.clone(), value.into_inner());
                for (_, place) in tree.get_mut().iter_mut() {
                    replace(place, &value);
                }
                continue;
            }
        }
        let key = (tree.get_ref().values()).find_map(|value| key_of(value, &span));
        // An unknown key hides nothing, and the wrong value of a key the rest of its table only.
        // Another error may hide further ones.
        let is_plain = !text[span.clone()].starts_with(['[', '{']);
        match key.is_some() && is_plain && !error.message().starts_with("missing field") {
            _ if error.message().starts_with("unknown field") => {}
            true => incomplete.push(span.start),
            false => is_whole = false,
        }
        wrong.extend(key);
        if !remove(tree.get_mut(), &span) {
            return None;
        }
    }
    None
}

/// Replaces the value at the same span.
fn replace<'a>(place: &mut Spanned<DeValue<'a>>, value: &Spanned<DeValue<'a>>) {
    if place.span() == value.span() {
        place.clone_from(value);
        return;
    }
    match place.get_mut() {
        DeValue::Table(table) => table
            .iter_mut()
            .for_each(|(_, inner)| replace(inner, value)),
        DeValue::Array(array) => array.iter_mut().for_each(|inner| replace(inner, value)),
        _ => {}
    }
}

/// Returns the key of the value at `span` in a table of `value`, with the span of this table.
fn key_of(value: &Spanned<DeValue<'_>>, span: &Span) -> Option<(Span, String)> {
    match value.get_ref() {
        DeValue::Table(table) => {
            table
                .iter()
                .find_map(|(key, inner)| match inner.span() == *span {
                    true => Some((value.span(), key.get_ref().to_string())),
                    false => key_of(inner, span),
                })
        }
        DeValue::Array(array) => array.iter().find_map(|element| key_of(element, span)),
        _ => None,
    }
}

/// Removes the key, value or table at `span`. Returns whether it existed.
fn remove(table: &mut DeTable<'_>, span: &Span) -> bool {
    let (mut removed, mut emptied) = (false, None);
    for (key, value) in table.iter_mut() {
        if !removed && remove_in(value, span) {
            removed = true;
            // An empty array would be the next error.
            let is_empty = matches!(value.get_ref(), DeValue::Array(array) if array.is_empty());
            emptied = is_empty.then(|| key.span());
        }
    }
    if let Some(emptied) = emptied {
        let all = std::mem::take(table).into_iter();
        table.extend(all.filter(|(key, _)| key.span() != emptied));
    }
    if !removed {
        let before = table.len();
        let all = std::mem::take(table).into_iter();
        table.extend(all.filter(|(key, value)| key.span() != *span && value.span() != *span));
        removed = table.len() < before;
    }
    removed
}

fn remove_in(value: &mut Spanned<DeValue<'_>>, span: &Span) -> bool {
    match value.get_mut() {
        DeValue::Table(table) => remove(table, span),
        DeValue::Array(array) => {
            if array.iter_mut().any(|element| remove_in(element, span)) {
                return true;
            }
            let before = array.len();
            let mut left = DeArray::new();
            for element in std::mem::replace(array, DeArray::new()) {
                if element.span() != *span {
                    left.push(element);
                }
            }
            *array = left;
            array.len() < before
        }
        _ => false,
    }
}
