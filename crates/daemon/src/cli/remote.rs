//! What the commands that ask the daemon have in common.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use forebay_block::Result;

use crate::control::client::Client;
use crate::control::protocol::{Reply, Request};

/// Sends `request` and prints how far it is and how it ended: a sentence, or, with `json`, the
/// reply as JSON.
pub(super) fn run(control: &Path, request: &Request, json: bool) -> Result<()> {
    let mut client = Client::connect(control)?;
    let terminal = std::io::stderr().is_terminal();
    let mut shown = false;
    let reply = client.call(request, |text| {
        if terminal {
            eprint!("\r\x1b[2K{text}");
            let _ = std::io::stderr().flush();
            shown = true;
        } else {
            eprintln!("{text}");
        }
    });
    if shown {
        eprint!("\r\x1b[2K");
    }
    let reply = reply?;
    match &reply {
        Reply::Done(text) if !json => println!("{text}"),
        _ => print!(
            "{}",
            String::from_utf8_lossy(&crate::control::protocol::line(&reply))
        ),
    }
    Ok(())
}
