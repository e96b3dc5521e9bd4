//! The fields of the status of the daemon and of the page cache: JSON keys and metrics.

use super::{Page, table};
use crate::status::{Status, TABLES};
use forebay_pagecache_cli::status as page_cache;
use forebay_terminal::record::{Metric, Record as _, Table, Unit};

const JSON: &str = "fields of ";
const METRICS: &str = "metrics of ";

/// A status with its records.
struct Described {
    whole: &'static Table,
    tables: &'static [&'static Table],
}

const DAEMON: Described = Described {
    whole: &Status::TABLE,
    tables: TABLES,
};

const PAGE_CACHE: Described = Described {
    whole: &page_cache::Status::TABLE,
    tables: page_cache::TABLES,
};

impl Described {
    fn json_parts(&self) -> impl Iterator<Item = String> {
        let tables = self.tables.iter();
        tables.map(|table| format!("{JSON}{}", table.name))
    }

    fn metrics_parts(&self) -> impl Iterator<Item = String> {
        let measured = self.measured().into_iter();
        let with_metrics = measured.filter(|(table, _)| has_metrics(table));
        with_metrics.map(|(table, _)| format!("{METRICS}{}", table.name))
    }

    fn render(&self, part: &str) -> String {
        if part.starts_with(JSON) {
            return fields(self.found(part, JSON).0);
        }
        let (table, labels) = self.found(part, METRICS);
        metrics(table, &labels)
    }

    fn check(&self, file: &'static str, parts: Vec<String>) {
        let page = Page {
            file,
            parts,
            render: &|part, _| self.render(part),
        };
        page.check();
    }
}

#[test]
fn the_json_page_matches_the_status() {
    DAEMON.check("json.md", DAEMON.json_parts().collect());
}

#[test]
fn the_metrics_page_matches_the_status() {
    DAEMON.check("metrics.md", DAEMON.metrics_parts().collect());
}

#[test]
fn the_page_of_the_page_cache_matches_its_status() {
    let parts = PAGE_CACHE.json_parts().chain(PAGE_CACHE.metrics_parts());
    PAGE_CACHE.check("page-cache-status.md", parts.collect());
}

#[test]
fn names_agree_with_units_and_types() {
    for table in TABLES.iter().chain(page_cache::TABLES) {
        for entry in table.entries {
            let (key, unit) = (entry.key, Unit::of(entry.key));
            assert!(entry.meaning.ends_with('.'), "{key}: {}", entry.meaning);
            if let Metric::Family { name, kind, .. } = entry.metric {
                let stem = name.strip_suffix("_total").unwrap_or(name);
                assert_eq!(stem != name, kind == "counter", "{name}");
                let is_time = matches!(
                    unit,
                    Unit::Seconds | Unit::Milliseconds | Unit::Microseconds
                );
                let is_time = is_time || kind == "histogram";
                assert_eq!(stem.ends_with("_seconds"), is_time, "{name}");
                assert_eq!(stem.ends_with("_bytes"), unit == Unit::Bytes, "{name}");
            }
        }
        for key in table.order {
            let mut entries = table.entries.iter();
            let entry = entries.find(|entry| entry.key == *key);
            let shown =
                entry.is_some_and(|entry| !matches!(entry.metric, Metric::None | Metric::Label(_)));
            assert!(shown, "{}: {key} has a metric", table.name);
        }
        for (key, _) in table.columns {
            let mut entries = table.entries.iter();
            assert!(
                entries.any(|entry| entry.key == *key),
                "{}: {key}",
                table.name
            );
        }
    }
}

impl Described {
    /// Returns the tables below the whole status, each with the labels of its metrics.
    fn measured(&self) -> Vec<(&'static Table, Vec<&'static str>)> {
        fn walk(
            table: &'static Table,
            outer: &[&'static str],
            found: &mut Vec<(&'static Table, Vec<&'static str>)>,
        ) {
            let own = table.entries.iter().filter_map(|entry| match entry.metric {
                Metric::Label(label) => Some(label),
                _ => None,
            });
            let labels: Vec<_> = outer.iter().copied().chain(own).collect();
            found.push((table, labels.clone()));
            for entry in table.entries {
                if let Metric::Records { table, .. } = entry.metric {
                    walk(table, &labels, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(self.whole, &[], &mut found);
        found
    }

    /// Returns the table of `part`, and the labels of its metrics.
    fn found(&self, part: &str, prefix: &str) -> (&'static Table, Vec<&'static str>) {
        let name = part.strip_prefix(prefix).expect("the part has the prefix");
        let measured = self
            .measured()
            .into_iter()
            .find(|(table, _)| table.name == name);
        measured.unwrap_or_else(|| {
            let mut tables = self.tables.iter();
            let table = tables.find(|table| table.name == name);
            (table.expect("the part is of a record"), Vec::new())
        })
    }
}

fn has_metrics(table: &Table) -> bool {
    let mut entries = table.entries.iter();
    entries.any(|entry| matches!(entry.metric, Metric::Family { .. } | Metric::Info { .. }))
}

fn metrics(of: &Table, labels: &[&str]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (_, entry) in of.in_order() {
        let (name, kind, labels, meaning) = match entry.metric {
            Metric::Family { name, kind, .. } => {
                (name, kind, labels.to_vec(), phrase(entry.help()))
            }
            Metric::Info {
                name,
                help: Some(help),
                ..
            } => {
                let mut labels = labels.to_vec();
                labels.extend(of.entries.iter().filter_map(|entry| match entry.metric {
                    Metric::Info {
                        name: other, label, ..
                    } if other == name => Some(label),
                    _ => None,
                }));
                (name, "gauge", labels, format!("always 1: {}", phrase(help)))
            }
            _ => continue,
        };
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        rows.push(vec![
            format!("`{name}`"),
            kind.to_owned(),
            labels.join(", "),
            meaning,
        ]);
    }
    table(&["metric", "type", "labels", "meaning"], &rows)
}

fn fields(of: &Table) -> String {
    let rows = of.entries.iter().map(|entry| {
        vec![
            format!("`{}`", entry.key),
            json_type(entry.kind, Unit::of(entry.key)),
            phrase(entry.meaning),
        ]
    });
    table(&["field", "type", "meaning"], &rows.collect::<Vec<_>>())
}

/// Returns the JSON type of a field with the Rust type `kind`.
fn json_type(kind: &str, unit: Unit) -> String {
    let inside = |outer: &str| kind.strip_prefix(outer)?.strip_suffix('>');
    if let Some(inner) = inside("Option<") {
        return format!("{} or null", json_type(inner, unit));
    }
    if let Some(inner) = inside("Vec<") {
        return format!("list of {}", json_type(inner, unit));
    }
    match kind {
        "bool" => "true or false".to_owned(),
        "String" | "Mode" | "Promotion" => "text".to_owned(),
        "u8" | "u32" | "u64" | "usize" | "f64" => match unit {
            Unit::None => "number",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes/s",
            Unit::Seconds => "s",
            Unit::Milliseconds => "ms",
            Unit::Microseconds => "us",
            Unit::Percent => "percent",
        }
        .to_owned(),
        record => {
            let name = record.strip_suffix("Status").unwrap_or(record);
            let name = name.to_lowercase();
            format!("[{name}](#{name})")
        }
    }
}

/// Returns a sentence as the text of a cell: without the full stop and the capital letter.
fn phrase(sentence: &str) -> String {
    let text = sentence.strip_suffix('.').unwrap_or(sentence);
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            format!("{}{}", first.to_lowercase(), &text[first.len_utf8()..])
        }
        _ => text.to_owned(),
    }
}
