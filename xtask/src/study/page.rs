//! The page: docs/results/adacache.md.

use std::path::Path;

use super::sections;
use super::simulation::{Origin, Trace};
use crate::claims::Report;

/// The title of the section that `cargo xtask bench policy` writes.
pub(crate) const SPEED: &str = "## Speed";

/// What the page says of the run.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) machine: String,
    pub(super) commit: String,
    pub(super) date: String,
    pub(super) command: String,
    pub(super) minutes: f64,
}

/// A section of a page that is there already, with its title; empty if it is not.
pub(crate) fn kept_section(path: &Path, title: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines().skip_while(|line| *line != title);
    let Some(first) = lines.next() else {
        return String::new();
    };
    let rest = lines.take_while(|line| !line.starts_with("## "));
    let lines: Vec<&str> = std::iter::once(first).chain(rest).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// A page with one section replaced, or put at the end.
pub(crate) fn with_section(path: &Path, title: &str, section: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let old = kept_section(path, title);
    match old.is_empty() {
        true => format!("{}\n\n{section}", text.trim_end()),
        false => text.replacen(old.trim_end(), section.trim_end(), 1),
    }
}

const HOW: &str = "\
A write-back cache is simulated that keeps no data, and drives the `policy` crate's own code. Each trace, and each volume of a set, has a cache of its own, of 10% of its working set
(unique pages of 4 KiB) unless the row says otherwise, empty at the start; at the end all dirty data is written back, which counts.

- **whole**: the paper's rule. A miss, of a write too, first reads the whole block; a dirty victim is written back whole while the request waits.
- **sub-block**: blocks have valid and dirty maps of 4 KiB granules. A read brings in all that is missing of the blocks that it misses in, a write nothing but the rest of granules that it writes in part. Dirty granules
  of victims are written back ahead of need. **merged** means that a victim's dirty neighbours go in the same operation, within an aligned window of 256 KiB, whatever the block size: a part of ours, here given to the others. **demand**: a read brings in what it asks for and no more.
- **paper**: AdaCache's blocks of 32K, 64K, 128K and 256K, its groups and its replacement on two levels. **ours**: the same blocks and groups; what a read miss brings in is learned; blocks are on probation until they are asked for again; the group that goes is chosen among those of the coldest blocks; room is made ahead of need, as the engine must; write-backs are merged. What ours has not is under *Tried and left out*.
- **Backend I/O** is bytes from and to the backing device, **cache I/O** bytes from and to the cache device. **Memory** is the most that metadata took, as the engine allocates it (a test compares the two): 28 bytes a block and 6 for what else the engine has of one, for the free slots of groups too, as many as there ever were; about seven bytes a group (of 64 blocks where there is one size, since nothing is given up by the group there; nine more by the paper's rule, which lists groups by their last use);
  for each 32K of the cache two bits a granule, five bits for the cleaner and the log, and the index, four bytes where there is one size and two where there are several, since fewer blocks begin there (a cache of 32K could do with two as well, and would look at twice as many blocks to find one); of ours what is learned (at most 2.5 KiB). **Mean block** is the mean of the blocks that misses placed, **mean miss** that of requests that were no hits.
- **Latency** is modelled, and nothing but a model: the mean over all requests, eight under way at a time, of a general-purpose cloud volume (1 ms, 3,000 operations and 125 MiB a second: \"Amazon EBS volume types\", AWS documentation, gp3 without extras) behind an NVMe cache of the paper's testbed (Samsung PM9A3 over NVMe over Fabrics:
  90 us a read, 30 us a write, 3.5 GB/s). The costs were frozen before the first run; `Costs::CLOUD` in planner/trace/src/sim/cost.rs has each figure with its source.";

/// Figures of trials: made once, on the way, and not again with the page.
const TRIED: &str = "\
Three things were tried in the simulator on top of ours and are in neither simulator nor engine. Their figures are of those trials, made once, when the group that goes was one of 16 candidates and not of 64, and not made again with the page: backend I/O / modelled latency / cache I/O, each over that of
the paper's rules with sub-block maps in the same run.

| rules | CloudPhysics, 2 h of a disk | CloudPhysics w106, a week | ARC OLTP | ARC P3 | ARC P6 | MSN-FS | Tencent CBS |
|---|---:|---:|---:|---:|---:|---:|---:|
| ours | 0.99 / 0.92 / 0.97 | 1.02 / 0.98 / 1.01 | 0.65 / 0.92 / 0.77 | 0.95 / 1.03 / 0.95 | 0.78 / 0.87 / 0.83 | 0.87 / 0.94 / 0.87 | 0.92 / 0.97 / 0.94 |
| + rescue | 0.99 / 0.92 / 1.27 | 1.02 / 0.98 / 1.01 | 0.65 / 0.92 / 0.77 | 0.95 / 1.02 / 1.12 | 0.79 / 0.88 / 1.05 | 0.87 / 0.94 / 0.89 | 0.92 / 0.98 / 1.08 |
| + rescue of the hottest | 0.99 / 0.92 / 1.13 | 1.02 / 0.98 / 1.01 | 0.65 / 0.92 / 0.77 | 0.96 / 1.03 / 1.06 | 0.79 / 0.88 / 0.94 | 0.87 / 0.94 / 0.88 | 0.92 / 0.97 / 1.01 |
| + splits of victims | 0.98 / 0.92 / 1.18 | 1.02 / 0.98 / 1.01 | 0.65 / 0.92 / 0.77 | 0.95 / 1.03 / 0.99 | 0.79 / 0.88 / 0.89 | 0.87 / 0.94 / 0.87 | 0.92 / 0.97 / 0.95 |
| + splits of what is used in part | 0.99 / 0.92 / 0.98 | 1.02 / 0.98 / 1.01 | 0.65 / 0.92 / 0.77 | 0.96 / 1.03 / 0.95 | 0.79 / 0.87 / 0.84 | 0.87 / 0.94 / 0.87 | 0.92 / 0.97 / 0.94 |

- **Rescue**: of a group that goes, blocks that are protected (*of the hottest*: and used within a quarter of the age of the coldest that is) are copied into free slots of their size elsewhere, if there are any. On real traces it saves nothing: what is written to the cache device grows by up to 30%, backend I/O stays within 1%. On
  generated ones it pays: three of them (alibaba vd2, msr prn_1, systor LUN1, half a million requests) go from 0.94 / 0.98 / 0.99, 0.81 / 0.83 / 0.86 and 0.85 / 0.92 / 0.92 to 0.88 / 0.90 / 1.18, 0.77 / 0.79 / 1.00 and 0.78 / 0.83 / 1.11 with the hottest. There the popular blocks stay
  popular for ever, as they are generated; a real trace like that would be a reason to look again.
- **Splits**: a block larger than the smallest is cut where it lies, without copying if its group has no other; the units of which data was asked for a second time stay as the smallest blocks, the others go. *Of victims*: when it would go. *Of what is used in part*: at the second such use, if they are at most half of it. Backend I/O and latency
  stay within 1% on these traces, and within 2% on the generated ones.
- **Merging**: neighbours that had all been asked for again were copied into one larger block. It loses where it does anything: w106 1.19 / 1.07 of the backend I/O and latency of the best fixed size, OLTP 0.93 / 1.02 where ours had 0.65 / 0.93, since room for a large block costs a group of small warm ones.";

/// The page as Markdown.
pub(super) fn render(header: &Header, report: &Report<Trace>, speed: &str) -> String {
    let Header {
        machine,
        commit,
        date,
        command,
        minutes,
    } = header;
    let traces = &report.rows;
    let of = |origins: &[Origin]| -> Vec<&Trace> {
        let chosen = traces.iter();
        chosen
            .filter(|trace| origins.contains(&trace.origin))
            .collect()
    };
    let (tuned, held_out) = (of(&[Origin::Tuned]), of(&[Origin::HeldOut]));
    let (sets, other_seed) = (
        of(&[Origin::TableTwo, Origin::Public]),
        of(&[Origin::OtherSeed]),
    );
    let real = of(&[Origin::Tuned, Origin::HeldOut]);
    let public = traces.iter().any(|trace| trace.origin == Origin::Public);
    let mut text = format!(
        "# Adaptive block sizes: AdaCache's table\n\nWritten by `{command}`, which took {minutes:.0} min; no figure is typed by hand but those of *Tried and left out*. Commit {commit}, {date}. Machine: {machine}, which matters to *Speed* alone: all else is counted or modelled, \
         and the same on any machine.\n"
    );
    if report.quick {
        text +=
            "\n**A quick run: fewer requests of the long traces. For a look, not for a result.**\n";
    }
    let mut section = |title: &str, body: &str| {
        text += &format!("\n## {title}\n\n{body}\n");
    };
    section("The answer", &sections::answer(report));
    section("How", HOW);
    section("Ours against the best fixed size", &{
        let mut body = "Bars: backend I/O and latency at most 1.02 times those of the best fixed size, whole or sub-block; less memory than 32K with sub-block maps and nothing learned. Against 32K with all our rules, which is what the engine has for one size, memory is given apart, bold where ours takes more: where no request is larger than 32K, blocks of several sizes have nothing to save, and their groups are small. Traces count that have at least 50,000 requests and a cache of at least 64 groups. The last two columns \
             hold ours against fixed sizes that merge their write-backs as well: what remains of the advantage then.\n\nThe constants of our rules were chosen on these seven traces:\n\n"
            .to_owned();
        body += &sections::verdicts(&tuned);
        body += "\nThese were not looked at for that. Most are too short or too small to count, and are shown all the same:\n\n";
        body += &sections::verdicts(&held_out);
        body += "\nGenerated from the same descriptions as below with another seed, a million requests each (fewer in a quick run), not looked at either:\n\n";
        body += &sections::verdicts(&other_seed);
        body
    });
    section("The paper's claims", &sections::paper(&real, &sets));
    section("What each step adds", &sections::steps(&real));
    section("Tried and left out", TRIED);
    section("Other sizes of the cache", &sections::sizes(&real));
    section("What shards cost", &sections::shards(&real));
    section("The real traces", &sections::traces(&real, true));
    let title = match public {
        true => "The paper's selection of public traces",
        false => "The paper's selection, generated",
    };
    section(title, &sections::selection(&sets, public));
    match speed.is_empty() {
        true => section(
            SPEED.trim_start_matches("## "),
            "Not measured here yet: `cargo xtask bench policy --page`.",
        ),
        false => text += &format!("\n{speed}"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_kept_and_replaced() {
        let name = format!("forebay-study-page-{}.md", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "# A\n\n## B\n\nx\n\n## Speed\n\nold\n\n## C\n\ny\n")
            .expect("a temporary file");
        assert_eq!(kept_section(&path, SPEED), "## Speed\n\nold\n");
        assert_eq!(kept_section(&path, "## D"), "");
        let with = with_section(&path, SPEED, "## Speed\n\nnew\n");
        assert_eq!(with, "# A\n\n## B\n\nx\n\n## Speed\n\nnew\n\n## C\n\ny\n");
        let with = with_section(&path, "## D", "## D\n\nnew\n");
        assert!(with.ends_with("## C\n\ny\n\n## D\n\nnew\n"), "{with}");
        std::fs::remove_file(&path).expect("it was made here");
    }
}
