//! The keys of the configuration: type, default, range and meaning of each.
//!
//! Keys and types are the fields of the parser's tables. Their documentation has the rest: a
//! meaning, then a list with the items `Of` (kinds or protocols that have the key), `Type`,
//! `Default` and `Range`. The parser's answers confirm keys, defaults, ranges and kinds.

mod answers;

use super::{Page, table};

/// The parser's tables: name in the file, source and type.
const TABLES: [(&str, &str, &str); 5] = [
    ("server", include_str!("../config/server.rs"), "RawServer"),
    ("cache", include_str!("../config/cache.rs"), "RawCache"),
    ("volume", include_str!("../config/volume.rs"), "RawVolume"),
    (
        "device",
        include_str!("../config/device/keys.rs"),
        "RawDevice",
    ),
    ("export", include_str!("../config/export.rs"), "RawExport"),
];

/// A key of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Key {
    name: String,
    /// Kinds of a device, or protocols of an export, that have the key; empty if all have it.
    of: Vec<String>,
    /// Type of its value, as in the table of types.
    kind: String,
    default: String,
    range: String,
    meaning: String,
}

impl Key {
    fn row(&self) -> Vec<String> {
        let cells = [
            format!("`{}`", self.name),
            self.kind.clone(),
            self.default.clone(),
            self.range.clone(),
            self.meaning.clone(),
        ];
        cells.to_vec()
    }
}

/// Returns the keys of a table of the file.
fn keys(table: &str) -> Vec<Key> {
    let (_, source, name) = TABLES
        .into_iter()
        .find(|(other, ..)| *other == table)
        .expect("the table is listed");
    read(source, name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads the fields of the struct `name` and their documentation.
///
/// # Errors
/// If a field has no meaning, an item is unknown, or an optional key has no default.
fn read(source: &str, name: &str) -> Result<Vec<Key>, String> {
    let begin = format!(" struct {name} {{");
    let lines = source.lines().skip_while(|line| !line.ends_with(&begin));
    let lines = lines.skip(1).take_while(|line| *line != "}").map(str::trim);
    let (mut keys, mut documentation, mut renamed) = (Vec::new(), Vec::new(), None);
    for line in lines {
        if let Some(text) = line.strip_prefix("///") {
            documentation.push(text.trim());
        } else if let Some(text) = line.strip_prefix("#[serde(rename = \"") {
            renamed = text.split('"').next();
        } else if let Some((field, kind)) = line.split_once(": ") {
            let field = field.rsplit(' ').next().unwrap_or(field);
            let name = renamed.take().unwrap_or(field);
            keys.push(key(name, kind.trim_end_matches(','), &documentation)?);
            documentation.clear();
        }
    }
    match keys.is_empty() {
        true => Err("no such struct, or it has no fields".into()),
        false => Ok(keys),
    }
}

fn key(name: &str, field: &str, documentation: &[&str]) -> Result<Key, String> {
    let mut key = Key {
        name: name.to_owned(),
        ..Key::default()
    };
    let is_optional = field.starts_with("Option<");
    let mut meaning = String::new();
    for line in &joined(documentation) {
        let item = line
            .strip_prefix("- ")
            .and_then(|item| item.split_once(": "));
        match item {
            Some(("Of", kinds)) => {
                let kinds = kinds
                    .split(", ")
                    .map(|kind| kind.trim_matches('`').to_owned());
                key.of = kinds.collect();
            }
            Some(("Type", kind)) => key.kind = kind.to_owned(),
            Some(("Default", default)) => key.default = default.to_owned(),
            Some(("Range", range)) => key.range = range.to_owned(),
            Some((other, _)) => return Err(format!("{name}: the item {other:?} is unknown")),
            None => meaning.extend([line.as_str(), " "]),
        }
    }
    key.meaning = cell(meaning.trim());
    if key.meaning.is_empty() {
        return Err(format!("{name}: the key has no documentation"));
    }
    match (is_optional, key.default.is_empty()) {
        (true, true) => return Err(format!("{name}: add an item `- Default: ...`")),
        (false, false) => return Err(format!("{name}: a required key has no default")),
        (false, true) => key.default = "required".to_owned(),
        (true, false) => {}
    }
    if key.kind.is_empty() {
        let kind = kind_of(field).ok_or_else(|| format!("{name}: add an item `- Type: ...`"))?;
        key.kind = kind.to_owned();
    }
    Ok(key)
}

/// Returns the lines, each item with the lines that continue it.
fn joined(documentation: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in documentation {
        match lines.last_mut() {
            Some(item) if item.starts_with("- ") && !line.starts_with("- ") => {
                item.push(' ');
                item.push_str(line);
            }
            _ => lines.push((*line).to_owned()),
        }
    }
    lines
}

/// Returns the type of the values of a field; `None` if its documentation has to name it.
fn kind_of(field: &str) -> Option<&'static str> {
    let mut inner = field;
    while let Some(rest) = inner
        .strip_prefix("Option<")
        .or_else(|| inner.strip_prefix("Spanned<"))
    {
        inner = rest.strip_suffix('>')?;
    }
    Some(match inner {
        "Count" => "integer",
        _ if inner.starts_with("Whole<") => "integer",
        "bool" => "boolean",
        "PathBuf" => "path",
        "Size" => "size",
        "Rate" => "rate",
        "Interval" => "time",
        "Percent" => "share",
        "Vec<Size>" => "list of sizes",
        "Vec<Spanned<String>>" => "list of texts",
        "String" => return None,
        // The others are names of a few values.
        _ => "text",
    })
}

/// Returns a sentence as a cell: without its end, and with a small letter unless it begins with an
/// abbreviation.
fn cell(sentence: &str) -> String {
    let sentence = sentence.strip_suffix('.').unwrap_or(sentence);
    let mut letters = sentence.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().to_string() + letters.as_str()
        }
        _ => sentence.to_owned(),
    }
}

/// Returns the kinds or protocols of a table, in the order of the keys.
fn kinds(keys: &[Key]) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for kind in keys.iter().flat_map(|key| &key.of) {
        if !kinds.contains(kind) {
            kinds.push(kind.clone());
        }
    }
    kinds
}

/// Renders a part: a table, or a table and a kind or protocol.
fn part(name: &str) -> String {
    let (of, kind) = name.split_once(' ').unwrap_or((name, ""));
    let keys = keys(of);
    let here = |key: &&Key| match kind {
        "" => key.of.is_empty(),
        kind => key.of.iter().any(|one| one == kind),
    };
    let rows: Vec<_> = keys.iter().filter(here).map(Key::row).collect();
    table(&["key", "type", "default", "range", "meaning"], &rows)
}

/// Returns the names of the parts of some tables.
fn parts(tables: &[&str]) -> Vec<String> {
    let mut parts = Vec::new();
    for table in tables {
        parts.push((*table).to_owned());
        let kinds = kinds(&keys(table)).into_iter();
        parts.extend(kinds.map(|kind| format!("{table} {kind}")));
    }
    parts
}

#[test]
fn the_pages_of_the_configuration_match_its_types() {
    for (file, tables) in [
        ("configuration.md", &["server", "cache", "volume"][..]),
        ("configuration-devices.md", &["device"]),
        ("configuration-exports.md", &["export"]),
    ] {
        let page = Page {
            file,
            parts: parts(tables),
            render: &|name, _| part(name),
        };
        page.check();
    }
}

#[test]
fn a_key_becomes_a_row_and_a_key_without_documentation_is_found() {
    let source = |documentation: &str, field: &str| {
        format!("x\npub(super) struct Raw {{\n{documentation}    {field},\n}}\n")
    };
    let documented = "    /// Size of it,\n    /// with room.\n    ///\n    /// - Of: \
                      `mem`, `ram`\n    /// - Default: `\"4K\"`\n    /// - Range: 4K to\n    \
                      ///   1M\n";
    let keys = read(
        &source(documented, "pub(super) size: Option<Spanned<Size>>"),
        "Raw",
    );
    let wanted = Key {
        name: "size".into(),
        of: vec!["mem".into(), "ram".into()],
        kind: "size".into(),
        default: "`\"4K\"`".into(),
        range: "4K to 1M".into(),
        meaning: "size of it, with room".into(),
    };
    assert_eq!(keys, Ok(vec![wanted]));
    for (documentation, field, said) in [
        ("", "size: Spanned<Size>", "has no documentation"),
        (
            "    /// Size.\n",
            "size: Option<Size>",
            "add an item `- Default",
        ),
        (
            "    /// Name.\n",
            "name: Spanned<String>",
            "add an item `- Type",
        ),
        (
            "    /// Size.\n    /// - Default: 1\n",
            "size: Size",
            "a required key",
        ),
        (
            "    /// Size.\n    /// - Unit: 1\n",
            "size: Size",
            "\"Unit\"",
        ),
    ] {
        let error = read(&source(documentation, field), "Raw").expect_err(field);
        assert!(error.contains(said), "{error}");
    }
    assert!(read("", "Raw").is_err());
}
