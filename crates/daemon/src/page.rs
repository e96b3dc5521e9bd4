//! The status page: one self-contained HTML document that reloads itself. It shows and does nothing
//! else.

use std::fmt::Write as _;
use std::time::Duration;

use crate::config::size::{human_bytes, human_duration};
use crate::control::status::{Latency, Status, percent};

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:66rem;padding:0 1rem;\
color:#1b2733;background:#fbfcfd}\
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .4rem}p{margin:.3rem 0}\
table{border-collapse:collapse;width:100%}th,td{padding:.3rem .7rem .3rem 0;text-align:left;\
border-bottom:1px solid #dde3e9;white-space:nowrap}th{font-weight:600;color:#54636f}\
.n{text-align:right;font-variant-numeric:tabular-nums}.bar{height:.7rem;background:#e3e9ee;\
border-radius:.35rem;overflow:hidden;display:flex}.bar i{background:#3b82b5}.bar b{background:#d58a2a}\
@media(prefers-color-scheme:dark){body{background:#12181d;color:#dce4ea}th,td{border-color:#2a343c}\
th{color:#93a3af}.bar{background:#2a343c}}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A table; columns whose title begins with `>` are numbers.
fn table(html: &mut String, titles: &[&str], rows: &[Vec<String>]) {
    html.push_str("<table><tr>");
    for title in titles {
        match title.strip_prefix('>') {
            Some(title) => _ = write!(html, "<th class=n>{title}</th>"),
            None => _ = write!(html, "<th>{title}</th>"),
        }
    }
    html.push_str("</tr>");
    for row in rows {
        html.push_str("<tr>");
        for (cell, title) in row.iter().zip(titles) {
            let class = if title.starts_with('>') {
                " class=n"
            } else {
                ""
            };
            let _ = write!(html, "<td{class}>{}</td>", escape(cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</table>");
}

fn latency(latency: &Latency) -> String {
    if latency.count == 0 {
        return "–".into();
    }
    let time = |us: f64| human_duration(Duration::from_secs_f64(us / 1e6));
    format!("{} / {}", time(latency.p50_us), time(latency.p99_us))
}

/// The page for `status`.
#[must_use]
pub fn render(status: &Status) -> String {
    let mut html = String::with_capacity(8 << 10);
    let state = match status.shutting_down {
        true => "shutting down",
        false => "running",
    };
    let _ = write!(
        html,
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>\
         <meta name=viewport content=\"width=device-width\"><title>Forebay: {state}</title>\
         <style>{STYLE}</style><h1>Forebay</h1><p>Version {}, process {}, {state} for {}, I/O by {}.",
        escape(&status.version),
        status.pid,
        human_duration(Duration::from_secs(status.uptime_s)),
        escape(&status.io_engine),
    );
    cache(&mut html, status);
    html.push_str("<h2>Volumes</h2>");
    let volumes: Vec<_> = status
        .volumes
        .iter()
        .map(|volume| {
            let (read, write) = (volume.operation("read"), volume.operation("write"));
            let hits = volume.read_hit_percent();
            vec![
                volume.name.clone(),
                volume.mode_text(),
                human_bytes(volume.size_bytes),
                human_bytes(volume.cached_bytes),
                human_bytes(volume.dirty_bytes),
                hits.map_or_else(|| "–".into(), |percent| format!("{percent:.1}%")),
                format!("{} / {}", human_bytes(read.bytes), human_bytes(write.bytes)),
                latency(&read.latency),
                latency(&write.latency),
                (read.errors + write.errors + volume.operation("flush").errors).to_string(),
            ]
        })
        .collect();
    let titles = [
        "volume",
        "mode",
        ">size",
        ">cached",
        ">dirty",
        ">read hits",
        ">read / written",
        ">read p50 / p99",
        ">write p50 / p99",
        ">errors",
    ];
    table(&mut html, &titles, &volumes);
    html.push_str("<h2>Devices</h2>");
    let devices: Vec<_> = status
        .devices
        .iter()
        .map(|device| {
            vec![
                device.name.clone(),
                device.role.clone(),
                device.what.clone(),
                human_bytes(device.size_bytes),
                human_bytes(device.read_bytes),
                human_bytes(device.write_bytes),
                device.flushes.to_string(),
            ]
        })
        .collect();
    let titles = [
        "device", "role", "what", ">size", ">read", ">written", ">flushes",
    ];
    table(&mut html, &titles, &devices);
    html.push_str("<h2>Listening</h2>");
    for place in &status.listening {
        let _ = write!(html, "<p>{}", escape(place));
    }
    html.push_str("<p><a href=/metrics>metrics</a> · <a href=/status.json>JSON</a></html>\n");
    html
}

fn cache(html: &mut String, status: &Status) {
    let Some(cache) = &status.cache else {
        html.push_str("<p>No cache: volumes are served straight from their backing devices.");
        return;
    };
    let share = |bytes| percent(bytes, cache.capacity_bytes).unwrap_or(0.0);
    let failure = cache.failure.as_ref().map_or_else(String::new, |failure| {
        format!(
            "<p><strong>The cache takes no more writes: {}</strong>",
            escape(failure)
        )
    });
    let clean = cache.used_bytes.saturating_sub(cache.dirty_bytes);
    let _ = write!(
        html,
        "<h2>Cache</h2>{failure}<p>{} of {} used, {} dirty (limit {}%), blocks of {}, durability {}. \
         {} evictions, {} written back, {} errors.<p>Start: {} ({} ms).\
         <div class=bar><b style=width:{:.1}%></b><i style=width:{:.1}%></i></div>",
        human_bytes(cache.used_bytes),
        human_bytes(cache.capacity_bytes),
        human_bytes(cache.dirty_bytes),
        cache.dirty_limit_percent,
        human_bytes(cache.block_size_bytes),
        escape(&cache.durability),
        cache.evictions,
        human_bytes(cache.cleaned_bytes),
        cache.errors(),
        escape(&cache.recovery),
        cache.recovery_ms,
        share(cache.dirty_bytes),
        share(clean),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::status::example;

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
        assert!(html.contains("No cache") && html.contains("shutting down"));
    }
}
