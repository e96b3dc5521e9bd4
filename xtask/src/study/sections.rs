//! The page's sections, each a table or more.

use super::claims::{BASELINES, MERGED, verdict};
use super::simulation::{GROUP_BYTES, Origin, PERCENT, Row, SIZES, Simulation, Trace};
use super::table::{Table, number, percent, ratio, size};
use crate::claims::Report;

/// A row's name for people.
fn label(name: &str) -> String {
    match name.split_once('/') {
        Some(("whole", what)) => format!("{what}, whole"),
        Some(("sub", what)) => format!("{what}, sub-block"),
        Some(("runs", what)) => format!("{what}, sub-block, merged"),
        Some(("demand", what)) => format!("{what}, demand"),
        Some(("ours", "32K")) => "our rules with 32K alone".into(),
        Some(("ours", "shards")) => "ours in 64 shards".into(),
        _ => name.replace('+', " + "),
    }
}

pub(super) fn answer(report: &Report<Trace>) -> String {
    let line = |what: &str, origins: &[Origin]| {
        let counted = report.rows.iter().filter(|trace| trace.result.counts());
        let traces: Vec<&Trace> = counted
            .filter(|trace| origins.contains(&trace.origin))
            .collect();
        let verdicts = traces
            .iter()
            .filter_map(|trace| verdict(&trace.result, PERCENT, &BASELINES));
        let verdicts: Vec<_> = verdicts.collect();
        let all = verdicts.len();
        if all == 0 {
            return format!("- {what}: none counts.\n");
        }
        let mean = |value: &dyn Fn(usize) -> f64| {
            let logs: f64 = (0..all).map(|nth| value(nth).ln()).sum();
            (logs / all as f64).exp()
        };
        format!(
            "- {what}, {all} that count: backend I/O holds on {} (mean {:.2} of the best fixed size), modelled latency on {} (mean {:.2}), memory on {} (mean {:.2} of 32K's; less than that of the engine's own 32K cache on {}, mean {:.2}).\n",
            verdicts.iter().filter(|one| one.core_holds()).count(),
            mean(&|nth| verdicts[nth].core),
            verdicts.iter().filter(|one| one.latency_holds()).count(),
            mean(&|nth| verdicts[nth].latency),
            verdicts.iter().filter(|one| one.memory_holds()).count(),
            mean(&|nth| verdicts[nth].memory),
            verdicts.iter().filter(|one| one.memory_alike < 1.0).count(),
            mean(&|nth| verdicts[nth].memory_alike),
        )
    };
    let failed = report.claims.iter().filter(|claim| !claim.holds);
    let failed: Vec<String> = failed
        .map(|claim| format!("{} ({:.3})", claim.name, claim.ours))
        .collect();
    let losing = match failed[..] {
        [] => "No line that counts fails.".to_owned(),
        _ => format!("Lines that fail: {}.", failed.join("; ")),
    };
    [
        line("Real traces", &[Origin::Tuned, Origin::HeldOut]),
        line("The paper's own selection", &[Origin::Public]),
        line("Generated from the paper's Table II", &[Origin::TableTwo]),
        line("Generated, another seed", &[Origin::OtherSeed]),
        format!(
            "\n{losing} Ours beside fixed sizes that merge their write-backs, other sizes of the cache, and our rules with one block size are further below, where they lose as well as where they win.\n"
        ),
    ]
    .concat()
}

pub(super) fn verdicts(traces: &[&Trace]) -> String {
    let mut table = Table::new(&[
        "trace",
        "requests",
        "groups",
        "backend I/O",
        "best fixed",
        "latency",
        "best fixed",
        "memory, of 32K",
        "of our rules with 32K",
        "verdict",
        "merged: backend I/O",
        "merged: latency",
    ]);
    for trace in traces {
        let result = &trace.result;
        let (Some(verdict), Some(merged)) = (
            verdict(result, PERCENT, &BASELINES),
            verdict(result, PERCENT, &MERGED),
        ) else {
            continue;
        };
        let words = match result.counts() {
            true => verdict.words(),
            false => format!("does not count ({})", verdict.words().replace("**", "")),
        };
        table.row(&[
            trace.title.clone(),
            number(result.requests()),
            number(result.groups()),
            ratio(verdict.core),
            label(verdict.core_best),
            ratio(verdict.latency),
            label(verdict.latency_best),
            ratio(verdict.memory),
            match verdict.memory_alike < 1.0 {
                true => ratio(verdict.memory_alike),
                false => format!("**{:.3}**", verdict.memory_alike),
            },
            words,
            ratio(merged.core),
            ratio(merged.latency),
        ]);
    }
    table.0
}

/// Of a figure on several traces: the largest, and where; the smallest.
fn most(traces: &[&Trace], value: &dyn Fn(&Simulation) -> Option<f64>) -> Option<String> {
    let mut values: Vec<(f64, &str)> = traces
        .iter()
        .filter(|trace| trace.result.counts())
        .filter_map(|trace| Some((value(&trace.result)?, trace.title.as_str())))
        .collect();
    values.sort_by(|one, other| other.0.total_cmp(&one.0));
    let (first, last) = (values.first()?, values.last()?);
    Some(format!(
        "up to {} ({}); least {}",
        percent(first.0),
        first.1,
        percent(last.0)
    ))
}

pub(super) fn paper(real: &[&Trace], sets: &[&Trace]) -> String {
    let mut table = Table::new(&[
        "claim",
        "the paper",
        "who",
        "real traces",
        "the paper's selection (see below)",
    ]);
    let mut line =
        |claim: &str, says: &str, who: &str, value: &dyn Fn(&Simulation) -> Option<f64>| {
            let cell = |traces| most(traces, value).unwrap_or_else(|| "-".into());
            table.row(&[claim, says, who, &cell(real), &cell(sets)].map(String::from));
        };
    let less = |of: fn(&Row) -> f64, ours: &'static str, theirs: &'static str| {
        move |result: &Simulation| Some(1.0 - of(result.row(ours)) / of(result.row(theirs)))
    };
    let core = |row: &Row| row.core_bytes() as f64;
    let cache = |row: &Row| row.cache_bytes() as f64;
    let blocks = |row: &Row| row.mean_cached_blocks();
    let memory = |row: &Row| row.memory_max_bytes as f64;
    let who = [
        ("its rule, against 256K whole", "whole/paper", "whole/256K"),
        ("ours, against 256K whole", "ours", "whole/256K"),
        ("ours, against 256K sub-block", "ours", "sub/256K"),
    ];
    for (who, ours, theirs) in who {
        line(
            "less backend I/O than 256K blocks",
            "up to 74%",
            who,
            &less(core, ours, theirs),
        );
    }
    for (who, ours, theirs) in who {
        line(
            "less cache I/O than 256K blocks",
            "up to 63%",
            who,
            &less(cache, ours, theirs),
        );
    }
    for (who, ours, of) in [
        (
            "its rule, mean blocks at 40 bytes each",
            "whole/paper",
            blocks as fn(&Row) -> f64,
        ),
        ("ours, the same", "ours", blocks),
        ("its rule, our metadata", "whole/paper", memory),
        ("ours, our metadata", "ours", memory),
    ] {
        line(
            "less memory than 32K blocks",
            "up to 41%",
            who,
            &less(of, ours, "whole/32K"),
        );
    }
    line(
        "drop of the read hit ratio against 256K",
        "up to 60%",
        "its rule",
        &|result| {
            let of = |name| result.row(name).reads.hit_ratio();
            Some(1.0 - of("whole/paper")? / of("whole/256K").filter(|ratio| *ratio > 0.0)?)
        },
    );
    line(
        "mean block beside mean missed request, apart",
        "1% at best",
        "its rule",
        &|result| {
            let row = result.row("whole/paper");
            Some((row.mean_block_bytes() / row.mean_missed_bytes() - 1.0).abs())
        },
    );
    let mut text = table.0;
    text += "\nLatency (modelled): the paper's says that its rule is better than every fixed size. Here, against the fixed sizes with the same fill:\n\n";
    let mut table = Table::new(&[
        "trace",
        "its rule / best fixed, whole",
        "its rule / best fixed, sub-block",
        "ours / best fixed, whole",
        "ours / best fixed, sub-block",
        "the paper's claim",
        "ours",
    ]);
    let counted = |traces: &[&Trace]| -> Vec<Trace> {
        let counted = traces.iter().filter(|trace| trace.result.counts());
        counted.map(|trace| (*trace).clone()).collect()
    };
    for trace in counted(real).iter().chain(&counted(sets)) {
        let result = &trace.result;
        let best = |family: &str| {
            let fixed = SIZES.map(|kib| result.row(&format!("{family}/{kib}")).latency_sum_ns);
            fixed.into_iter().min().unwrap_or(1) as f64
        };
        let over = |name: &str, family: &str| result.row(name).latency_sum_ns as f64 / best(family);
        let (paper, ours) = (over("whole/paper", "whole"), over("ours", "sub"));
        let holds = |ratio: f64| if ratio <= 1.0 { "holds" } else { "fails" }.to_owned();
        table.row(&[
            trace.title.clone(),
            ratio(paper),
            ratio(over("sub/paper", "sub")),
            ratio(over("ours", "whole")),
            ratio(ours),
            holds(paper),
            holds(ours),
        ]);
    }
    text + &table.0
        + "\nThe paper counts 2 us of processing for a request; ours is measured below (*Speed*).\n"
}

pub(super) fn steps(traces: &[&Trace]) -> String {
    let traces: Vec<&&Trace> = traces
        .iter()
        .filter(|trace| trace.result.counts())
        .collect();
    let titles = traces.iter().map(|trace| trace.title.as_str());
    let titles: Vec<&str> = ["rules"].into_iter().chain(titles).collect();
    let mut table = Table::new(&titles);
    for (name, row) in [
        ("paper, whole", "whole/paper"),
        ("paper, sub-block: 1", "sub/paper"),
        ("+ merged write-backs", "runs/paper"),
        ("+ learned fills", "paper+runs+learned"),
        ("+ probation = **ours**", "ours"),
        ("ours without learned fills", "paper+runs+segments"),
        ("ours without merged write-backs", "paper+learned+segments"),
        ("our rules with 32K alone", "ours/32K"),
        ("paper, demand", "demand/paper"),
        ("32K, demand", "demand/32K"),
    ] {
        let mut cells = vec![name.to_owned()];
        for trace in &traces {
            let (row, one) = (trace.result.row(row), trace.result.row("sub/paper"));
            let over = |of: fn(&Row) -> u64| of(row) as f64 / of(one) as f64;
            cells.push(format!(
                "{:.2} / {:.2}",
                over(Row::core_bytes),
                over(|row| row.latency_sum_ns)
            ));
        }
        table.row(&cells);
    }
    format!(
        "Backend I/O / modelled latency, over those of the paper's rules with sub-block maps.\n\n{}",
        table.0
    )
}

pub(super) fn sizes(traces: &[&Trace]) -> String {
    let mut text = "Informative. Ours over the best fixed size with sub-block maps (backend I/O, latency), and over 32K (memory).\n\n".to_owned();
    let mut table = Table::new(&[
        "trace",
        "5%: backend I/O",
        "latency",
        "memory",
        "10%: backend I/O",
        "latency",
        "memory",
        "20%: backend I/O",
        "latency",
        "memory",
    ]);
    for trace in traces.iter().filter(|trace| trace.result.counts()) {
        let mut cells = vec![trace.title.clone()];
        for percent in [5, PERCENT, 20] {
            match verdict(&trace.result, percent, &["sub"]) {
                Some(one) => {
                    let mark = |value: f64, holds: bool| match holds {
                        true => ratio(value),
                        false => format!("**{value:.3}**"),
                    };
                    cells.push(mark(one.core, one.core_holds()));
                    cells.push(mark(one.latency, one.latency_holds()));
                    cells.push(mark(one.memory, one.memory_holds()));
                }
                None => cells.extend(["-", "-", "-"].map(String::from)),
            }
        }
        table.row(&cells);
    }
    text += &table.0;
    text
}

pub(super) fn shards(traces: &[&Trace]) -> String {
    let mut table = Table::new(&[
        "trace",
        "groups a shard",
        "bytes hit, one",
        "64 shards",
        "backend I/O, 64 shards / one",
    ]);
    for trace in traces.iter().filter(|trace| trace.result.counts()) {
        let one = trace.result.row("ours");
        let Some(shards) = trace.result.find("ours/shards", PERCENT) else {
            continue;
        };
        table.row(&[
            trace.title.clone(),
            format!("{:.1}", (one.capacity_bytes / GROUP_BYTES) as f64 / 64.0),
            percent(one.byte_hit_ratio()),
            percent(shards.byte_hit_ratio()),
            ratio(shards.core_bytes() as f64 / one.core_bytes() as f64),
        ]);
    }
    format!(
        "Informative: ours, with 64 shards that have groups, lists and learning of their own, volumes striped over them by 1 MiB, and nothing moved between them. A shard of a few groups is a small cache; real ones have thousands.\n\n{}",
        table.0
    )
}

/// The tables of all configurations.
pub(super) fn traces(traces: &[&Trace], all: bool) -> String {
    traces.iter().map(|trace| trace_table(trace, all)).collect()
}

fn trace_table(trace: &Trace, all: bool) -> String {
    let result = &trace.result;
    let mut text = format!(
        "### {}\n\n{} reads ({}), {} writes ({}), volumes: {}; working set {}, cache {}: {} groups. Requests of at most {}.\n\n",
        trace.title,
        number(result.reads),
        size(result.read_bytes as f64),
        number(result.writes),
        size(result.write_bytes as f64),
        number(result.volumes),
        size(result.working_set_bytes as f64),
        size(result.row("ours").capacity_bytes as f64),
        number(result.groups()),
        cdf(result),
    );
    let mut table = Table::new(&[
        "cache",
        "read hits",
        "write hits",
        "from core",
        "to core",
        "from cache",
        "to cache",
        "mean block",
        "mean miss",
        "memory",
        "latency, modelled",
    ]);
    let main = |row: &&Row| {
        let family = row.name.split('/').next().unwrap_or_default();
        row.name == "ours" || ["whole", "sub"].contains(&family)
    };
    let rows = result.rows.iter().filter(|row| row.percent == PERCENT);
    for row in rows.filter(|row| row.name != "ours/shards" && (all || main(row))) {
        let hits = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), percent);
        let name = match row.name.as_str() {
            "ours" => "**ours**".to_owned(),
            name => label(name),
        };
        table.row(&[
            name,
            hits(row.reads.hit_ratio()),
            hits(row.writes.hit_ratio()),
            size(row.read_from_core.bytes as f64),
            size(row.write_to_core.bytes as f64),
            size(row.read_from_cache.bytes as f64),
            size(row.write_to_cache.bytes as f64),
            size(row.mean_block_bytes()),
            size(row.mean_missed_bytes()),
            size(row.memory_max_bytes as f64),
            format!("{:.0} us", row.latency_us()),
        ]);
    }
    text += &table.0;
    text + "\n"
}

fn cdf(result: &Simulation) -> String {
    let wanted = [4, 8, 16, 32, 64, 128, 256].map(|kib| kib << 10);
    let sizes = result.sizes_at_most.iter();
    let cells = sizes
        .filter(|(bytes, _)| wanted.contains(bytes))
        .map(|(bytes, requests)| {
            let share = *requests as f64 / result.requests() as f64;
            format!("{} KiB: {:.0}%", bytes >> 10, share * 100.0)
        });
    cells.collect::<Vec<_>>().join(", ")
}

/// The paper's Table II: reads, writes (millions), bytes read and written (GiB).
const TABLE_TWO: [(&str, [f64; 4]); 3] = [
    ("alibaba", [24.5, 25.5, 607.3, 375.9]),
    ("msr", [61.0, 9.0, 2416.8, 207.2]),
    ("systor", [40.7, 19.3, 1109.2, 271.9]),
];

pub(super) fn selection(traces: &[&Trace], public: bool) -> String {
    let mut text = match public {
        true => "The first requests of each volume; the paper takes 10 million.\n\n",
        false => {
            "**Generated, not recorded**: the public traces are not here (`--traces DIR` takes them). The numbers of reads, writes and bytes of each set are those of the paper's Table II, in proportion where there are fewer than its 10 million requests a volume, and request sizes have the features that it describes; how volumes share them, \
             locality and arrivals are ours, so that hit ratios say nothing about the real ones.\n\n"
        }
    }
    .to_owned();
    let mut table = Table::new(&[
        "set", "volumes", "reads", "paper", "writes", "paper", "read", "paper", "written", "paper",
    ]);
    for (set, published) in TABLE_TWO {
        let of: Vec<&Simulation> = traces
            .iter()
            .filter(|trace| trace.set == set)
            .map(|trace| &trace.result)
            .collect();
        let sum = |value: fn(&Simulation) -> u64| of.iter().map(|one| value(one)).sum::<u64>();
        let millions = |count: u64| format!("{:.1}M", count as f64 / 1e6);
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64);
        table.row(&[
            set.to_owned(),
            of.len().to_string(),
            millions(sum(|one| one.reads)),
            format!("{}M", published[0]),
            millions(sum(|one| one.writes)),
            format!("{}M", published[1]),
            gib(sum(|one| one.read_bytes)),
            format!("{} GiB", published[2]),
            gib(sum(|one| one.write_bytes)),
            format!("{} GiB", published[3]),
        ]);
    }
    text += &table.0;
    text += "\n";
    text += &verdicts(traces);
    text += "\n";
    text + &self::traces(traces, false)
}
