//! The status page: one self-contained HTML document that reloads itself. It is read-only.

use std::fmt::Write as _;

use crate::status::{Status, percent};
use crate::view;
use forebay_terminal::table::escape;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:66rem;padding:0 1rem;\
color:#1b2733;background:#fbfcfd}\
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .4rem}p{margin:.3rem 0}\
table{border-collapse:collapse;width:100%}th,td{padding:.3rem .7rem .3rem 0;text-align:left;\
border-bottom:1px solid #dde3e9;white-space:nowrap}th{font-weight:600;color:#54636f}\
.n{text-align:right;font-variant-numeric:tabular-nums}.bar{height:.7rem;background:#e3e9ee;\
border-radius:.35rem;overflow:hidden;display:flex}.bar i{background:#3b82b5}.bar \
b{background:#d58a2a}\
@media(prefers-color-scheme:dark){body{background:#12181d;color:#dce4ea}th,td{border-color:#2a343c}\
th{color:#93a3af}.bar{background:#2a343c}}";

/// Returns the page for `status`.
#[must_use]
pub fn render(status: &Status) -> String {
    let mut html = String::with_capacity(8 << 10);
    let _ = write!(
        html,
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>\
         <meta name=viewport content=\"width=device-width\"><title>Forebay</title>\
         <style>{STYLE}</style><h1>Forebay</h1><p>{}",
        escape(&view::process(status)),
    );
    html.push_str("<h2>Cache</h2>");
    paragraphs(&mut html, view::cache(status.cache.as_ref()));
    if let Some(cache) = &status.cache {
        let share = |bytes| percent(bytes, cache.capacity_bytes).unwrap_or(0.0);
        let clean = cache.used_bytes.saturating_sub(cache.dirty_bytes);
        let _ = write!(
            html,
            "<div class=bar><b style=width:{:.1}%></b><i style=width:{:.1}%></i></div>",
            share(cache.dirty_bytes),
            share(clean),
        );
    }
    for (title, table) in [
        ("Volumes", view::volumes(status, None)),
        ("Devices", view::devices(status)),
    ] {
        let _ = write!(html, "<h2>{title}</h2>{}", table.html());
    }
    paragraphs(&mut html, view::limits(status));
    paragraphs(&mut html, view::transits(status));
    paragraphs(&mut html, view::object_volumes(status));
    paragraphs(&mut html, view::trouble(status));
    html.push_str("<h2>Listening</h2>");
    paragraphs(&mut html, view::reach(status));
    html.push_str("<p><a href=/metrics>metrics</a> · <a href=/status.json>JSON</a></html>\n");
    html
}

fn paragraphs(html: &mut String, lines: Vec<String>) {
    for line in lines {
        let _ = write!(html, "<p>{}", escape(&line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::example;

    #[test]
    fn the_page_shows_the_numbers_and_escapes_names() {
        let html = render(&example());
        for text in [
            "running for 61 s",
            "1 MiB of 1 GiB used",
            "90.0%",
            "file &lt;a&amp;b&gt;",
        ] {
            assert!(html.contains(text), "{text} in {html}");
        }
        assert!(
            !html.contains("http://") && !html.contains("https://"),
            "self-contained"
        );
        let mut uncached = example();
        uncached.cache = None;
        uncached.shutting_down = true;
        let html = render(&uncached);
        assert!(
            html.contains("none: volumes are served straight") && html.contains("shutting down")
        );
    }
}
