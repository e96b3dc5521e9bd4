//! The page.

use super::speeds::{NBD_NS, of_client, to_lose_ns};
use super::{Cell, Processor, Row, Study, find};

const HOW: &str = "\
A file is written twice, front to back, through a write-back cache: one write at a time, each durable before the next, the cleaner off, the file created before, as in the study (Z. Lin and others, \"When Caching Systems Meet Emerging Storage Devices: A Case Study\", HotStorage '23, section 3.1). The cache has 64 MiB where theirs had 4 GB, and files are as large beside it.

- **Devices** are *emulated*: *pmem* is four interleaved modules of the profile `optane-dimm` (305 ns a read, 90 ns a write, units of 256 bytes, 26.4 GB/s read, 9.2 GB/s written), *nvme* an Intel P4800X (8 us, 2.4 and 2.0 GB/s), *fast* a Samsung PM9A3 (80 us a read, 20 us a write, 3.5 GB/s), *slow* a SATA SSD (120 and 50 us, 520 and 480 MB/s); sources in [timed.rs](../../benches/opencas/timed.rs).
- **Time is modelled**: it is that of these devices and of waiting for them, on a virtual clock, the same in each run on every machine. The study's figures have the processor's time in them (a file system, the block layer and Open CAS take most of it: its Table 1), these have none. So what metadata costs is larger here, in percent, than what the study measured, for Open CAS as for us. **Bytes are counted.**
- **opencas-evict** is Open CAS's rule, [re-implemented](../../benches/opencas/layout.rs) for this study and used in nothing else: entries of 12, 18 or 42 bytes in pages of 4 KiB, shared among the lines of one request; data is written, then pages; without a free line the oldest is read, written back, and its page rewritten first. **opencas-static** is the same, and a request that needs more than 32 evictions goes round the cache.
- **blocks** and **lines** are the engine as it is: `durability = \"sync\"`, dirty tracking `exact`, `cleaning = \"nop\"`, metadata in blocks on the cache device, or in lines of 64 bytes on persistent memory (of the same medium for pmem, beside the SSD for nvme).
- **blocks, measured** and **lines, measured** are the same with `admission = \"measured\"`.
- **raw** is the device alone.
";

/// What stands over the processor's time.
const CLIENTS: &str = "\
Writes of 4 KiB, pmem before fast, a file of half the cache. *processor* is **measured** on this machine: the time that the one thread uses for a write, by its own clock, of the same engine with the same options on memory that answers at once, the median of nine fresh caches. *devices* is **modelled**, as everywhere on this page. A client in the same process waits for both. One over NBD waits for its way as well, which is alike for both accesses and is not measured here: it is declared, from what a write at queue depth 1 takes over NBD on this machine ([foundation.md](foundation.md)). The copy is counted twice, as the processor's and as the medium's.
";

/// Why claims that do not hold do not.
const WHY: &str = "\
- **The first access of pmem, lines of 4 KiB.** A record of 64 bytes follows the data and is fenced behind it, which on a virtual clock, with nothing else to do, is a part of a microsecond beside half a microsecond for the data. With the processor's time it is less of the whole, but a first write costs the processor more as well: a slot, a lock and its record. Only with a protocol in between, as every client but one in the same process has, is it within the bar. The fence stays: without it a record could outlive the data that it speaks of (rule 1 in durability.md).
- **The worst cells without measured admission.** Two kinds. A file that is larger than the cache, written front to back again and again, is where every policy that evicts what was used longest ago keeps nothing of use; a rule that lets a request pass when it needs many evictions keeps a part of it, by luck. The engine bypasses nothing by such a rule. Measured admission compares what a write takes either way, and where that is about the same it goes round: the backing device gets as much either way, and what the cache has stays; so it keeps that part, too. And a file that fills the cache to its last block: the engine makes room ahead of need, so that no client waits for an eviction, and gives up blocks for it that the next access would have hit; with measured admission it gives up nothing before a write finds no room.
- **Measured admission by the same without it.** Without it the engine does both at a time: it writes back for room, and what finds none at once goes round, which is quicker the first time than either alone. And to know what evicting takes, room is made for 512 blocks or a sixteenth of the cache, at least for 64, which are written back at a time, and the first write waits for them all.
";

/// What the study does not say.
fn slow(rows: &[Row]) -> String {
    format!(
        "- **Static write-invalidate on a slow backing device** is said to lose against evicting; the study does not compare these two. It compares a file larger than the cache with one that fits, and finds that the slower SSD loses more: that holds here, in the claim *larger than the cache by smaller*. Against evicting, whoever evicts for every write moves every byte over the slow device, and what goes round leaves the rest of the file cached. For that to lose, a request that goes round would have to take {:.1} ms longer than here (half a turn of a disk at 7,200 a minute takes 4.2); the study's is an SSD, and the device was not made slower for the claim.\n",
        to_lose_ns(rows) / 1e6
    )
}

/// What is compared.
const SYSTEMS: [&str; 6] = [
    "opencas-evict",
    "opencas-static",
    "blocks",
    "lines",
    "blocks-measured",
    "lines-measured",
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

/// The page below its title.
pub(super) fn body(study: &Study) -> String {
    let (report, processor) = (&study.report, &study.processor);
    let rows = &report.rows;
    let mut text = String::new();
    if report.quick {
        text += "\n**A quick run: a part of the cells. For a look, not for a result.**\n";
    }
    text += "\n| claim | the study, or Open CAS's rule | ours | bar | holds |\n|---|---:|---:|---:|---:|\n";
    for claim in &report.claims {
        let beside = claim
            .paper_or_peer
            .map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let holds = if claim.holds { "yes" } else { "**no**" };
        text += &format!(
            "| {} ({}) | {beside} | {:.3} | {} | {holds} |\n",
            claim.name,
            format!("{:?}", claim.kind).to_lowercase(),
            claim.ours,
            claim.bar
        );
    }
    text += &format!(
        "\n## How\n\n{HOW}\n## What does not hold, and why\n\n{WHY}{}",
        slow(rows)
    );
    text += "\n## The devices alone\n\nMB/s, by the size of a write.\n\n";
    text += &raw(rows);
    text += "\n## With the processor's time\n\n";
    text += &clients(rows, processor);
    text += "\n## Bytes written to the cache device for each of the client's\n\nWrites as large as a line, fast backing device: pmem and nvme alike but for *lines*, whose records lie in units of 256 bytes that the medium writes whole.\n\n";
    text += &bytes(rows);
    for (cache, backing) in distinct(rows.iter().map(|row| (&row.cache, &row.backing))) {
        text += &format!("\n## {cache} before {backing}: MB/s\n\n");
        text += "| lines | writes | file | access | opencas-evict | opencas-static | blocks | lines | blocks, measured | lines, measured |\n|---|---|---|---|---:|---:|---:|---:|---:|---:|\n";
        let cells = rows.iter().filter(|row| {
            (&row.cache, &row.backing) == (cache, backing) && SYSTEMS.contains(&&*row.system)
        });
        for cell in distinct(cells.map(Row::cell)) {
            text += &speeds(rows, cell);
        }
    }
    text
}

fn raw(rows: &[Row]) -> String {
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
    let heads: Vec<String> = writes.iter().map(|write| kib(*write)).collect();
    let mut text = format!(
        "| | {} |\n|---|{}\n",
        heads.join(" | "),
        "---:|".repeat(heads.len())
    );
    for (system, name) in [
        ("raw-cache", "pmem"),
        ("raw-cache", "nvme"),
        ("raw-backing", "fast"),
        ("raw-backing", "slow"),
    ] {
        let figures = writes
            .iter()
            .map(|write| format!("{:.0}", alone(system, name, *write)));
        text += &format!("| {name} | {} |\n", figures.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// Writes of 4 KiB as a client in the process waits for them, and what the processor does meanwhile.
fn clients(rows: &[Row], processor: &[Processor]) -> String {
    let own = |system: &str, access: u64| {
        let mut own = processor.iter();
        own.find(|one| one.system == system && one.access == access)
    };
    let ns = |system, access| own(system, access).map_or(f64::NAN, |one| one.processor_ns);
    let mut text = format!(
        "{CLIENTS}\n| | access | processor, ns | (least to most) | devices, ns | client, ns | MB/s | over NBD, MB/s |\n|---|---|---:|---:|---:|---:|---:|---:|\n"
    );
    for (system, access) in ["raw-cache", "blocks", "lines"]
        .into_iter()
        .flat_map(|system| [1, 2].map(|access| (system, access)))
    {
        let Some(one) = own(system, access) else {
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
        text += &format!(
            "| {called} | {access} | {:.0} | {:.0} to {:.0} | {} | {} | {} | {} |\n",
            one.processor_ns,
            one.least_ns,
            one.most_ns,
            figure(took - one.processor_ns),
            figure(took),
            figure(4096e3 / took),
            figure(4096e3 / (took + NBD_NS)),
        );
    }
    let copy = ns("raw-cache", 2);
    let (first, second) = (ns("lines", 1), ns("lines", 2));
    text += "\nThe share of the processor's time that each layer has, *lines* (the study's Table 1 has Open CAS with 45% and 38% of a kernel's way, of which up to half is metadata):\n\n| | first access | second access |\n|---|---:|---:|\n";
    for (layer, first_ns, second_ns) in [
        (
            "the copy to the device's memory, and the loop that asks",
            copy,
            copy,
        ),
        (
            "a write that hits: lookup, lock, use, round of commits",
            second - copy,
            second - copy,
        ),
        (
            "what a first write has beside: a slot, its record",
            first - second,
            0.0,
        ),
    ] {
        text += &format!(
            "| {layer} | {:.0}% | {:.0}% |\n",
            first_ns / first * 100.0,
            second_ns / second * 100.0
        );
    }
    text
}

fn bytes(rows: &[Row]) -> String {
    let mut text = String::from(
        "| lines | file | access | opencas-evict | blocks | lines |\n|---|---|---|---:|---:|---:|\n",
    );
    let cells = rows.iter().filter(|row| {
        row.system == "opencas-evict"
            && row.cache == "pmem"
            && row.backing == "fast"
            && row.write_bytes == row.line_bytes
    });
    for cell in cells.map(Row::cell) {
        let written = |system| {
            let row = find(rows, system, cell);
            row.map_or_else(String::new, |row| format!("{:.3}", row.cache_written))
        };
        text += &format!(
            "| {} | {}% | {} | {} | {} | {} |\n",
            kib(cell.line_bytes),
            cell.file_percent,
            cell.access,
            written("opencas-evict"),
            written("blocks"),
            written("lines")
        );
    }
    text
}

fn speeds(rows: &[Row], cell: Cell<'_>) -> String {
    let speed = |system: &&str| {
        let row = find(rows, system, cell);
        row.map_or_else(String::new, |row| format!("{:.0}", row.bytes_per_s / 1e6))
    };
    let figures: Vec<String> = SYSTEMS.iter().map(speed).collect();
    format!(
        "| {} | {} | {}% | {} | {} |\n",
        kib(cell.line_bytes),
        kib(cell.write_bytes),
        cell.file_percent,
        cell.access,
        figures.join(" | ")
    )
}
