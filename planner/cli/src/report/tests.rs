use forebay_policy::BlockSizes;
use forebay_trace::generate::{Generator, Preset};
use forebay_trace::mrc::{Sampling, Shards, sizes};
use forebay_trace::sim::{CacheModel, Costs, Fill, Replace, Simulated, WriteBack};
use forebay_trace::stats::{Stats, StatsOptions};
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;

use super::*;
use crate::row::as_json;

/// Three caches on a generated trace, and the page about them.
fn page(title: &str) -> (Vec<Row>, String) {
    let mut generator = Generator::new(Preset::Msr.loads(2_000), 1).expect("a sound preset");
    let row = |name, kib: &[u64], capacity_bytes, asked_for| {
        let sizes: Vec<u64> = kib.iter().map(|kib| kib << 10).collect();
        let blocks = BlockSizes::new(&sizes).expect("powers of two");
        let cache = Simulated::new(CacheModel {
            sizes: blocks,
            capacity_bytes,
            replace: Replace::Ours,
            fill: Fill::Learned,
            write_back: WriteBack::Runs,
            costs: Costs::CLOUD,
        });
        Row {
            name,
            blocks,
            capacity_bytes,
            asked_for,
            cache,
        }
    };
    let mut rows = vec![
        row("a<b & \"c\"", &[32], 8 << 20, false),
        row("Forebay", &[32, 64, 128, 256], 8 << 20, true),
        row("Forebay", &[32, 64, 128, 256], 16 << 20, true),
    ];
    let mut stats = Stats::new(StatsOptions::default());
    let mut curve = Shards::new(Sampling::Blocks(4096), 1);
    let mut batch = Vec::new();
    while generator.fill(&mut batch) {
        stats.add(&batch);
        for request in &batch {
            curve.request(request, CURVE_BLOCK_BYTES);
            rows.iter_mut().for_each(|row| row.cache.request(request));
        }
    }
    let mut points = sizes(10, curve.unique_blocks(), 12);
    points.extend([2048, 4096]);
    points.sort_unstable();
    let html = render(&Content {
        title,
        summary: &stats.summary(generator.volumes()),
        rows: &rows,
        curve: &curve.curve(&points),
        remarks: &["2 records made no sense".to_owned()],
    });
    (rows, html)
}

fn parse(html: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(html, options).expect("the page is well-formed")
}

fn drawing<'a>(document: &'a Document<'a>, id: &str) -> Node<'a, 'a> {
    let mut found = document.descendants();
    found
        .find(|node| node.attribute("id") == Some(id))
        .unwrap_or_else(|| panic!("there is a drawing {id}"))
}

/// The values that a drawing stands for, in order.
fn values(document: &Document<'_>, id: &str) -> Vec<f64> {
    let marks = drawing(document, id);
    let values = marks
        .descendants()
        .filter_map(|node| node.attribute("data-value"));
    values
        .map(|value| value.parse().expect("a number"))
        .collect()
}

#[test]
fn numbers_of_the_page_are_those_of_the_json() {
    let (rows, html) = page("trace");
    let document = parse(&html);
    let json: Vec<Value> = rows.iter().map(as_json).collect();
    let all = |paths: &[&str]| -> Vec<f64> {
        let values = json.iter().flat_map(|row| {
            paths
                .iter()
                .map(move |path| row.pointer(path).and_then(Value::as_f64))
        });
        values
            .map(|value| value.expect("it is in the JSON"))
            .collect()
    };
    let volumes = [
        "/read_from_core/bytes",
        "/write_to_core/bytes",
        "/read_from_cache/bytes",
        "/write_to_cache/bytes",
    ];
    assert_eq!(values(&document, "volumes"), all(&volumes));
    assert_eq!(values(&document, "memory"), all(&["/memory_max_bytes"]));
    assert_eq!(values(&document, "latency"), all(&["/latency_modelled_us"]));
    let hits = all(&["/reads/hits", "/writes/hits"]);
    let counts = all(&["/reads/count", "/writes/count"]);
    let ratios: Vec<f64> = hits
        .iter()
        .zip(&counts)
        .map(|(hits, all)| hits / all)
        .collect();
    assert_eq!(values(&document, "hits"), ratios);
    let blocks = all(&["/allocated_blocks"]);
    let means = all(&["/allocated_bytes"]);
    let missed = all(&["/missed_request_mean_bytes"]);
    let sizes = blocks.iter().zip(&means).zip(&missed);
    let sizes: Vec<f64> = sizes
        .flat_map(|((blocks, bytes), missed)| [*missed, bytes / blocks])
        .collect();
    assert_eq!(values(&document, "blocks"), sizes);
    assert!(values(&document, "hits").iter().any(|ratio| *ratio > 0.1));
}

#[test]
fn caches_of_one_size_stand_together_under_it() {
    let (_, html) = page("trace");
    let document = parse(&html);
    for id in ["hits", "volumes", "latency", "memory", "blocks"] {
        let drawing = drawing(&document, id);
        let texts = drawing
            .descendants()
            .filter(|node| node.has_tag_name("text"));
        let of = |class: &'static str, place: &'static str| -> Vec<(String, f64)> {
            let found = texts.clone().filter(move |node| match class {
                "" => node.attribute("text-anchor") == Some("end"),
                class => node.attribute("class") == Some(class),
            });
            let one = |node: Node<'_, '_>| {
                let at = node.attribute(place).expect("a place");
                let text = node.text().unwrap_or_default().to_owned();
                (text, at.parse().expect("a number"))
            };
            found.map(one).collect()
        };
        let (heads, labels) = (of("group", "y"), of("", "y"));
        let names: Vec<_> = heads.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["8 MiB cache", "16 MiB cache"], "{id}");
        assert_eq!(labels.len(), 3, "{id}");
        // Two rows below the first, one below the second.
        let places = [
            heads[0].1,
            labels[0].1,
            labels[1].1,
            heads[1].1,
            labels[2].1,
        ];
        assert!(
            places.is_sorted_by(|one, other| one + 10.0 < *other),
            "{id}: {places:?}"
        );
    }
}

#[test]
fn lines_rise_and_fall_as_they_must() {
    let (_, html) = page("trace");
    let document = parse(&html);
    let sizes = values(&document, "sizes");
    assert!(sizes.is_sorted() && sizes.len() > 4, "{sizes:?}");
    assert!((sizes[sizes.len() - 1] - 1.0).abs() < 1e-12);
    let curve = values(&document, "curve");
    assert!(
        curve.iter().rev().is_sorted() && curve.len() > 4,
        "{curve:?}"
    );
}

#[test]
fn nothing_is_drawn_outside_of_its_frame() {
    let (_, html) = page("trace");
    let document = parse(&html);
    let mut drawings = 0;
    for svg in document
        .descendants()
        .filter(|node| node.has_tag_name("svg"))
    {
        drawings += 1;
        let frame: Vec<f64> = svg
            .attribute("viewBox")
            .expect("a frame")
            .split(' ')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let number = |node: Node<'_, '_>, name: &str| -> f64 {
            node.attribute(name)
                .map_or(0.0, |text| text.parse().expect("a number"))
        };
        for node in svg.descendants().filter(Node::is_element) {
            let right = number(node, "x") + number(node, "width");
            let bottom = number(node, "y") + number(node, "height");
            assert!(right <= frame[2] && bottom <= frame[3], "{node:?}");
        }
        let named = svg.children().find(|node| node.has_tag_name("title"));
        assert!(
            named.and_then(|title| title.text()).is_some(),
            "it has a title"
        );
    }
    assert_eq!(drawings, 7);
}

#[test]
fn the_page_needs_nothing_else_and_escapes_names() {
    let (_, html) = page("<script>&\"x\".csv");
    let document = parse(&html);
    let text: String = document
        .descendants()
        .filter_map(|node| node.text())
        .collect();
    assert!(text.contains("<script>&\"x\".csv") && text.contains("a<b & \"c\""));
    for node in document.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        assert!(
            !["script", "link", "img", "iframe"].contains(&name),
            "{name}"
        );
        assert!(node.attribute("src").is_none() && node.attribute("href").is_none());
    }
    assert!(!html.contains("url(") && !html.contains("@import"));
    assert!(text.contains("2 records made no sense"));
    assert!(text.contains("In a 16 MiB cache with blocks of 32K..256K (Forebay), "));
    assert!(text.contains("Were it twice as large"));
}
