//! The page.

use super::claims::PAPER;
use super::modelled::{CACHES_MIB, JOBS, ahead};
use super::runs::{Run, Spread, cell, modelled};
use super::{DEPTH, DEPTHS, FLUSHES_KIB, Measured, PARTS_FLUSH, Results, SYSTEMS};
use crate::claims::{Claim, figure};
use crate::study::table::{Table, number, percent};

/// What the page says of the run.
pub(super) struct Header<'a> {
    pub(super) commit: String,
    pub(super) date: String,
    pub(super) machine: String,
    pub(super) minutes: f64,
    /// Whether what was measured under load is an earlier run's.
    pub(super) earlier: bool,
    pub(super) waitings: &'a [&'a str],
    pub(super) quick: bool,
}

pub(super) fn render(header: &Header<'_>, claims: &[Claim], results: &Results) -> String {
    let Measured {
        commit: of,
        rounds,
        seconds,
        minutes: under_load,
        runs,
    } = &results.measured;
    let all = || runs.iter().chain(&results.parts);
    let steal: f64 = all().map(|run| run.steal_s).sum();
    let real_time = all().filter(|run| run.real_time).count();
    let Header {
        commit,
        date,
        machine,
        minutes,
        ..
    } = header;
    let took = match header.earlier {
        true => format!(
            " --measured FILE`, which took {minutes:.0} min beside the {under_load:.0} of what was measured under load, in an earlier run, of commit {of}"
        ),
        false => format!("`, which took {minutes:.0} min"),
    };
    let mut text = format!(
        "# I/O transit caching: response times\n\nWritten by `cargo xtask study caiti{took}; no figure is typed by hand but the paper's. Commit {commit}, {date}. Machine: {machine}. \
         {rounds} interleaved rounds of {seconds} s a run. Time taken by the machine's owner (steal): {steal:.2} s in all runs; {real_time} of {} runs had real-time priority.\n",
        all().count(),
    );
    if header.quick {
        text += "\n**A quick run, maybe beside others. For a look, not for a result.**\n";
    }
    text += "\n";
    let mut table = Table::new(&["claim", "paper", "ours", "bar", "holds"]);
    for claim in claims {
        table.row(&[
            format!(
                "{} ({})",
                claim.name,
                format!("{:?}", claim.kind).to_lowercase()
            ),
            claim.paper_or_peer.map_or_else(|| "-".into(), figure),
            figure(claim.ours),
            claim.bar.clone(),
            if claim.holds {
                "yes".into()
            } else {
                "**no**".into()
            },
        ]);
    }
    text += &table.0;
    let mut section = |title: &str, body: &str| text += &format!("\n## {title}\n\n{body}\n");
    section("How", &how(results));
    for waiting in header.waitings {
        section(
            &format!("Measured: half of the table's saturation, at random moments ({waiting})"),
            &measured(&results.measured.runs, &format!("half {waiting}")),
        );
        section(
            &format!("Measured: saturation, {DEPTH} writes under way ({waiting})"),
            &measured(&results.measured.runs, &format!("full {waiting}")),
        );
    }
    if !header.quick {
        section(
            "Measured: when requests came and how long they took",
            TIMELINE,
        );
        section("Measured: writes under way", &depths(results));
        section("Measured: flushes", &flushes(results));
    }
    section("Measured: where the time goes", &parts(results));
    section(
        "Modelled: two cores beside the measurement",
        &two_cores(results),
    );
    section("Modelled: 36 cores", &many_cores(results));
    if !header.quick {
        section("Modelled: sweeps at 36 cores", &sweeps(results));
    }
    section("What does not hold, and why", WHY);
    text
}

const TIMELINE: &str = "\
At half load for six and a half seconds, with the flush that comes every five, one run each, without real-time priority (the kernel takes such programs away after a second): every request's moment and time, darker where there were more. Where others run on the machine, it shows as columns in all systems.

![Response times over six and a half seconds, one panel a system](caiti-timeline.svg)";

const WHY: &str = "\
- **36 cores.** The ratios over the table and over raw memory are those of service times: one thread sends, and a write costs it the software stack, the client, and then a copy into a slot with what an eviction takes to be handed over, or else the whole store. The paper's stack alone is more than half of its time of a write, and by the published figures of the memory a store of 4 KiB takes two to three microseconds. Its table takes 15.9 us a write (3.6 times 4.41), its raw memory 9.7 us: more than the medium, the driver's work and the stack declared here make up, and nothing in the paper says where it goes. Without the stack (*in process*) the ratios are those of the stores alone. Who evicts matters as much as the policy: *by threads* is the same policies with the library's eviction threads, where staging caches lose little at saturation; *as in the paper* they evict in the writer's way.
- **Two cores.** There is one thread for evictions, so that eager eviction can at most double the stores that go on at a time; the emulated module's bandwidth (4,096 and three times 256 bytes a write) ends it before that. At saturation Caiti is about as fast as the table; its advantage is below saturation, where a write waits for a copy in place of a store.
- **Service times** are means, and the meter that takes them costs what waits for slots (`lru`, `co-active`) more than the others, since more and shorter tasks run for each write. A thread that evicts and sleeps has to be woken: what that costs is measured at 20,000 writes a second, so far apart that it sleeps before most. How long a virtual processor takes to be there again depends on how long it slept and on what its host does meanwhile; the model has one time for it, and the least of what else happens on the machine may wake or delay a thread. So at half load `lru` and `co-active`, whose writes wait for the evicting thread, have medians of a few microseconds and a p99 of a millisecond in some runs and not in others, and their means are those of the tail; `caiti` and the others that miss are off by what a woken thread costs, measured four times as often as modelled.
- Ext4-DAX and NOVA were not run: there is no such file system on this machine. The paper has them at 2.16 and 4.1 times Caiti's time of a write.";

fn how(results: &Results) -> String {
    let emulated = results
        .measured
        .runs
        .first()
        .map_or("", |run| run.emulated.as_str());
    let service = &results.service;
    let mut text = format!(
        "\
Random writes of 4 KiB, in process, to memory that is **{emulated}**: a file in DRAM whose loads, fences and bandwidth wait as declared (*spin*: the processor is kept, as by a stalled store; *yield*: other threads run meanwhile, as if each had a processor). The medium has 2 GiB, the cache 64 MiB; before the clock runs, as much is written as the cache holds and a quarter more, under the same load. One thread serves the writes, as in the daemon, and one evicts. A write's time begins when it was to be sent.

- **pmem** is the memory alone, which does not keep blocks whole; **btt** the table on it; the others are caches over the table: **pmbd**, **pmbd-70**, **lru** and **co-active** keep what is written until there is no room, **caiti** sends it on at once and lets a write pass when no slot is free; the last two are Caiti without one of these. All evict by threads, in the library as it is.
- **Half load**: writes come at random moments (exponential), half as many a second as the table takes. Figures are medians of the rounds, with the least and the most.
- **Modelled** is a discrete-event run of the same code (policies, slots, core) on a virtual clock, over devices whose time is that of declared threads, of the same declared memory and of service times measured on this machine in the same study. Declared costs have their sources in [costs.rs](../../block-cache/transit/examples/caiti/costs.rs) and were frozen before the first run of the model. Nothing is fitted.

| service time, measured | ns |
|---|---:|
| the client and the executor, a write | {:.0} |
| a write to raw memory | {:.0} |
| a write to the table | {:.0} |
| the same by a thread that evicts, with the handing over on its side | {:.0} |
| how long such a thread looks out for the next job before it sleeps | {:.0} |
| waking it: of the cache's thread, and until it is there | {:.0} and {:.0} |
",
        service.client_ns,
        service.pmem_ns,
        service.btt_ns,
        service.job_ns,
        service.look_ns,
        service.wake_ns,
        service.woken_ns,
    );
    for (system, place, evict) in &service.cached {
        text += &format!(
            "| {system}: a write into a slot, and an eviction on the cache's thread | {place:.0} + {evict:.0} |\n"
        );
    }
    if let Some(declared) = results.declared.as_object() {
        text += "\n| declared | |\n|---|---:|\n";
        for (name, value) in declared {
            text += &format!("| `{name}` | {value} |\n");
        }
    }
    text
}

fn spread(spread: Spread) -> String {
    let digits = match spread.median {
        large if large >= 1000.0 => 0,
        small if small < 10.0 => 2,
        _ => 1,
    };
    format!(
        "{:.digits$} ({:.digits$} to {:.digits$})",
        spread.median, spread.least, spread.most
    )
}

fn measured(runs: &[Run], part: &str) -> String {
    let mut table = Table::new(&[
        "",
        "writes/s",
        "mean, us",
        "p50, us",
        "p99, us",
        "p99.99, us",
        "bypassed",
        "waited",
        "samples",
    ]);
    for system in SYSTEMS {
        let cell = cell(runs, part, system);
        let samples: u64 = cell.0.iter().map(|run| run.writes).sum();
        let share = |count: fn(&Run) -> u64| {
            let some: u64 = cell.0.iter().map(|run| count(run)).sum();
            percent(some as f64 / samples.max(1) as f64)
        };
        table.row(&[
            system.into(),
            spread(cell.spread(|run| run.iops)),
            spread(cell.spread(|run| run.mean_us)),
            spread(cell.spread(|run| run.p50_us)),
            spread(cell.spread(|run| run.p99_us)),
            spread(cell.spread(|run| run.p9999_us)),
            share(|run| run.bypassed),
            share(|run| run.waited),
            number(samples),
        ]);
    }
    table.0
}

/// One run of each system for each of several parts.
fn one_each(
    runs: &[Run],
    titles: &[String],
    parts: &[String],
    value: fn(&Run) -> String,
) -> String {
    let mut head = vec![""];
    head.extend(titles.iter().map(String::as_str));
    let mut table = Table::new(&head);
    for system in SYSTEMS {
        let figures = parts.iter().map(|part| {
            let cell = cell(runs, part, system);
            cell.0.first().map_or_else(String::new, |run| value(run))
        });
        let row: Vec<String> = std::iter::once(system.to_owned()).chain(figures).collect();
        table.row(&row);
    }
    table.0
}

fn depths(results: &Results) -> String {
    let parts = DEPTHS.map(|depth| format!("depth {depth}"));
    let titles = DEPTHS.map(|depth| depth.to_string());
    "Spinning, one run each: mean / p99 / p99.99, us.\n\n".to_owned()
        + &one_each(&results.measured.runs, &titles, &parts, |run| {
            format!(
                "{:.1} / {:.1} / {:.0}",
                run.mean_us, run.p99_us, run.p9999_us
            )
        })
}

fn flushes(results: &Results) -> String {
    let parts = FLUSHES_KIB.map(|kib| format!("flush {kib}"));
    let titles = FLUSHES_KIB.map(|kib| format!("after {kib} KiB"));
    format!(
        "Spinning, {DEPTH} writes under way, one of which flushes when so much was written, one run each: writes a second / mean of a write, us / mean of a flush, ms.\n\n"
    ) + &one_each(&results.measured.runs, &titles, &parts, |run| {
        format!(
            "{:.0} / {:.1} / {:.2}",
            run.iops, run.mean_us, run.flush_mean_ms
        )
    })
}

/// Parts of the cache's work, and what the page calls them.
const PARTS: [(&str, &str); 7] = [
    ("metadata", "metadata"),
    ("slot", "cache write or read"),
    ("queue", "enqueue, hand over"),
    ("ended", "evictions ended"),
    ("wait", "eviction and write"),
    ("through", "bypass, or a read that misses"),
    ("flush", "flush"),
];

fn parts(results: &Results) -> String {
    let mut text = format!(
        "One write, then one read, at a time, spinning, a flush every {PARTS_FLUSH} s, one run each, with a clock in the cache (feature `parts`), whose looks are in the figures. Without real-time priority: counts are exact, times have in them what others took on the machine. Nanoseconds a request, and in brackets how often that was done a request. What the cache's thread does is taken as it does it; waiting for an eviction and flushes as they pass, while the thread goes on with the rest. *Other* is the client, the executor, and what is not waited for.\n\n"
    );
    let mut head = vec!["", "mean"];
    head.extend(PARTS.iter().map(|(_, title)| *title));
    head.push("other");
    for (part, what) in [("parts", "**writes**"), ("reads", "**reads**")] {
        head[0] = what;
        let mut table = Table::new(&head);
        for system in SYSTEMS {
            let cell = cell(&results.parts, part, system);
            let Some(run) = cell.0.first() else { continue };
            let mean = run.mean_us * 1e3;
            let mut row = vec![system.to_owned(), format!("{mean:.0}")];
            let mut other = mean;
            for (name, _) in PARTS {
                let (count, ns) = match (system, name) {
                    ("pmem" | "btt", "through") => (1.0, mean - results.service.client_ns),
                    _ => run.part(name),
                };
                row.push(match count > 0.0 {
                    true => format!("{ns:.0} ({count:.4})"),
                    false => "-".into(),
                });
                if name != "flush" {
                    other -= ns;
                }
            }
            row.push(format!("{:.0}", other.max(0.0)));
            table.row(&row);
        }
        text += &table.0;
        text += "\n";
    }
    let mut table = Table::new(&["", "metadata of a slot, bytes"]);
    for system in SYSTEMS.into_iter().skip(2) {
        let cell = cell(&results.measured.runs, "full spin", system);
        table.row(&[
            system.into(),
            format!("{:.0}", cell.median(|run| run.slot_bytes as f64)),
        ]);
    }
    text + "Metadata of a slot, the header in memory that outlives the process included (16 bytes); the paper: 102 for Caiti and Co-Active, 84 for the others.\n\n"
        + &table.0
}

fn two_cores(results: &Results) -> String {
    let mut table = Table::new(&[
        "",
        "saturation, writes/s: measured",
        "modelled",
        "",
        "half load, mean, us: measured",
        "modelled",
        "",
        "half load, threads woken, of writes: measured",
        "modelled",
    ]);
    for system in SYSTEMS {
        let full = cell(&results.measured.runs, "full spin", system).median(|run| run.iops);
        let halves = cell(&results.measured.runs, "half spin", system);
        let half = halves.median(|run| run.mean_us);
        let share = |woken: u64, writes: u64| percent(woken as f64 / writes.max(1) as f64);
        let model = |part| {
            modelled(&results.models, part, system)
                .cloned()
                .unwrap_or_default()
        };
        let (full_model, half_run) = (model("two full").iops, model("two half"));
        let half_model = half_run.mean_us;
        let woken = (halves.0.iter()).fold((0, 0), |(woken, writes), run| {
            (woken + run.woken, writes + run.writes)
        });
        table.row(&[
            system.into(),
            format!("{full:.0}"),
            format!("{full_model:.0}"),
            format!("{:.2}", full_model / full),
            format!("{half:.2}"),
            format!("{half_model:.2}"),
            format!("{:.2}", half_model / half),
            share(woken.0, woken.1),
            share(half_run.woken, half_run.writes),
        ]);
    }
    "One thread that sends, one that evicts, one module, nothing before the device: what was measured, spinning.\n\n".to_owned() + &table.0
}

fn many_cores(results: &Results) -> String {
    let mut text = "One thread sends with 128 writes under way (the paper's one job), 35 evict, six modules, a cache of 512 MiB, a file of 64 GiB, a flush every five seconds. *As in the paper*: staging caches evict in the writer's way (pmbd-70 by one thread), Caiti by threads. Microseconds are of the sending thread for each write (the reciprocal of throughput), as the paper's Table 1 gives them.\n\n".to_owned();
    let mut table = Table::new(&[
        "",
        "as in the paper, us",
        "Caiti is ahead",
        "the paper",
        "by threads, us",
        "ahead",
        "in process, us",
        "ahead",
    ]);
    for system in SYSTEMS {
        let each = |part| {
            modelled(&results.models, part, system).map_or(f64::NAN, |model| 1e6 / model.iops)
        };
        let papers = PAPER.iter().find(|(name, _)| *name == system);
        table.row(&[
            system.into(),
            format!("{:.2}", each("paper")),
            format!("{:.2}", ahead(&results.models, "paper", system)),
            papers.map_or_else(|| "-".into(), |(_, ratio)| figure(*ratio)),
            format!("{:.2}", each("pool")),
            format!("{:.2}", ahead(&results.models, "pool", system)),
            format!("{:.2}", each("in process")),
            format!("{:.2}", ahead(&results.models, "in process", system)),
        ]);
    }
    text += &table.0;
    text
}

fn sweeps(results: &Results) -> String {
    let rows = |parts: Vec<(String, String)>, value: fn(&super::Model) -> String| {
        let titles: Vec<&str> = std::iter::once("")
            .chain(parts.iter().map(|(title, _)| title.as_str()))
            .collect();
        let mut table = Table::new(&titles);
        for system in SYSTEMS {
            let figures = parts.iter().map(|(_, part)| {
                modelled(&results.models, part, system).map_or_else(|| "-".into(), value)
            });
            let row: Vec<String> = std::iter::once(system.to_owned()).chain(figures).collect();
            table.row(&row);
        }
        table.0
    };
    let depths = DEPTHS.map(|depth| (depth.to_string(), format!("depth {depth}")));
    let jobs = JOBS.map(|jobs| (jobs.to_string(), format!("jobs {jobs}")));
    let caches = CACHES_MIB.map(|mib| (format!("{mib} MiB"), format!("cache {mib}")));
    let each: fn(&super::Model) -> String = |model| format!("{:.2}", 1e6 / model.iops);
    format!(
        "As in the paper. By writes under way: mean / p99.99, us (the paper: at 1024, PMBD's p99.99 is 14.0 times Caiti's).\n\n{}\nBy threads that send, {DEPTH} writes under way each; microseconds a write, all threads together.\n\n{}\nBy size of the cache, one thread; microseconds a write (the paper's Table 1: 4.3 to 4.4 for Caiti, 16.2 to 17.0 for PMBD and LRU, 12.3 to 13.0 for Co-Active).\n\n{}",
        rows(depths.to_vec(), |model| format!(
            "{:.0} / {:.0}",
            model.mean_us, model.p9999_us
        )),
        rows(jobs.to_vec(), each),
        rows(caches.to_vec(), each),
    )
}
