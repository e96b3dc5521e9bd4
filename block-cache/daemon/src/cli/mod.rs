//! The command line. Each command has its own file, and is documented there: the help text of a
//! command is the comment of its arguments.

mod bench;
mod check;
mod clone_id;
mod forget;
mod format;
mod remote;
mod secret;
mod serve;
mod status;
mod trace;
mod ublk;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use forebay_block::{Error, ErrorKind, Result};
use forebay_device::rbd::wait_until_closed;

use crate::config::duration::patience;
use crate::config::server::default_control;
use crate::control::client::{Control, Patience};
use crate::control::protocol::{Reply, line};
use crate::state::report_with_help;
use forebay_planner_cli::{mrc, simulate};
use forebay_terminal::out;
use forebay_terminal::size::Interval;

/// A userspace block cache: fast storage in front of slow block storage.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true)]
pub struct Arguments {
    /// Control socket of the daemon; for `serve`, instead of the configuration's [default:
    /// /run/forebay/control.sock, or under $XDG_RUNTIME_DIR for users other than root]
    #[arg(long, global = true, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Longest silence of the daemon, and longest time without progress [default: 10s and 2m]
    #[arg(long, global = true, value_name = "TIME", value_parser = patience)]
    timeout: Option<Interval>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Format(format::Arguments),
    Serve(serve::Arguments),
    Status(status::Arguments),
    Flush(remote::Flush),
    Mode(remote::SetMode),
    Cleaning(remote::SetCleaning),
    Detach(remote::Detach),
    Forget(forget::Arguments),
    Grow(remote::Grow),
    Snapshot(remote::Snapshot),
    Scrub(remote::Scrub),
    Check(check::Arguments),
    CloneId(clone_id::Arguments),
    Bench(bench::Arguments),
    Pagecache(forebay_pagecache_cli::Arguments),
    Trace(trace::Arguments),
    Simulate(simulate::Arguments),
    Mrc(mrc::Arguments),
    Replay(trace::replay::Arguments),
    Secret(secret::Arguments),
    RemoveUblk(ublk::Remove),
}

/// Exit status of a command.
type Status = u8;
const SUCCESS: Status = 0;
const FAILURE: Status = 1;

/// Time for the cluster to take the locks of RBD images back at the end.
const CLOSE: Duration = Duration::from_secs(5);

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    // With --json, all output is JSON, even for a wrong command line.
    let json = std::env::args_os().any(|argument| argument == "--json");
    let arguments = match parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            if json && error.use_stderr() {
                let message = error.render().to_string();
                let error = Error::new(ErrorKind::InvalidInput, message.trim());
                let _ = out::print(&error_as_json(&error));
            }
            error.exit()
        }
    };
    let status = match run(arguments) {
        Ok(status) => status,
        Err(error) => {
            if json {
                let _ = out::print(&error_as_json(&error));
            }
            out::error(&format!("forebay: {}", report_with_help(&error)));
            FAILURE
        }
    };
    if !wait_until_closed(CLOSE) {
        out::note("warning: an RBD image was not closed in time: its lock may stay for 30 s");
        // SAFETY: the call ends the process, without destructors, which threads of librados would
        // meet. Nothing of this program waits for them.
        unsafe { libc::_exit(status.into()) };
    }
    status.into()
}

/// Returns an error in the daemon's format for programs:
/// `{"error":{"kind":"...","message":"..."}}`.
fn error_as_json(error: &Error) -> String {
    String::from_utf8_lossy(&line(&Reply::error(error))).into_owned()
}

/// Joins each negative number to the option before it: the parser would take it for an option, and
/// not say the range of the value.
fn with_negative_values(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let is_option = |word: &OsString| {
        let name = word.to_str().and_then(|word| word.strip_prefix("--"));
        name.is_some_and(|name| !name.is_empty() && !name.contains('='))
    };
    let is_negative = |word: &OsString| {
        let number = word.to_str().and_then(|word| word.strip_prefix('-'));
        number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()))
    };
    let mut joined: Vec<OsString> = Vec::new();
    let mut has_options = true;
    for word in words {
        has_options &= word != "--";
        match joined.last_mut() {
            Some(option) if has_options && is_option(option) && is_negative(&word) => {
                option.push("=");
                option.push(word);
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// Parses a command line. The error for `format` with a device, but without `--cache`, has a tip.
fn parse<T: Into<OsString>>(words: impl IntoIterator<Item = T>) -> Result<Arguments, clap::Error> {
    let words = with_negative_values(words.into_iter().map(Into::into));
    Arguments::try_parse_from(words).map_err(|mut error| {
        if let Some(device) = device_without_option(&error) {
            let tip = format!("name the device or file with `--cache {device}`");
            let tip = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
            error.insert(ContextKind::Suggested, tip);
        }
        error
    })
}

/// Returns the word of `format` that may be a device: an argument that is not an option.
fn device_without_option(error: &clap::Error) -> Option<String> {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let word = text(ContextKind::InvalidArg);
    let is_device = error.kind() == clap::error::ErrorKind::UnknownArgument
        && !word.starts_with('-')
        && text(ContextKind::Usage).contains("forebay format ");
    is_device.then_some(word)
}

/// Runs the command that was parsed.
fn run(arguments: Arguments) -> Result<Status> {
    let socket = arguments.control;
    let patience = Patience::new(arguments.timeout.map(|limit| limit.0));
    let control = || Control {
        path: socket.clone().unwrap_or_else(default_control),
        patience,
    };
    let result = match arguments.command {
        Command::Format(arguments) => format::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments, socket.as_deref()),
        Command::Status(arguments) => status::run(&arguments, &control()),
        Command::Flush(arguments) => arguments.run(&control()),
        Command::Mode(arguments) => arguments.run(&control()),
        Command::Cleaning(arguments) => arguments.run(&control()),
        Command::Detach(arguments) => arguments.run(&control()),
        Command::Forget(arguments) => forget::run(&arguments, socket.as_deref(), patience),
        Command::Grow(arguments) => arguments.run(&control()),
        Command::Snapshot(arguments) => arguments.run(&control()),
        Command::Scrub(arguments) => arguments.run(&control()),
        Command::Check(arguments) => return check::run(&arguments, socket.as_deref(), patience),
        Command::CloneId(arguments) => clone_id::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Pagecache(arguments) => forebay_pagecache_cli::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments, control),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Mrc(arguments) => mrc::run(&arguments),
        Command::Replay(arguments) => return trace::replay::run(&arguments),
        Command::Secret(arguments) => secret::run(&arguments),
        Command::RemoveUblk(arguments) => arguments.run(),
    };
    result.map(|()| SUCCESS)
}

#[cfg(test)]
mod tests;
