//! The commands: synopsis, arguments and options of each.
//!
//! Names, values and defaults are clap's. The meaning of an argument is written by hand in the last
//! column and stays there. A new argument gets its help as a draft. A default stays too, where clap
//! has none.

use std::collections::BTreeMap;

use clap::{Arg, Command, CommandFactory as _};

use super::{Page, table};
use crate::cli::Arguments;

/// Part with the options that every command has.
const COMMON: &str = "options of all commands";
/// Part with the options of the commands that read a trace.
const READING: &str = "options that read a trace";
/// These options. The format is not an option of all of them.
const READING_OPTIONS: [&str; 6] = [
    "format",
    "skip-bad",
    "sort-window",
    "time-unit",
    "volume",
    "limit",
];
/// First words of the commands on the page of trace commands.
const TRACES: [&str; 4] = ["trace", "simulate", "mrc", "replay"];

#[test]
fn the_page_of_commands_matches_the_command_line() {
    check("commands.md", COMMON, |words| !is_of_traces(words));
}

#[test]
fn the_page_of_trace_commands_matches_the_command_line() {
    check("commands-traces.md", READING, is_of_traces);
}

#[test]
fn options_that_read_a_trace_are_the_same_everywhere() {
    let root = root();
    let leaves = leaves(&root);
    let names_and_defaults = |command| {
        let reading = arguments(command).filter(|argument| is_reading(argument));
        let rows = reading.map(|argument| row(argument, &BTreeMap::new()));
        rows.map(|row| row[..2].to_vec()).collect::<Vec<_>>()
    };
    let documented = names_and_defaults(reader(&leaves));
    assert_eq!(documented.len(), READING_OPTIONS.len());
    let readers = leaves.iter().filter(|(_, leaf)| reads_trace(leaf));
    for (name, command) in readers {
        for option in names_and_defaults(command) {
            assert!(documented.contains(&option), "{name}: {option:?}");
        }
    }
}

#[test]
fn a_new_option_and_a_new_default_are_seen() {
    let command = Command::new("x")
        .arg(
            Arg::new("size")
                .long("size")
                .value_name("SIZE")
                .default_value("4K")
                .help("Size"),
        )
        .arg(
            Arg::new("name")
                .required(true)
                .help("The name. It has to be new"),
        );
    let present =
        "| option | default | meaning |\n|---|---|---|\n| `--size BYTES` | `2K` | by hand |\n";
    assert_eq!(
        options(&command, present, |_| true),
        "| argument | default | meaning |\n|---|---|---|\n\
         | `NAME` | required | the name. It has to be new |\n\
         | `--size SIZE` | `4K` | by hand |\n"
    );
}

fn check(file: &'static str, shared: &str, is_here: impl Fn(&str) -> bool) {
    let root = root();
    let leaves = leaves(&root);
    let here = leaves.iter().filter(|(words, _)| is_here(words));
    let mut parts: Vec<_> = here.map(|(words, _)| words.clone()).collect();
    parts.push(shared.to_owned());
    let render = |part: &str, present: &str| match part {
        COMMON => options(&root, present, |_| true),
        READING => options(reader(&leaves), present, is_reading),
        _ => {
            let leaf = leaves.iter().find(|(words, _)| words == part);
            one(leaf.expect("the part is a command").1, present)
        }
    };
    let page = Page {
        file,
        parts,
        render: &render,
    };
    page.check();
}

/// Returns the command line, complete.
fn root() -> Command {
    let mut root = Arguments::command();
    root.build();
    root
}

/// Returns the commands without commands of their own, by their words after the program's name.
fn leaves(root: &Command) -> Vec<(String, &Command)> {
    fn walk<'a>(words: &str, command: &'a Command, found: &mut Vec<(String, &'a Command)>) {
        let inner = command.get_subcommands();
        let inner = inner.filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
        for inner in inner {
            let words = format!("{words} {}", inner.get_name());
            match inner.has_subcommands() {
                true => walk(&words, inner, found),
                false => found.push((words.trim_start().to_owned(), inner)),
            }
        }
    }
    let mut found = Vec::new();
    walk("", root, &mut found);
    found
}

fn is_of_traces(words: &str) -> bool {
    let first = words.split(' ').next();
    first.is_some_and(|first| TRACES.contains(&first))
}

/// Whether the command has the options of [`READING`].
fn reads_trace(command: &Command) -> bool {
    let mut arguments = command.get_arguments();
    arguments.any(|argument| argument.get_long() == Some("skip-bad"))
}

/// Returns a command with all [`READING_OPTIONS`].
fn reader<'a>(leaves: &[(String, &'a Command)]) -> &'a Command {
    let found = leaves.iter().find(|(words, _)| words == "trace stats");
    found.expect("`trace stats` reads traces").1
}

fn is_reading(argument: &Arg) -> bool {
    let long = argument.get_long();
    long.is_some_and(|long| READING_OPTIONS.contains(&long))
}

/// Returns the part of one command.
fn one(command: &Command, present: &str) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let reads_trace = reads_trace(command);
    let is_elsewhere = |argument: &Arg| {
        argument.is_global_set() || is_of_clap(argument) || (reads_trace && is_reading(argument))
    };
    let own = |argument: &Arg| !is_elsewhere(argument);
    let mut text = format!("```text\n{usage}\n```\n");
    if arguments(command).any(own) {
        text += "\n";
        text += &options(command, present, own);
    }
    text
}

/// Whether clap adds the argument to every command.
fn is_of_clap(argument: &Arg) -> bool {
    matches!(argument.get_id().as_str(), "help" | "version")
}

/// Returns the arguments that users see: values first.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let options = command
        .get_arguments()
        .filter(|argument| argument.get_long().is_some());
    let all = command.get_positionals().chain(options);
    all.filter(|argument| !argument.is_hide_set())
}

/// Returns the table of the arguments that `is_wanted`.
fn options(command: &Command, present: &str, is_wanted: impl Fn(&Arg) -> bool) -> String {
    let present = by_hand(present);
    let wanted = arguments(command).filter(|argument| is_wanted(argument));
    let rows: Vec<_> = wanted.map(|argument| row(argument, &present)).collect();
    table(&["argument", "default", "meaning"], &rows)
}

fn row(argument: &Arg, present: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let values = argument.get_value_names().unwrap_or_default();
    let values: Vec<_> = values.iter().map(|name| name.to_string()).collect();
    let takes_values = argument.get_action().takes_values();
    let values = if takes_values {
        values.join(" ")
    } else {
        String::new()
    };
    let many = argument
        .get_num_args()
        .is_some_and(|number| number.max_values() > 1);
    let name = match argument.get_long() {
        Some(long) => format!("--{long} {values}").trim_end().to_owned(),
        None if values.is_empty() => argument.get_id().to_string().to_uppercase(),
        None if many => format!("{values}..."),
        None => values,
    };
    let cells = present.get(name.split(' ').next().unwrap_or_default());
    let cell = |index: usize| cells.and_then(|cells| cells.get(index)).cloned();
    let defaults = argument.get_default_values();
    let defaults: Vec<_> = defaults
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    let default = match () {
        () if argument.is_required_set() => "required".to_owned(),
        () if takes_values && !defaults.is_empty() && !argument.is_hide_default_value_set() => {
            format!("`{}`", defaults.join(","))
        }
        () => cell(0).unwrap_or_default(),
    };
    let help = argument
        .get_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut letters = help.chars();
    let draft = letters
        .next()
        .map(|first| first.to_lowercase().to_string() + letters.as_str());
    let meaning = cell(1).unwrap_or_else(|| draft.unwrap_or_default());
    vec![format!("`{}`", name.replace('|', "\\|")), default, meaning]
}

/// Returns the default and the meaning that the table on a page has, by the name of the argument.
fn by_hand(table: &str) -> BTreeMap<String, Vec<String>> {
    let rows = table.lines().filter_map(|line| {
        let row = line.strip_prefix('|')?.strip_suffix('|')?;
        let row = row.replace("\\|", "\0");
        let mut cells = row.split('|').map(|cell| cell.trim().replace('\0', "\\|"));
        let name = cells.next()?;
        let name = name.trim_matches('`').split(' ').next()?.to_owned();
        Some((name, cells.collect()))
    });
    rows.collect()
}
