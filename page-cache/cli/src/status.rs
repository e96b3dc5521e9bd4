//! Status of a pool, as JSON or as text.

use std::path::Path;

use forebay_block::Result;
use forebay_cluster::pool::Pool;
use forebay_cluster::status::{Pages, Status, ask};
use forebay_terminal::out;
use forebay_terminal::size::human_bytes;
use forebay_terminal::table::Table;

/// Prints the status of the pool at `path`.
///
/// # Errors
/// If no directory answers there.
pub(crate) fn run(path: &Path, json: bool) -> Result<()> {
    let status = ask(&Pool::new(path)?)?;
    if json {
        return out::print(&String::from_utf8_lossy(&status.to_json()));
    }
    out::print(&render(&status))
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
    let mut table = Table::new(&[
        "node",
        "process",
        "state",
        ">memory",
        ">pages",
        ">shared",
        ">hits here",
        ">hits elsewhere",
        ">misses",
        ">read ahead",
    ]);
    for node in &status.nodes {
        let Pages {
            exclusive,
            owner,
            shared,
            to_be_invalidated,
        } = node.pages;
        table.row(vec![
            node.id.to_string(),
            node.pid.to_string(),
            node.state.clone(),
            human_bytes(u64::from(node.frames) * status.page_bytes),
            (exclusive + owner + shared + to_be_invalidated).to_string(),
            shared.to_string(),
            node.hits_local.to_string(),
            node.hits_remote.to_string(),
            node.misses.to_string(),
            node.read_ahead.to_string(),
        ]);
    }
    text.push_str(&format!("\nNodes\n{}", table.render(2)));
    text
}

fn in_words(pages: &Pages) -> String {
    format!(
        "{} being filled, {} with their owner alone, {} shared, {} going",
        pages.exclusive, pages.owner, pages.shared, pages.to_be_invalidated
    )
}
