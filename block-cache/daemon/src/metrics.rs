//! The status in the text format 0.0.4 of Prometheus, with base units (bytes, seconds) and `_total`
//! on counters.

use std::fmt::{Display, Write as _};

use crate::status::record::{Entry, Fields, Metric, Record as _, Table, Unit, Value};
use crate::status::{LATENCY_BOUNDS_US, Latency, Status};

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
pub fn render(status: &Status) -> String {
    let mut text = Text(String::with_capacity(16 << 10));
    let item = Item::new(&Status::TABLE, &[], status);
    text.table(&Status::TABLE, &[item]);
    text.0
}

impl<'a> Item<'a> {
    /// Returns a record of `table` whose metrics have the labels `outer` and its own.
    fn new(table: &Table, outer: &[(&'static str, String)], record: &'a dyn Fields) -> Self {
        let values = record.values();
        let own = table.entries.iter().zip(&values);
        let own = own.filter_map(|(entry, value)| match (&entry.metric, value) {
            (Metric::Label(label), Value::Text(text)) => Some((*label, text.clone().into_owned())),
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
                            Value::Latency(latency) => self.histogram(name, &labels, latency),
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

    fn histogram(&mut self, name: &str, labels: &[Label<'_>], latency: &Latency) {
        let bucket = format!("{name}_bucket");
        let mut sample = |bound: &str, count| {
            let labels = [labels, &[("le", bound)]].concat();
            self.sample(&bucket, &labels, count);
        };
        for (bound_us, within) in LATENCY_BOUNDS_US.iter().zip(&latency.within) {
            sample(&(*bound_us as f64 / 1e6).to_string(), *within);
        }
        sample("+Inf", latency.count);
        self.sample(&format!("{name}_sum"), labels, latency.sum_us / 1e6);
        self.sample(&format!("{name}_count"), labels, latency.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::example;
    use std::collections::HashSet;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let text = render(&example());
        let mut families = HashSet::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type line has two words");
                assert!(families.insert(name.to_owned()), "{name} begins once");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                current = name.to_owned();
            } else if !line.starts_with("# HELP ") {
                assert!(line.starts_with(&current), "{line} belongs to {current}");
                let value = line.rsplit(' ').next().expect("a sample has a value");
                value.parse::<f64>().expect(line);
            }
        }
        assert!(families.len() > 25, "{families:?}");
        for sample in [
            "forebay_cache_dirty_bytes 65536",
            "forebay_cache_cleaning_info{policy=\"auto\"} 1",
            "forebay_volume_read_hits_total{volume=\"db\"} 90",
            "forebay_volume_sent_round_writes_total{volume=\"db\"} 7",
            "forebay_volume_requests_total{volume=\"db\",op=\"read\"} 100",
            "forebay_volume_latency_seconds_bucket{volume=\"db\",op=\"read\",le=\"0.0001\"} 90",
            "forebay_volume_latency_seconds_bucket{volume=\"db\",op=\"read\",le=\"+Inf\"} 100",
            "forebay_connections{reactor=\"engine\"} 1",
            "forebay_device_errors_total{device=\"ssd\",role=\"cache\"} 2",
            "forebay_transit_bypassed_blocks_total{device=\"fast\",policy=\"caiti\"} 3",
            "forebay_device_written_bytes_total{device=\"ssd\",role=\"cache\"} 4096",
        ] {
            assert!(
                text.lines().any(|line| line == sample),
                "{sample} in\n{text}"
            );
        }
    }
}
