//! Grids of the page docs/results/opencas.md; `pages/opencas.tmpl` has its prose.

use super::speeds::{NBD_NS, of_client, to_lose_ns};
use super::{Cell, Processor, Row, Study, find};
use crate::pages::{Data, Grid, Header, claims_grid, values_grid};
use crate::study::table::ratio;

/// Systems that are compared, and their columns.
const SYSTEMS: [(&str, &str); 6] = [
    ("opencas-evict", "opencas-evict"),
    ("opencas-static", "opencas-static"),
    ("blocks", "blocks"),
    ("lines", "lines"),
    ("blocks-measured", "blocks, measured"),
    ("lines-measured", "lines, measured"),
];

fn kib(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{}K", bytes >> 10),
        mib => format!("{mib}M"),
    }
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Grids of the study.
pub(super) fn grids(header: &Header, study: &Study) -> Data {
    let (rows, processor) = (&study.report.rows, &study.processor);
    let mut values = values_grid(header);
    values.row([
        "to_lose_ms".into(),
        format!("{:.1}", to_lose_ns(rows) / 1e6),
    ]);
    Data(vec![
        values,
        claims_grid("claims", &study.report.claims, ratio),
        devices(rows),
        clients(rows, processor),
        layers(processor),
        bytes(rows),
        speeds(rows),
    ])
}

fn devices(rows: &[Row]) -> Grid {
    let alone = |system: &str, name: &str, write: u64| {
        let row = rows.iter().find(|row| {
            let called = if system == "raw-cache" {
                &row.cache
            } else {
                &row.backing
            };
            row.system == system && called == name && row.write_bytes == write
        });
        row.map_or(f64::NAN, |row| row.bytes_per_s / 1e6)
    };
    let mut writes = distinct(rows.iter().map(|row| row.write_bytes));
    writes.sort_unstable();
    let sizes: Vec<String> = writes.iter().map(|write| kib(*write)).collect();
    let sizes = sizes.iter().map(String::as_str);
    let columns: Vec<&str> = ["device"].into_iter().chain(sizes).collect();
    let mut grid = Grid::new("devices", &columns);
    for (system, name) in [
        ("raw-cache", "pmem"),
        ("raw-cache", "nvme"),
        ("raw-backing", "fast"),
        ("raw-backing", "slow"),
    ] {
        let figures = writes.iter().map(|write| alone(system, name, *write));
        let figures = figures.map(|figure| format!("{figure:.0}"));
        grid.row(
            std::iter::once(name.into())
                .chain(figures)
                .collect::<Vec<_>>(),
        );
    }
    grid
}

/// Processor's time of a system and an access.
fn own<'a>(processor: &'a [Processor], system: &str, access: u64) -> Option<&'a Processor> {
    let mut own = processor.iter();
    own.find(|one| one.system == system && one.access == access)
}

/// Writes of 4 KiB by a client in the process: its wait, and the processor's part of it.
fn clients(rows: &[Row], processor: &[Processor]) -> Grid {
    let columns = [
        "system",
        "access",
        "processor, ns",
        "least to most",
        "devices, ns",
        "client, ns",
        "MB/s",
        "over NBD, MB/s",
    ];
    let mut grid = Grid::new("processor", &columns);
    for (system, access) in ["raw-cache", "blocks", "lines"]
        .into_iter()
        .flat_map(|system| [1, 2].map(|access| (system, access)))
    {
        let Some(one) = own(processor, system, access) else {
            continue;
        };
        let (took, called) = match system {
            "raw-cache" => (f64::NAN, "memory alone"),
            _ => (of_client(rows, processor, system, access), system),
        };
        let figure = |value: f64| match value.is_nan() {
            true => "-".to_owned(),
            false => format!("{value:.0}"),
        };
        grid.row([
            called.to_owned(),
            access.to_string(),
            figure(one.processor_ns),
            format!("{:.0} to {:.0}", one.least_ns, one.most_ns),
            figure(took - one.processor_ns),
            figure(took),
            figure(4096e3 / took),
            figure(4096e3 / (took + NBD_NS)),
        ]);
    }
    grid
}

fn layers(processor: &[Processor]) -> Grid {
    let ns =
        |system, access| own(processor, system, access).map_or(f64::NAN, |one| one.processor_ns);
    let copy = ns("raw-cache", 2);
    let (first, second) = (ns("lines", 1), ns("lines", 2));
    let mut grid = Grid::new("layers", &["layer", "first access", "second access"]);
    for (layer, first_ns, second_ns) in [
        (
            "the copy to the device's memory, and the client's loop",
            copy,
            copy,
        ),
        (
            "a write that hits: lookup, lock, use, round of commits",
            second - copy,
            second - copy,
        ),
        (
            "the rest of a first write: a slot, its record",
            first - second,
            0.0,
        ),
    ] {
        grid.row([
            layer.to_owned(),
            format!("{:.0}%", first_ns / first * 100.0),
            format!("{:.0}%", second_ns / second * 100.0),
        ]);
    }
    grid
}

pub(super) fn bytes(rows: &[Row]) -> Grid {
    let systems = ["opencas-evict", "blocks", "lines"];
    let columns: Vec<&str> = ["line", "file", "access"]
        .into_iter()
        .chain(systems)
        .collect();
    let mut grid = Grid::new("bytes", &columns);
    let cells = rows.iter().filter(|row| {
        row.system == "opencas-evict"
            && row.cache == "pmem"
            && row.backing == "fast"
            && row.write_bytes == row.line_bytes
    });
    for cell in cells.map(Row::cell) {
        let mut row = vec![
            kib(cell.line_bytes),
            format!("{}%", cell.file_percent),
            cell.access.to_string(),
        ];
        row.extend(systems.map(|system| {
            let row = find(rows, system, cell);
            row.map_or_else(String::new, |row| ratio(row.cache_written))
        }));
        grid.row(row);
    }
    grid
}

pub(super) fn speeds(rows: &[Row]) -> Grid {
    let mut columns = ["cache", "backing", "line", "write", "file", "access"]
        .map(String::from)
        .to_vec();
    columns.extend(SYSTEMS.map(|(_, column)| column.to_owned()));
    columns.extend(
        SYSTEMS[2..]
            .iter()
            .map(|(_, column)| format!("{column} by theirs")),
    );
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut grid = Grid::new("speeds", &columns);
    let compared = |row: &&Row| SYSTEMS.iter().any(|(system, _)| *system == row.system);
    for (cache, backing) in distinct(rows.iter().map(|row| (&row.cache, &row.backing))) {
        let of = rows.iter().filter(compared);
        let of = of.filter(|row| (&row.cache, &row.backing) == (cache, backing));
        for cell in distinct(of.map(Row::cell)) {
            grid.row(speed(rows, cell));
        }
    }
    grid
}

/// MB/s of each system, and ours over the better of Open CAS's two as printed.
fn speed(rows: &[Row], cell: Cell<'_>) -> Vec<String> {
    let mut row = vec![
        cell.cache.to_owned(),
        cell.backing.to_owned(),
        kib(cell.line_bytes),
        kib(cell.write_bytes),
        format!("{}%", cell.file_percent),
        cell.access.to_string(),
    ];
    let figures = SYSTEMS.map(|(system, _)| {
        let row = find(rows, system, cell);
        row.map(|row| (row.bytes_per_s / 1e6).round())
    });
    row.extend(figures.map(|figure| figure.map_or_else(String::new, |mb| format!("{mb:.0}"))));
    let better = figures[..2].iter().flatten().copied().reduce(f64::max);
    row.extend(figures[2..].iter().map(|figure| match (figure, better) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
        _ => "-".to_owned(),
    }));
    row
}
