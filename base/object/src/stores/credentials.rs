//! Secrets for a remote store.

use std::fmt;

use forebay_block::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

use super::address::Provider;

/// Settings of each provider, as its own tools name them in files and, in capitals, in the
/// environment.
const S3: [&str; 3] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
];
const AZURE: [&str; 3] = [
    "azure_storage_account_name",
    "azure_storage_account_key",
    "azure_storage_sas_token",
];
/// Name of the contents of a JSON file for Google.
const GOOGLE: &str = "google_service_account_key";

/// Credentials from a file. `Debug` shows none.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    provider: Provider,
    values: Vec<(&'static str, Zeroizing<String>)>,
}

impl Credentials {
    /// Parses the contents of a file: for Google the JSON of a service account, for others lines
    /// `NAME = VALUE`. Empty lines, comments that begin with `#`, and lines such as `[default]` are
    /// ignored.
    ///
    /// # Errors
    /// `InvalidInput` with the line, and without its contents.
    pub fn parse(provider: Provider, text: &str) -> Result<Self> {
        let values = match provider {
            Provider::Google if text.trim_start().starts_with('{') => {
                vec![(GOOGLE, Zeroizing::new(text.to_owned()))]
            }
            Provider::Google => {
                let what = "it is not the JSON file of a service account\n\
                            help: create one: `gcloud iam service-accounts keys create FILE`";
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
            Provider::S3 => lines(text, &S3, 2)?,
            Provider::Azure => lines(text, &AZURE, 1)?,
        };
        Ok(Self { provider, values })
    }

    /// Returns the provider.
    #[must_use]
    pub const fn provider(&self) -> Provider {
        self.provider
    }

    /// Returns names with their values.
    #[cfg(feature = "remote")]
    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
    }
}

/// Parses lines with these names, of which the first `required` must be there.
fn lines(
    text: &str,
    names: &[&'static str],
    required: usize,
) -> Result<Vec<(&'static str, Zeroizing<String>)>> {
    let invalid = |what: String| {
        let help = format!(
            "write lines NAME = VALUE with the names {}",
            names.join(", ")
        );
        Error::new(ErrorKind::InvalidInput, format!("{what}\nhelp: {help}"))
    };
    let mut values: Vec<(&'static str, Zeroizing<String>)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '[']) {
            continue;
        }
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| invalid(format!("line {number} has no `=`")))?;
        let name = name.trim().to_ascii_lowercase();
        let name = names.iter().find(|known| **known == name);
        let name = name.ok_or_else(|| invalid(format!("line {number} has an unknown name")))?;
        let value = value.trim();
        if value.is_empty() {
            return Err(invalid(format!("line {number} has no value")));
        }
        if values.iter().any(|(other, _)| other == name) {
            return Err(invalid(format!("line {number} has {name} a second time")));
        }
        values.push((*name, Zeroizing::new(value.to_owned())));
    }
    let is_missing = |name: &&&str| values.iter().all(|(other, _)| other != *name);
    if let Some(missing) = names[..required].iter().find(is_missing) {
        return Err(invalid(format!("it has no {missing}")));
    }
    Ok(values)
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.values.iter().map(|(name, _)| name).collect();
        f.debug_struct("Credentials")
            .field("provider", &self.provider)
            .field("names", &names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# of the backup account\n[default]\naws_access_key_id = AKIA1\n\
                        AWS_SECRET_ACCESS_KEY=SECRET+/=\n";

    #[test]
    fn the_usual_files_are_credentials() {
        let credentials = Credentials::parse(Provider::S3, FILE).expect("complete");
        let values: Vec<_> = credentials
            .values
            .iter()
            .map(|(_, value)| &***value)
            .collect();
        assert_eq!(values, ["AKIA1", "SECRET+/="]);
        let text = "azure_storage_account_name = me\nazure_storage_sas_token = SECRET";
        Credentials::parse(Provider::Azure, text).expect("complete");
        Credentials::parse(Provider::Google, "{\"private_key\": \"SECRET\"}").expect("it is JSON");
    }

    #[test]
    fn no_secret_is_shown() {
        let credentials = Credentials::parse(Provider::S3, FILE).expect("complete");
        let shown = format!("{credentials:?}");
        assert!(shown.contains("aws_secret_access_key"), "{shown}");
        assert!(!shown.contains("SECRET"), "{shown}");
        for (provider, text) in [
            (Provider::S3, "aws_access_key_id = A\nSECRET"),
            (Provider::S3, "aws_access_key_id = A\nSECRET = x"),
            (Provider::S3, "aws_access_key_id = SECRET"),
            (Provider::S3, "aws_secret_access_key = SECRET"),
            (
                Provider::S3,
                "aws_access_key_id = SECRET\naws_access_key_id = SECRET",
            ),
            (Provider::Azure, "azure_storage_account_key = SECRET"),
            (Provider::Azure, "azure_storage_account_name ="),
            (Provider::Google, "SECRET"),
        ] {
            let error = Credentials::parse(provider, text).expect_err(text).report();
            assert!(error.contains("help: "), "{error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
    }
}
