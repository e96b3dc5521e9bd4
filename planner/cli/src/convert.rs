//! `forebay trace convert`: writes a trace in another format.

use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind, Result};
use forebay_trace::Format;
use forebay_trace::write::{Output, WriteOptions, Writer, Written};

use super::input::{Input, ReadArguments, names, refuse_input};
use super::interrupt;
use forebay_terminal::out;
use forebay_terminal::size::{human_bytes, human_count};

/// Write a trace in another format
///
/// Several files become one, merged by time. The output is compressed if its name ends in .gz, .xz
/// or .zst. It is written under another name first, so that it is complete or absent. It never
/// replaces an existing file without --force.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Files of the trace, and last the file to write
    #[arg(required = true, num_args = 2.., value_names = ["IN", "OUT"])]
    pub(super) files: Vec<PathBuf>,
    /// Format of the input, if it is not recognized (see `forebay trace stats --help`)
    #[arg(long, value_name = "FORMAT")]
    pub(super) from: Option<Format>,
    /// Format to write: native, msr, alibaba, oracle-general, fio, vscsi-csv or vscsi-csv-us
    #[arg(long, value_name = "FORMAT", default_value = "native")]
    pub(super) to: Format,
    #[command(flatten)]
    pub(super) read: ReadArguments,
    /// Overwrite an existing file
    #[arg(long)]
    pub(super) force: bool,
}

/// Writes a trace in another format.
///
/// # Errors
/// A file that cannot be read or written, or that holds no trace.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Some((path, files)) = arguments
        .files
        .split_last()
        .filter(|(_, files)| !files.is_empty())
    else {
        let said = "name the files of the trace, and last the file to write";
        return Err(Error::new(ErrorKind::InvalidInput, said));
    };
    refuse_input(path, files)?;
    interrupt::watch();
    let mut input = Input::open(files, arguments.from, &arguments.read)?;
    let output = Output::create(path, arguments.force)?;
    let scratch = output.folder();
    let mut batch = Vec::new();
    // The time of the trace's zero is known only after the first requests.
    let mut more = input.fill(&mut batch)?;
    let options = WriteOptions {
        zero_unix_ns: input.zero_unix_ns(),
        scratch,
    };
    let mut writer = Writer::new(output, arguments.to, &options)?;
    while more {
        writer.write(&batch, input.volumes())?;
        more = input.fill(&mut batch)?;
    }
    input.check_not_empty()?;
    let (output, written) = writer.finish()?;
    let size_bytes = output.finish()?;
    let from = format!("{} ({})", names(files), input.format());
    out::print(&report(&from, path, arguments.to, written, size_bytes))?;
    for remark in input.remarks() {
        out::print(&format!("  {remark}\n"))?;
    }
    Ok(())
}

/// Returns a report on the written trace; also for `generate`.
pub(super) fn report(
    from: &str,
    path: &Path,
    format: Format,
    written: Written,
    size_bytes: u64,
) -> String {
    let mut text = format!(
        "{from}: {} written to {} ({format}, {})\n",
        human_count(written.requests, "request"),
        path.display(),
        human_bytes(size_bytes)
    );
    if written.dropped > 0 {
        text += &format!(
            "  {} left out: {format} does not hold flushes and discards\n",
            human_count(written.dropped, "request")
        );
    }
    if written.widened > 0 {
        text += &format!(
            "  {} widened to whole sectors of 512 bytes, which {format} counts in\n",
            human_count(written.widened, "request")
        );
    }
    text
}
