//! What `FOREBAY_LOG` says.

use forebay_block::{Error, ErrorKind, Result};
use tracing_subscriber::EnvFilter;

/// The environment variable.
const NAME: &str = "FOREBAY_LOG";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter that the environment names; one of `default` if it names none.
///
/// # Errors
/// `InvalidInput` for a level that there is not, or anything else that is no filter.
pub fn from_environment(default: &str) -> Result<EnvFilter> {
    let text = match std::env::var(NAME) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(EnvFilter::new(default)),
        Err(std::env::VarError::NotUnicode(_)) => return Err(wrong("it is no text")),
    };
    parse(&text)
}

fn parse(text: &str) -> Result<EnvFilter> {
    for directive in text.split(',').map(str::trim) {
        check(directive)?;
    }
    EnvFilter::builder()
        .parse(text)
        .map_err(|error| wrong(&format!("{text:?} is no filter: {error}")))
}

/// Refuses what would silently be taken for the name of a module that does not exist.
fn check(directive: &str) -> Result<()> {
    // What selects spans is left to the parser.
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
    Err(wrong(&format!("{level:?} is no level{meant}")))
}

fn wrong(what: &str) -> Error {
    let said = format!(
        "{NAME}: {what}: write off, error, warn, info, debug or trace, or MODULE=LEVEL, separated \
         by commas"
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
            ("verbose", "\"verbose\" is no level"),
            ("forebay_cache=debgu", "did you mean debug?"),
            ("info,warm", "did you mean warn?"),
            ("7", "\"7\" is no level"),
            ("forebay=", "\"\" is no level"),
        ] {
            let error = parse(text).expect_err(text).report();
            assert!(
                error.contains(said) && error.contains("FOREBAY_LOG"),
                "{error}"
            );
        }
    }
}
