//! Handles signals that end a command (SIGINT, SIGTERM, SIGHUP): removes unfinished files and
//! reports that.

use std::path::PathBuf;
use std::process::exit;
use std::sync::mpsc;

use forebay_trace::write::abandon;
use tokio::signal::unix::{SignalKind, signal};

use forebay_terminal::out;

/// From now on, a signal removes unfinished files, reports that, and ends the process as without
/// this handler. If signals cannot be watched, they end the process directly; the next run then
/// removes its files.
pub(super) fn watch() {
    let (ready, is_ready) = mpsc::channel();
    let watching = std::thread::Builder::new().name("signals".into());
    let watching = watching.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let kinds = [
                SignalKind::interrupt(),
                SignalKind::terminate(),
                SignalKind::hangup(),
            ];
            let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
                return;
            };
            // From here on no unfinished file can remain.
            let _ = ready.send(());
            let number = tokio::select! {
                _ = interrupt.recv() => libc::SIGINT,
                _ = terminate.recv() => libc::SIGTERM,
                _ = hangup.recv() => libc::SIGHUP,
            };
            abandon(|unfinished| {
                out::note(&said(unfinished));
                exit(128 + number)
            });
        });
    });
    if watching.is_ok() {
        let _ = is_ready.recv();
    }
}

fn said(unfinished: &[PathBuf]) -> String {
    let names = unfinished.iter().map(|path| path.display().to_string());
    match names.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "forebay: interrupted".to_owned(),
        names => format!("forebay: interrupted: {names} was not written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_interrupt_names_unwritten_files() {
        assert_eq!(said(&[]), "forebay: interrupted");
        let said = said(&["a.html".into()]);
        assert_eq!(said, "forebay: interrupted: a.html was not written");
    }
}
