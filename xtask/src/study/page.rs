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
- **paper**: AdaCache's blocks of 32K, 64K, 128K and 256K, its groups and its replacement on two levels. **ours**: the same blocks and groups; what a read miss brings in is learned; blocks are on probation until they are asked for again; the group that goes is chosen among those of the coldest blocks; room is made ahead of need, as the engine must; write-backs are merged. Ours has neither merging nor splitting of
  cached blocks: copying neighbours that had all been asked for again into one larger block was tried, and moved up to 1.4 times the bytes (OLTP; w106 1.17 times), since room for a large block costs a group of small warm ones. Nor does it rescue hot blocks from a group that goes.
- **Backend I/O** is bytes from and to the backing device, **cache I/O** bytes from and to the cache device. **Memory** is the most that metadata took: 28 bytes a block, for the free slots of groups in use too, about eight a group (of 64 blocks where there is one size, since nothing is given up by the group there; nine more by the paper's rule, which lists groups by their last use), two bytes for each 32K of the cache for the index, 7 bytes a block for what else the engine has of one, two bits a granule; of ours a third bit, and what is
  learned (11 KiB, which counts in caches as small as these). **Mean block** is the mean of the blocks that misses placed, **mean miss** that of requests that were no hits.
- **Latency** is modelled, and nothing but a model: the mean over all requests, eight under way at a time, of a general-purpose cloud volume (1 ms, 3,000 operations and 125 MiB a second: \"Amazon EBS volume types\", AWS documentation, gp3 without extras) behind an NVMe cache of the paper's testbed (Samsung PM9A3 over NVMe over Fabrics:
  90 us a read, 30 us a write, 3.5 GB/s). The costs were frozen before the first run; `Costs::CLOUD` in trace/src/sim/cost.rs has each figure with its source.";

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
        "# Adaptive block sizes: AdaCache's table\n\nWritten by `{command}`, which took {minutes:.0} min; no figure is typed by hand. Commit {commit}, {date}. Machine: {machine}, which matters to *Speed* alone: all else is counted or modelled, \
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
