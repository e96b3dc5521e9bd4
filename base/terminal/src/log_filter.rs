//! The log filter in `FOREBAY_LOG`.

use forebay_block::{Error, ErrorKind, Result};
use tracing_subscriber::EnvFilter;

/// Name of the environment variable.
const NAME: &str = "FOREBAY_LOG";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Returns the filter in the environment, or one of `default` if there is none.
///
/// # Errors
/// `InvalidInput` for an unknown level, or an invalid filter.
pub fn from_environment(default: &str) -> Result<EnvFilter> {
    let text = match std::env::var(NAME) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(EnvFilter::new(default)),
        Err(std::env::VarError::NotUnicode(_)) => return Err(wrong("the value is not UTF-8")),
    };
    parse(&text)
}

fn parse(text: &str) -> Result<EnvFilter> {
    for directive in text.split(',').map(str::trim) {
        check(directive)?;
    }
    EnvFilter::builder()
        .parse(text)
        .map_err(|error| wrong(&format!("{text:?} is not a log filter: {error}")))
}

/// Refuses an unknown level, which would silently be taken for the name of a module.
fn check(directive: &str) -> Result<()> {
    // The parser handles filters of spans.
    if directive.is_empty() || directive.contains(['[', ']', '{', '}', '"']) {
        return Ok(());
    }
    let level = match directive.rsplit_once('=') {
        Some((_, level)) => level.trim(),
        None if directive.starts_with("forebay") || directive.contains("::") => return Ok(()),
        None => directive,
    };
    let number = level
        .parse::<usize>()
        .is_ok_and(|level| level < LEVELS.len());
    if number || LEVELS.iter().any(|name| name.eq_ignore_ascii_case(level)) {
        return Ok(());
    }
    let nearest = LEVELS
        .iter()
        .map(|name| {
            (
                strsim::damerau_levenshtein(&level.to_lowercase(), name),
                name,
            )
        })
        .min_by_key(|(distance, _)| *distance);
    let meant = match nearest {
        Some((..=2, name)) => format!(" (did you mean {name}?)"),
        _ => String::new(),
    };
    Err(wrong(&format!("{level:?} is not a log level{meant}")))
}

fn wrong(what: &str) -> Error {
    let said = format!(
        "{NAME}: {what}\n\
         help: write off, error, warn, info, debug or trace, or MODULE=LEVEL, separated by commas"
    );
    Error::new(ErrorKind::InvalidInput, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_modules_are_filters() {
        for text in [
            "info",
            "WARN",
            "3",
            "off",
            "forebay=debug",
            "forebay_cache::clean=trace,warn",
            "forebay_io",
            "warn,forebay_cache=debug",
            "info,",
            "[span{field=1}]=debug",
        ] {
            parse(text).map(|_| ()).expect(text);
        }
    }

    #[test]
    fn a_level_that_there_is_not_is_an_error() {
        for (text, said) in [
            ("inof", "did you mean info?"),
            ("verbose", "\"verbose\" is not a log level"),
            ("forebay_cache=debgu", "did you mean debug?"),
            ("info,warm", "did you mean warn?"),
            ("7", "\"7\" is not a log level"),
            ("forebay=", "\"\" is not a log level"),
        ] {
            let error = parse(text).expect_err(text).report();
            assert!(
                error.contains(said) && error.contains("FOREBAY_LOG"),
                "{error}"
            );
        }
    }
}
