//! The page that `forebay simulate --html` writes: one self-contained file without scripts, which
//! is also well-formed XML.

mod answer;
mod bars;
mod line;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::time::Duration;

use forebay_trace::mrc::Curve;
use forebay_trace::sim::Counts;
use forebay_trace::stats::Summary;

use super::row::{Row, latency_us, latency_words, mean_missed_bytes, table};
use bars::Bars;
use forebay_terminal::size::{human_bytes, human_count, human_duration};
use forebay_terminal::table::escape;
use line::{Line, Point};

/// Colours after Okabe and Ito, which colour-blind people can tell apart; lighter on a dark page.
const STYLE: &str = "\
:root{color-scheme:light \
dark;--ink:#1b2733;--soft:#54636f;--line:#d5dce3;--page:#fbfcfd;--card:#fff;\
--s1:#0072b2;--s2:#e69f00;--s3:#56b4e9;--s4:#d55e00}\
@media(prefers-color-scheme:dark){:root{--ink:#e3e9ee;--soft:#9fafbb;--line:#33404a;\
--page:#11171c;--card:#182027;\
--s1:#4aa3df;--s2:#f0b429;--s3:#9bd3f5;--s4:#ef7b45}}\
*{box-sizing:border-box}body{font:15px/1.5 \
system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0}\
main{max-width:76rem;margin:0 auto;padding:1.6rem 1rem 3rem}h1{font-size:1.35rem;margin:0 0 \
.2rem;overflow-wrap:anywhere}\
h2{font-size:1.05rem;margin:2rem 0 .6rem}p{margin:.35rem 0}.soft{color:var(--soft)}\
.answer{border-left:4px solid var(--s1);background:var(--card);padding:.7rem 1rem;margin:1rem \
0;font-size:1.05rem;max-width:62rem}\
.facts{display:flex;flex-wrap:wrap;gap:.3rem 2rem;margin:1rem 0 \
1.4rem;padding:0;list-style:none}.facts b{display:block;font-size:1.2rem}\
.facts li{color:var(--soft)}.facts b{color:var(--ink)}\
.charts{columns:32rem 2;column-gap:1rem}\
figure{margin:0 0 1rem;break-inside:avoid;padding:.9rem 1rem \
1rem;background:var(--card);border:1px solid var(--line);border-radius:.5rem;overflow-x:auto}\
figcaption{margin-bottom:.6rem}figcaption b{display:block}figcaption \
small{color:var(--soft);display:block;line-height:1.35}\
.keys{display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.85rem;margin-top:.35rem}.keys \
i{display:inline-block;width:.8rem;height:.8rem;\
border-radius:.15rem;margin-right:.35rem;vertical-align:-.08rem}\
svg{display:block;width:100%;min-width:27rem;height:auto}svg text{font:12px \
system-ui,sans-serif;fill:var(--ink)}\
svg .tick{fill:var(--soft)}svg .value{font-variant-numeric:tabular-nums}svg .ours,svg \
.group{font-weight:700}\
@media(max-width:30rem){main{padding:.8rem .5rem 2rem}figure{padding:.7rem \
.5rem}svg{min-width:21rem}svg text{font-size:14px}}\
.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}.s4{fill:var(--s4)}\
i.s1{background:var(--s1)}i.s2{background:var(--s2)}i.s3{background:var(--s3)}\
i.s4{background:var(--s4)}\
.axis{stroke:var(--soft)}.grid{stroke:var(--line)}.mark{stroke:var(--s4);stroke-width:1.5;\
stroke-dasharray:5 4}\
.line{fill:none;stroke:var(--s1);stroke-width:2}.band{fill:var(--s1);opacity:.2}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.84rem}th,td{padding:.3rem .65rem \
.3rem 0;text-align:left;\
border-bottom:1px solid \
var(--line);white-space:nowrap}th{color:var(--soft);font-weight:600;white-space:normal;\
vertical-align:bottom}.n{text-align:right;font-variant-numeric:tabular-nums}";

/// Content of the page.
pub(super) struct Content<'a> {
    pub(super) title: &'a str,
    pub(super) summary: &'a Summary,
    pub(super) rows: &'a [Row],
    /// Miss ratios of LRU caches of blocks of [`CURVE_BLOCK_BYTES`].
    pub(super) curve: &'a Curve,
    /// Remarks about records that do not count.
    pub(super) remarks: &'a [String],
}

/// Blocks of the miss-ratio curve.
pub(super) const CURVE_BLOCK_BYTES: u32 = 4096;

/// Returns the page.
pub(super) fn render(content: &Content<'_>) -> String {
    let mut html = String::with_capacity(64 << 10);
    let _ = write!(
        html,
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width\"/><title>Forebay: \
         {title}</title><style>{STYLE}</style></head>\
         <body><main><h1>{title}</h1><p class=\"soft\">What a write-back cache would do with this \
         trace: simulated by forebay {version}, with the decisions of its engine.</p>",
        title = escape(content.title),
        version = env!("CARGO_PKG_VERSION"),
    );
    html.push_str("<div class=\"answer\">");
    for paragraph in answer::paragraphs(content) {
        let _ = write!(html, "<p>{}</p>", escape(&paragraph));
    }
    html.push_str("</div>");
    facts(&mut html, content);
    html.push_str("<div class=\"charts\">");
    charts(&mut html, content);
    html.push_str("</div><h2>All figures</h2><div class=\"wide\">");
    html.push_str(&table(content.rows).html());
    html.push_str("</div>");
    for remark in content.remarks {
        let _ = write!(html, "<p class=\"soft\">{}</p>", escape(remark));
    }
    html.push_str(
        "<p class=\"soft\">Core is the backing device. Latencies are modelled, never measured: a \
         general-purpose cloud volume (1 ms, 3,000 operations and \
         125 MiB a second) behind an NVMe cache, eight requests under way at a \
         time.</p></main></body></html>\n",
    );
    html
}

fn facts(html: &mut String, content: &Content<'_>) {
    let summary = content.summary;
    // Requests of traces without times are a nanosecond apart.
    let span = match Duration::from_nanos(summary.span_ns) {
        short if short < Duration::from_millis(100) => "no times".to_owned(),
        span => human_duration(span),
    };
    let amount = |totals: forebay_trace::stats::Totals| {
        let requests = human_count(totals.requests, "request");
        format!("{} in {requests}", human_bytes(totals.bytes))
    };
    html.push_str("<ul class=\"facts\">");
    for (what, value) in [
        ("read", amount(summary.reads)),
        ("written", amount(summary.writes)),
        ("working set", human_bytes(summary.working_set_bytes())),
        (
            if summary.volumes.len() == 1 {
                "volume"
            } else {
                "volumes"
            },
            summary.volumes.len().to_string(),
        ),
        ("from first to last", span),
    ] {
        let _ = write!(html, "<li><b>{value}</b>{what}</li>");
    }
    html.push_str("</ul>");
}

/// Returns the common heading of rows of one size, if there are several sizes; otherwise an empty
/// text.
fn group(row: &Row, rows: &[Row]) -> String {
    let one_size = rows
        .iter()
        .all(|other| other.capacity_bytes == rows[0].capacity_bytes);
    match one_size {
        true => String::new(),
        false => human_bytes(row.capacity_bytes),
    }
}

/// Returns the label that distinguishes a row from others of its size.
fn short_label(row: &Row) -> String {
    format!("{} {}", row.blocks, row.name)
}

/// Returns the label that distinguishes a row from all others.
fn label(row: &Row, rows: &[Row]) -> String {
    match group(row, rows) {
        none if none.is_empty() => short_label(row),
        size => format!("{size}, {}", short_label(row)),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes"
)]
fn bytes(value: f64) -> String {
    human_bytes(value as u64)
}

fn percent(value: f64) -> String {
    format!("{:.1}%", value * 100.0)
}

fn charts(html: &mut String, content: &Content<'_>) {
    let rows = content.rows;
    let values = |of: &dyn Fn(&Row, &Counts) -> Vec<f64>| -> Vec<bars::Row> {
        let row = |row: &Row| bars::Row {
            group: group(row, rows),
            label: short_label(row),
            values: of(row, row.cache.counts()),
            ours: row.asked_for,
        };
        rows.iter().map(row).collect()
    };
    let hits = Bars {
        id: "hits",
        title: "Hit ratio",
        note: "Requests that found all of their bytes in the cache. A high ratio alone is no good \
               news: large blocks buy hits with traffic.",
        series: &["reads", "writes"],
        stacked: false,
        end: Some(1.0),
        rows: values(&|_, counts| vec![counts.reads.hit_ratio(), counts.writes.hit_ratio()]),
        unit: percent,
    };
    let volumes = Bars {
        id: "volumes",
        title: "The four I/O volumes",
        note: "Bytes in each direction. Traffic of the backing device is the expensive part.",
        series: &[
            "from the backing device",
            "to it",
            "from the cache device",
            "to it",
        ],
        stacked: true,
        end: None,
        rows: values(&|_, counts| {
            let io = counts.io;
            let ways = [
                io.read_from_core,
                io.write_to_core,
                io.read_from_cache,
                io.write_to_cache,
            ];
            ways.iter().map(|volume| volume.bytes as f64).collect()
        }),
        unit: bytes,
    };
    let latency = Bars {
        id: "latency",
        title: "Mean latency, modelled",
        note: "Of all requests, on a general-purpose cloud volume behind an NVMe cache.",
        series: &["latency"],
        stacked: false,
        end: None,
        rows: values(&|_, counts| vec![latency_us(counts)]),
        unit: latency_words,
    };
    let memory = Bars {
        id: "memory",
        title: "Memory for metadata",
        note: "Maximum over the run.",
        series: &["memory"],
        stacked: false,
        end: None,
        rows: values(&|_, counts| vec![counts.memory_max_bytes as f64]),
        unit: bytes,
    };
    let blocks = Bars {
        id: "blocks",
        title: "Blocks as large as what misses?",
        note: "Mean size of the requests that missed, and of the blocks that were placed for them.",
        series: &["request that missed", "block"],
        stacked: false,
        end: None,
        rows: values(&|_, counts| {
            let block = counts.allocated_bytes as f64 / counts.allocated_blocks.max(1) as f64;
            vec![mean_missed_bytes(counts), block]
        }),
        unit: bytes,
    };
    let sizes = &content.summary.sizes;
    let (first, last) = (
        (9..32).find(|power| sizes.at_most(*power) > 0).unwrap_or(9),
        (9..32).find(|power| sizes.at_most(*power) == sizes.total()),
    );
    let cdf = Line {
        id: "sizes",
        title: "Request sizes",
        note: "The share of reads and writes that are not larger.",
        axis: "size of a request",
        points: (first..=last.unwrap_or(32))
            .map(|power| Point {
                bytes: 1 << power,
                share: sizes.at_most(power) as f64 / sizes.total().max(1) as f64,
                error: 0.0,
            })
            .collect(),
        marks: Vec::new(),
    };
    let mut marks: Vec<u64> = rows.iter().map(|row| row.capacity_bytes).collect();
    marks.dedup();
    let point = |point: &forebay_trace::mrc::Point| Point {
        bytes: point.blocks * u64::from(CURVE_BLOCK_BYTES),
        share: point.miss_ratio,
        error: point.standard_error,
    };
    let curve = Line {
        id: "curve",
        title: "Miss ratio of every size",
        note: "Of an LRU cache of 4 KiB blocks, from a sample, with twice its standard error. \
               Dashed: the caches of this page. Where the curve is flat, a larger cache is wasted \
               money.",
        axis: "size of the cache",
        points: content.curve.points.iter().map(point).collect(),
        marks,
    };
    for chart in [
        hits.render(),
        volumes.render(),
        latency.render(),
        memory.render(),
        blocks.render(),
        cdf.render(),
        curve.render(),
    ] {
        html.push_str(&chart);
    }
}

/// Returns a drawing with its title, its note and the legend.
fn figure(
    id: &str,
    title: &str,
    note: &str,
    keys: &[&str],
    (width, height): (f64, f64),
    svg: &str,
) -> String {
    let mut html = format!("<figure><figcaption><b>{title}</b><small>{note}</small>");
    if !keys.is_empty() {
        html.push_str("<span class=\"keys\">");
        for (nth, key) in keys.iter().enumerate() {
            let _ = write!(html, "<span><i class=\"s{}\"></i>{key}</span>", nth + 1);
        }
        html.push_str("</span>");
    }
    let _ = write!(
        html,
        "</figcaption><svg id=\"{id}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{note}</desc>{svg}</svg></figure>"
    );
    html
}
