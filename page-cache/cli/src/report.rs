//! Status of a pool, as JSON, as text or as metrics, and its flush.

use std::path::Path;
use std::time::Duration;

use forebay_block::Result;
use forebay_cluster::command;
use forebay_cluster::pool::Pool;
use forebay_cluster::status::{NodeStatus, Pages, Status, WrittenStatus};
use forebay_terminal::record::Record as _;
use forebay_terminal::size::human_bytes;
use forebay_terminal::table::Table;
use forebay_terminal::{metrics, out};

/// Prints the status of the pool at `path`.
///
/// # Errors
/// If no directory answers there.
pub(crate) fn run(path: &Path, json: bool) -> Result<()> {
    let status = command::status(&Pool::new(path)?)?;
    if json {
        return out::print(&String::from_utf8_lossy(&status.to_json()));
    }
    out::print(&render(&status))
}

/// Prints the status of the pool at `path` in Prometheus' text format.
///
/// # Errors
/// If no directory answers there.
pub(crate) fn run_metrics(path: &Path) -> Result<()> {
    out::print(&metrics::render(&command::status(&Pool::new(path)?)?))
}

/// Flushes all nodes of the pool at `path`, and prints the number of bytes.
///
/// # Errors
/// As for [`command::flush`].
pub(crate) fn run_flush(path: &Path, patience: Duration) -> Result<()> {
    let bytes = command::flush(&Pool::new(path)?, patience)?;
    out::print(&format!("flushed {bytes} bytes\n"))
}

fn render(status: &Status) -> String {
    let Status {
        source,
        pid,
        epoch,
        awaited,
        pages,
        ..
    } = status;
    let copies = pages.exclusive + pages.owner + pages.shared + pages.to_be_invalidated;
    let mut text = format!(
        "Directory of {source}, process {pid}, start {epoch}\n  {copies} pages in {} of memory, a \
         copy of each: {}\n",
        human_bytes(status.capacity_bytes),
        in_words(pages)
    );
    if !awaited.is_empty() {
        let nodes: Vec<String> = awaited.iter().map(ToString::to_string).collect();
        text.push_str(&format!(
            "  waits for nodes that were there before: {}\n",
            nodes.join(", ")
        ));
    }
    if pages.replicas > 0 {
        text.push_str(&format!("  {} replicas in idle memory\n", pages.replicas));
    }
    text.push_str(&format!(
        "  lookups: {} found, {} filled; {} pages evicted, {} write-backs; {} messages in, {} \
         out\n",
        status.found,
        status.filled,
        status.evicted,
        status.write_backs,
        status.messages_in,
        status.messages_out
    ));
    if status.lost_pages + status.fenced > 0 {
        text.push_str(&format!(
            "  {} pages lost with dead nodes, {} nodes ended because they did not answer\n",
            status.lost_pages, status.fenced
        ));
    }
    if status.rescued_pages > 0 {
        text.push_str(&format!(
            "  {} dirty pages outlived their nodes and were written back\n",
            status.rescued_pages
        ));
    }
    text.push_str(&format!("\nNodes\n{}", nodes(status).render(2)));
    text.push_str(&format!(
        "\nWrites of their programs that may not be in the source\n{}",
        written(status).render(2)
    ));
    text
}

fn nodes(status: &Status) -> Table {
    let mut titles = NodeStatus::TABLE.titles();
    titles.extend([">memory", ">pages", ">shared", ">replicas"]);
    let mut table = Table::new(&titles);
    for node in &status.nodes {
        let Pages {
            exclusive,
            owner,
            shared,
            to_be_invalidated,
            replicas,
        } = node.pages;
        let mut row = NodeStatus::TABLE.cells(node);
        row.extend([
            human_bytes(u64::from(node.frames) * status.page_bytes),
            (exclusive + owner + shared + to_be_invalidated).to_string(),
            shared.to_string(),
            replicas.to_string(),
        ]);
        table.row(row);
    }
    table
}

fn written(status: &Status) -> Table {
    let mut titles = WrittenStatus::TABLE.titles();
    titles.insert(0, "node");
    let mut table = Table::new(&titles);
    for node in &status.nodes {
        let mut row = WrittenStatus::TABLE.cells(&node.written);
        row.insert(0, node.id.to_string());
        table.row(row);
    }
    table
}

fn in_words(pages: &Pages) -> String {
    format!(
        "{} being filled, {} with their owner alone, {} shared, {} going",
        pages.exclusive, pages.owner, pages.shared, pages.to_be_invalidated
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Status {
        let written = WrittenStatus {
            dirty_bytes: 8192,
            oldest_s: 7,
            failures: 3,
            lost_pages: 2,
        };
        let node = NodeStatus {
            id: 4,
            state: "alive".to_owned(),
            written,
            ..NodeStatus::default()
        };
        Status {
            source: "/srv".to_owned(),
            page_bytes: 4096,
            nodes: vec![node],
            ..Status::default()
        }
    }

    #[test]
    fn dirty_data_is_in_text_json_and_metrics() {
        let status = example();
        let text = render(&status);
        let row = text.lines().last().expect("a table");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["4", "8", "KiB", "7", "s", "3", "2"], "{text}");
        let json = String::from_utf8(status.to_json()).expect("text");
        let written = r#""written":{"dirty_bytes":8192,"oldest_s":7,"failures":3,"lost_pages":2}"#;
        assert!(json.contains(written), "{json}");
        let metrics = metrics::render(&status);
        for sample in [
            "forebay_pagecache_dirty_bytes{source=\"/srv\",node=\"4\"} 8192",
            "forebay_pagecache_oldest_dirty_seconds{source=\"/srv\",node=\"4\"} 7",
            "forebay_pagecache_write_back_failures_total{source=\"/srv\",node=\"4\"} 3",
            "forebay_pagecache_lost_written_pages_total{source=\"/srv\",node=\"4\"} 2",
            "forebay_pagecache_node_info{source=\"/srv\",node=\"4\",state=\"alive\"} 1",
        ] {
            assert!(metrics.lines().any(|line| line == sample), "{metrics}");
        }
        let families = metrics.lines().filter(|line| line.starts_with("# TYPE "));
        let mut families: Vec<&str> = families.collect();
        let count = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), count, "each family begins once: {metrics}");
    }
}
