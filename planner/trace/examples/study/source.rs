//! Where a job's requests come from.

use std::collections::VecDeque;
use std::path::PathBuf;

use forebay_trace::generate::{Generator, Preset};
use forebay_trace::{Format, OpenOptions, Request, Trace};
use serde_json::Value;

pub(crate) type Outcome<T> = Result<T, String>;

enum Kind {
    Generator(Generator),
    /// Those to come, and the one that is read.
    Files(VecDeque<PathBuf>, Option<Box<Trace>>),
}

/// Requests of a job, in order.
pub(crate) struct Source {
    kind: Kind,
    format: Option<Format>,
    volume: Option<String>,
    left: u64,
    /// Factor of offsets and lengths.
    scale: u32,
}

impl Source {
    pub(crate) fn open(job: &Value) -> Outcome<Self> {
        let kind = match job.get("generated") {
            Some(generated) => Kind::Generator(generator(generated)?),
            None => {
                let files = job["files"].as_array().ok_or("the job has no files")?;
                let files = files.iter().filter_map(Value::as_str);
                Kind::Files(files.map(PathBuf::from).collect(), None)
            }
        };
        let format = job.get("format").and_then(Value::as_str);
        let format = format.map(|name| name.parse::<Format>()).transpose();
        Ok(Self {
            kind,
            format: format.map_err(|error| error.to_string())?,
            volume: job["volume"].as_str().map(String::from),
            left: job["limit"].as_u64().unwrap_or(u64::MAX),
            scale: job["scale"].as_u64().map_or(1, |scale| scale as u32),
        })
    }

    /// The next requests that count; false at the end.
    pub(crate) fn fill(&mut self, batch: &mut Vec<Request>) -> Outcome<bool> {
        batch.clear();
        while batch.is_empty() && self.left > 0 {
            if !self.next(batch)? {
                return Ok(false);
            }
            batch.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= batch.len() as u64;
            for request in batch.iter_mut() {
                request.offset_bytes *= u64::from(self.scale);
                request.len_bytes *= self.scale;
            }
        }
        Ok(!batch.is_empty())
    }

    fn next(&mut self, batch: &mut Vec<Request>) -> Outcome<bool> {
        let (files, open) = match &mut self.kind {
            Kind::Generator(generator) => return Ok(generator.fill(batch)),
            Kind::Files(files, open) => (files, open),
        };
        let Some(trace) = open else {
            let Some(path) = files.pop_front() else {
                return Ok(false);
            };
            let options = OpenOptions {
                format: self.format,
                ..OpenOptions::default()
            };
            let trace = Trace::open(&[path], &options).map_err(|error| error.report())?;
            *open = Some(Box::new(trace));
            return Ok(true);
        };
        if !trace.fill(batch).map_err(|error| error.report())? {
            *open = None;
            return Ok(true);
        }
        if let Some(name) = &self.volume {
            let names = trace.volumes().names();
            let number = names.iter().position(|other| other == name);
            batch.retain(|request| Some(request.volume as usize) == number);
        }
        Ok(true)
    }
}

/// One volume of a preset.
fn generator(description: &Value) -> Outcome<Generator> {
    let name = description["preset"].as_str().unwrap_or_default();
    let preset = Preset::ALL.into_iter().find(|preset| preset.name() == name);
    let preset = preset.ok_or_else(|| format!("{name:?} is no preset"))?;
    let number = |key: &str| {
        let value = description[key].as_u64();
        value.ok_or_else(|| format!("what is generated has no {key}"))
    };
    let volume = number("volume")?;
    let loads = preset.loads(number("requests")?);
    let load = loads.into_iter().nth(volume as usize);
    let load = load.ok_or_else(|| format!("{name} has no volume {volume}"))?;
    // As many seeds as volumes, so that they do not draw the same numbers.
    let seed = number("seed")? * 1000 + volume;
    Generator::new(vec![load], seed).map_err(|error| error.report())
}
