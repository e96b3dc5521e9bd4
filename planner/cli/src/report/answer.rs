//! The result in words.

use super::{CURVE_BLOCK_BYTES, Content, label, percent};
use crate::row::{Row, latency_us, latency_words};
use forebay_terminal::size::human_bytes;

/// Most caches with a paragraph of their own.
const MOST: usize = 4;

pub(super) fn paragraphs(content: &Content<'_>) -> Vec<String> {
    let asked = content.rows.iter().filter(|row| row.asked_for);
    let mut paragraphs: Vec<String> = asked.take(MOST).map(|row| one(row, content)).collect();
    if content.rows.len() > 1 {
        paragraphs.push(beside(content.rows));
    }
    paragraphs
}

fn one(row: &Row, content: &Content<'_>) -> String {
    let counts = row.cache.counts();
    let hits = [(&counts.reads, "reads"), (&counts.writes, "writes")]
        .into_iter()
        .filter(|(requests, _)| requests.count > 0)
        .map(|(requests, what)| format!("{} of {what}", percent(requests.hit_ratio())));
    let (client, core) = (
        counts.reads.bytes + counts.writes.bytes,
        counts.io.core_bytes(),
    );
    let change = core as f64 / client.max(1) as f64 - 1.0;
    let nothing = percent(0.0);
    let against = match percent(change.abs()) {
        none if none == nothing => "as much as".to_owned(),
        less if change < 0.0 => format!("{less} less than"),
        more => format!("{more} more than"),
    };
    let mut text = format!(
        "In a {} cache with blocks of {} ({}), {} would find all of their data. {} would pass to \
         and from the backing device, {against} the {} that clients asked for. \
         Metadata would take {} of memory, and a request {} on average, as modelled.",
        human_bytes(row.capacity_bytes),
        row.blocks,
        row.name,
        hits.collect::<Vec<_>>().join(" and "),
        human_bytes(core),
        human_bytes(client),
        human_bytes(counts.memory_max_bytes),
        latency_words(latency_us(counts)),
    );
    if let Some((now, twice)) = doubled(row.capacity_bytes, content) {
        let (twice, now) = (percent(twice), percent(now));
        text += &match twice == now {
            true => format!(
                " Were it twice as large, an LRU cache of 4 KiB blocks would miss as much, {now}."
            ),
            false => format!(
                " Were it twice as large, an LRU cache of 4 KiB blocks would miss {twice} in place \
                 of {now}."
            ),
        };
    }
    text
}

/// Returns the miss ratios of the curve at a size and at twice that; `None` without such points.
fn doubled(capacity_bytes: u64, content: &Content<'_>) -> Option<(f64, f64)> {
    let blocks = capacity_bytes / u64::from(CURVE_BLOCK_BYTES);
    let at = |blocks: u64| {
        let mut points = content.curve.points.iter();
        points
            .find(|point| point.blocks == blocks)
            .map(|point| point.miss_ratio)
    };
    Some((at(blocks)?, at(2 * blocks)?))
}

fn beside(rows: &[Row]) -> String {
    let best = |value: &dyn Fn(&Row) -> f64| {
        let least = rows
            .iter()
            .min_by(|one, other| value(one).total_cmp(&value(other)));
        least.map_or_else(String::new, |row| label(row, rows))
    };
    format!(
        "Of the {} caches here, least backend I/O: {}; lowest modelled latency: {}; least memory: \
         {}.",
        rows.len(),
        best(&|row| row.cache.counts().io.core_bytes() as f64),
        best(&|row| latency_us(row.cache.counts())),
        best(&|row| row.cache.counts().memory_max_bytes as f64),
    )
}
