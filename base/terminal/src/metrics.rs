//! A status in the text format 0.0.4 of Prometheus, with base units (bytes, seconds) and `_total`
//! on counters.

use std::fmt::{Display, Write as _};

use crate::record::{Distribution, Entry, Fields, Metric, Record, Table, Unit, Value};

/// Text under construction.
struct Text(String);

/// Name and value of a label.
type Label<'a> = (&'a str, &'a str);

/// A record with the labels of its metrics.
struct Item<'a> {
    labels: Vec<(&'static str, String)>,
    values: Vec<Value<'a>>,
}

/// Returns the metrics of `status`.
#[must_use]
pub fn render<T: Record>(status: &T) -> String {
    let mut text = Text(String::with_capacity(16 << 10));
    let item = Item::new(&T::TABLE, &[], status);
    text.table(&T::TABLE, &[item]);
    text.0
}

impl<'a> Item<'a> {
    /// Returns a record of `table` whose metrics have the labels `outer` and its own.
    fn new(table: &Table, outer: &[(&'static str, String)], record: &'a dyn Fields) -> Self {
        let values = record.values();
        let own = table.entries.iter().zip(&values);
        let own = own.filter_map(|(entry, value)| match (&entry.metric, value) {
            (Metric::Label(label), Value::Text(text)) => Some((*label, text.clone().into_owned())),
            (Metric::Label(label), Value::Whole(number)) => Some((*label, number.to_string())),
            _ => None,
        });
        let labels = outer.iter().cloned().chain(own).collect();
        Self { labels, values }
    }

    fn labels(&self) -> Vec<Label<'_>> {
        let labels = self.labels.iter();
        labels
            .map(|(label, text)| (*label, text.as_str()))
            .collect()
    }
}

impl Text {
    /// Writes the families of `table`, each with one sample for each of `items`.
    fn table(&mut self, table: &Table, items: &[Item<'_>]) {
        let mut info = None;
        for (index, entry) in table.in_order() {
            match &entry.metric {
                Metric::None | Metric::Label(_) => {}
                Metric::Info { name, .. } if info == Some(*name) => {}
                Metric::Info { name, .. } => {
                    info = Some(*name);
                    self.info(name, entry, table, items);
                }
                Metric::Family { name, kind, .. } => {
                    self.family(name, kind, entry.help());
                    for item in items {
                        let labels = item.labels();
                        match &item.values[index] {
                            Value::Distribution(times) => self.histogram(name, &labels, times),
                            value => self.sample(name, &labels, value.sample(Unit::of(entry.key))),
                        }
                    }
                }
                Metric::Records {
                    table: inner,
                    always,
                } => {
                    let inside = items.iter().flat_map(|item| {
                        let records = match &item.values[index] {
                            Value::Records(records) => records.as_slice(),
                            _ => &[],
                        };
                        let records = records.iter();
                        records.map(|record| Item::new(inner, &item.labels, *record))
                    });
                    let inside: Vec<_> = inside.collect();
                    if *always || !inside.is_empty() {
                        self.table(inner, &inside);
                    }
                }
            }
        }
    }

    /// Writes the metric `name`, which is always 1 and has its fields as labels.
    fn info(&mut self, name: &str, entry: &Entry, table: &Table, items: &[Item<'_>]) {
        self.family(name, "gauge", entry.help());
        for item in items {
            let mut labels = item.labels();
            for (entry, value) in table.entries.iter().zip(&item.values) {
                match (&entry.metric, value) {
                    (
                        Metric::Info {
                            name: of, label, ..
                        },
                        Value::Text(text),
                    ) if *of == name => {
                        labels.push((label, text));
                    }
                    _ => {}
                }
            }
            self.sample(name, &labels, 1);
        }
    }

    /// Starts a family, before all its samples.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn histogram(&mut self, name: &str, labels: &[Label<'_>], times: &Distribution<'_>) {
        let bucket = format!("{name}_bucket");
        let mut sample = |bound: &str, count| {
            let labels = [labels, &[("le", bound)]].concat();
            self.sample(&bucket, &labels, count);
        };
        for (bound_us, within) in times.bounds_us.iter().zip(times.within) {
            sample(&(*bound_us as f64 / 1e6).to_string(), *within);
        }
        sample("+Inf", times.count);
        self.sample(&format!("{name}_sum"), labels, times.sum_us / 1e6);
        self.sample(&format!("{name}_count"), labels, times.count);
    }
}
