//! The table of a status: each field with its JSON key, unit, meaning and metric.
//!
//! [`records!`](crate::records) defines the types of a status. The field of a record is one entry:
//!
//! ```text
//! /// Data that the backing device does not have yet.
//! dirty_bytes: u64 => gauge("forebay_volume_dirty_bytes");
//! ```
//!
//! - The name is the JSON key. Its end is the unit: see [`Unit`].
//! - The comment is the meaning in the JSON reference. It is also the help of the metric, unless
//!   a help of its own follows the metric's name.
//! - The type gives the value for the metrics, the terminal and the page: see [`Valued`].
//! - `gauge`, `counter`, `histogram`: a metric with the labels of its record. Times become seconds.
//! - `info`: a gauge that is always 1, with the value as a label.
//! - `label`: a label of all metrics of the record.
//! - `records`: metrics of the records in this field. `records(always)` writes the headers of the
//!   families even if there are no records.
//!
//! `order` lists fields whose metrics come first, in this order. The metrics of the other fields
//! follow in the order of the fields. `columns` lists the fields that the terminal and the page
//! show as columns, each with its title.

use std::borrow::Cow;
use std::time::Duration;

use crate::size::{human_bytes, human_duration};

/// A part of the status, described by a table.
pub trait Record {
    /// The record's fields.
    const TABLE: Table;

    /// Returns the values of the fields, in the order of the table.
    fn values(&self) -> Vec<Value<'_>>;
}

/// The fields of a record.
#[derive(Debug)]
pub struct Table {
    /// Name of the record's type.
    pub name: &'static str,
    /// The fields, in the order of the JSON object.
    pub entries: &'static [Entry],
    /// Keys of the fields whose metrics come first.
    pub order: &'static [&'static str],
    /// Columns for the terminal and the page: key and title, as [`crate::table::Table`] takes it.
    pub columns: &'static [(&'static str, &'static str)],
}

/// A field of a record.
#[derive(Debug)]
pub struct Entry {
    /// JSON key.
    pub key: &'static str,
    /// Type of the field, as in Rust.
    pub kind: &'static str,
    /// Meaning of the field, as a sentence.
    pub meaning: &'static str,
    /// How the metrics show the field.
    pub metric: Metric,
}

/// The form of a field in the metrics.
#[derive(Debug)]
pub enum Metric {
    /// None.
    None,
    /// A label of the other metrics of the record: its name.
    Label(&'static str),
    /// A label of a metric that is always 1. Fields with the same metric are labels of one sample.
    Info {
        /// Name of the metric.
        name: &'static str,
        /// Name of the label.
        label: &'static str,
        /// Help of the metric. The first field of a metric has it.
        help: Option<&'static str>,
    },
    /// A metric of its own.
    Family {
        /// Name of the metric.
        name: &'static str,
        /// Its type: `gauge`, `counter` or `histogram`.
        kind: &'static str,
        /// Its help, if it is not the field's meaning.
        help: Option<&'static str>,
    },
    /// The metrics of other records.
    Records {
        /// Table of these records.
        table: &'static Table,
        /// Whether families without samples are written.
        always: bool,
    },
}

/// The value of a field.
pub enum Value<'a> {
    /// A number, or 1 for yes.
    Whole(u64),
    /// Text.
    Text(Cow<'a, str>),
    /// A distribution of times.
    Distribution(Distribution<'a>),
    /// Other records.
    Records(Vec<&'a dyn Fields>),
    /// A value that neither metrics nor columns show.
    Hidden,
}

/// A distribution of times, for a histogram.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    /// Bounds of the buckets, microseconds, ascending.
    pub bounds_us: &'a [u64],
    /// Number of times within each bound.
    pub within: &'a [u64],
    /// Number of all times.
    pub count: u64,
    /// Sum of all times, microseconds.
    pub sum_us: f64,
}

/// The values of a record of any type.
pub trait Fields {
    /// Returns [`Record::values`].
    fn values(&self) -> Vec<Value<'_>>;
}

impl<T: Record> Fields for T {
    fn values(&self) -> Vec<Value<'_>> {
        Record::values(self)
    }
}

/// The unit of a field, which the end of its key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, or no number at all.
    None,
    /// `bytes`.
    Bytes,
    /// `_bytes_per_s`.
    BytesPerSecond,
    /// `_s`.
    Seconds,
    /// `_ms`.
    Milliseconds,
    /// `_us`.
    Microseconds,
    /// `_percent`.
    Percent,
}

impl Table {
    /// Returns the fields in the order of their metrics, each with its index in `entries`.
    pub fn in_order(&self) -> Vec<(usize, &'static Entry)> {
        let mut entries: Vec<_> = self.entries.iter().enumerate().collect();
        entries.sort_by_key(|(_, entry)| {
            let mut order = self.order.iter();
            order
                .position(|key| *key == entry.key)
                .unwrap_or(usize::MAX)
        });
        entries
    }

    /// Returns the cells of a record, one for each of `columns`.
    pub fn cells(&self, record: &dyn Fields) -> Vec<String> {
        let values = record.values();
        let cell = |(key, _): &(&str, &str)| {
            let mut fields = self.entries.iter().zip(&values);
            let found = fields.find(|(entry, _)| entry.key == *key);
            found.map_or_else(String::new, |(entry, value)| {
                value.for_people(Unit::of(entry.key))
            })
        };
        self.columns.iter().map(cell).collect()
    }

    /// Returns the titles of `columns`.
    pub fn titles(&self) -> Vec<&'static str> {
        self.columns.iter().map(|(_, title)| *title).collect()
    }
}

impl Entry {
    /// Returns the help of the field's metric.
    pub fn help(&self) -> &'static str {
        match &self.metric {
            Metric::Info { help, .. } | Metric::Family { help, .. } => help.unwrap_or(self.meaning),
            _ => self.meaning,
        }
    }
}

impl Unit {
    /// Returns the unit of the field called `key`.
    pub fn of(key: &str) -> Self {
        let ends = [
            ("_bytes_per_s", Self::BytesPerSecond),
            ("bytes", Self::Bytes),
            ("_s", Self::Seconds),
            ("_ms", Self::Milliseconds),
            ("_us", Self::Microseconds),
            ("_percent", Self::Percent),
        ];
        let found = ends.iter().find(|(end, _)| key.ends_with(end));
        found.map_or(Self::None, |(_, unit)| *unit)
    }
}

impl Value<'_> {
    /// Returns the value as a sample of a metric, in base units.
    pub fn sample(&self, unit: Unit) -> String {
        match (self, unit) {
            (Self::Whole(value), Unit::Microseconds) => (*value as f64 / 1e6).to_string(),
            (Self::Whole(value), Unit::Milliseconds) => (*value as f64 / 1e3).to_string(),
            (Self::Whole(value), _) => value.to_string(),
            // A text is a reason: there is one, or there is none.
            (Self::Text(_), _) => "1".to_owned(),
            _ => "0".to_owned(),
        }
    }

    /// Returns the value as a cell of a table: bytes with a suitable unit, the rest as it is.
    fn for_people(&self, unit: Unit) -> String {
        match (self, unit) {
            (Self::Whole(bytes), Unit::Bytes) => human_bytes(*bytes),
            (Self::Whole(seconds), Unit::Seconds) => human_duration(Duration::from_secs(*seconds)),
            (Self::Whole(value), _) => value.to_string(),
            (Self::Text(text), _) => text.clone().into_owned(),
            _ => "-".to_owned(),
        }
    }
}

/// The type of a field.
pub trait Valued {
    /// Returns the value. An absent text is [`Value::Hidden`].
    fn value(&self) -> Value<'_>;
}

/// A field with other records.
pub trait Holds {
    /// Type of these records.
    type Of: Record;
}

impl<T: Record> Holds for Option<T> {
    type Of = T;
}

impl<T: Record> Holds for Vec<T> {
    type Of = T;
}

/// The type of a field that may be absent.
pub trait Optional: Sized {
    /// Returns the value of the field.
    fn value(field: Option<&Self>) -> Value<'_>;
}

impl<T: Record> Optional for T {
    fn value(field: Option<&Self>) -> Value<'_> {
        Value::Records(field.iter().map(|record| *record as &dyn Fields).collect())
    }
}

impl Optional for String {
    fn value(text: Option<&Self>) -> Value<'_> {
        text.map_or(Value::Hidden, |text| Value::Text(text.into()))
    }
}

impl Optional for u32 {
    fn value(_: Option<&Self>) -> Value<'_> {
        Value::Hidden
    }
}

impl Optional for u64 {
    fn value(_: Option<&Self>) -> Value<'_> {
        Value::Hidden
    }
}

impl<T: Optional> Valued for Option<T> {
    fn value(&self) -> Value<'_> {
        T::value(self.as_ref())
    }
}

impl<T: Record> Valued for Vec<T> {
    fn value(&self) -> Value<'_> {
        Value::Records(self.iter().map(|record| record as &dyn Fields).collect())
    }
}

/// Implements [`Valued`] for plain types.
macro_rules! valued {
    ($($type:ty: $value:expr),+ $(,)?) => {
        $(impl Valued for $type {
            fn value(&self) -> Value<'_> {
                let of: fn(&$type) -> Value<'_> = $value;
                of(self)
            }
        })+
    };
}

valued! {
    bool: |value| Value::Whole(u64::from(*value)),
    u8: |value| Value::Whole(u64::from(*value)),
    u32: |value| Value::Whole(u64::from(*value)),
    u64: |value| Value::Whole(*value),
    usize: |value| Value::Whole(*value as u64),
    String: |text| Value::Text(Cow::Borrowed(text)),
    f64: |_| Value::Hidden,
    Vec<u8>: |numbers| Value::Whole(numbers.len() as u64),
    Vec<u64>: |_| Value::Hidden,
    Vec<String>: |texts| Value::Whole(texts.len() as u64),
}

/// Defines records and `TABLES`, the list of their tables: see [`crate::record`].
#[macro_export]
macro_rules! records {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($serde:ident)])?
                $key:ident: $type:ty $(=> $form:ident $(($($detail:tt)*))?)?;
            )+
        }
        $(order: $($first:ident)+;)?
        $(columns: $($column:ident $title:literal)+;)?
    )+) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Debug, serde::Deserialize, PartialEq, serde::Serialize)]
            pub struct $name {
                $(
                    $(#[doc = $doc])+
                    $(#[serde($serde)])?
                    pub $key: $type,
                )+
            }

            impl $crate::record::Record for $name {
                const TABLE: $crate::record::Table = $crate::record::Table {
                    name: stringify!($name),
                    entries: &[$($crate::record::Entry {
                        key: stringify!($key),
                        kind: stringify!($type),
                        meaning: concat!($($doc),+).trim_ascii_start(),
                        metric: $crate::records!(@metric $type $(, $form $(, $($detail)*)?)?),
                    }),+],
                    order: &[$($(stringify!($first)),+)?],
                    columns: &[$($((stringify!($column), $title)),+)?],
                };

                fn values(&self) -> Vec<$crate::record::Value<'_>> {
                    vec![$($crate::record::Valued::value(&self.$key)),+]
                }
            }
        )+

        /// The tables of all records.
        pub const TABLES: &[&$crate::record::Table] =
            &[$(&<$name as $crate::record::Record>::TABLE),+];
    };
    (@metric $type:ty) => { $crate::record::Metric::None };
    (@metric $type:ty, label, $label:literal) => { $crate::record::Metric::Label($label) };
    (@metric $type:ty, info, $name:literal, $label:ident $(, $help:literal)?) => {
        $crate::record::Metric::Info {
            name: $name,
            label: stringify!($label),
            help: $crate::records!(@help $($help)?),
        }
    };
    (@metric $type:ty, records) => {
        $crate::record::Metric::Records {
            table: $crate::records!(@table $type),
            always: false,
        }
    };
    (@metric $type:ty, records, always) => {
        $crate::record::Metric::Records {
            table: $crate::records!(@table $type),
            always: true,
        }
    };
    (@metric $type:ty, $kind:ident, $name:literal $(, $help:literal)?) => {
        $crate::record::Metric::Family {
            name: $name,
            kind: stringify!($kind),
            help: $crate::records!(@help $($help)?),
        }
    };
    (@table $type:ty) => {
        &<<$type as $crate::record::Holds>::Of as $crate::record::Record>::TABLE
    };
    (@help) => { None };
    (@help $help:literal) => { Some($help) };
}
