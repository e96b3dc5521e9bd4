//! The URL of a folder in an object store, and the settings that go with it.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind, Result};

/// Address of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Place of the folder.
    pub place: Place,
}

/// Place of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory of a mounted file system; absolute path.
    Directory(PathBuf),
    /// A folder of a bucket or container.
    Bucket(Bucket),
}

/// Provider of a remote store, or of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, and all stores with its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    /// Returns the scheme of its URLs.
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }
}

/// A folder of a bucket or container, and the server that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Provider of the server, or of the protocol that the server speaks.
    pub provider: Provider,
    /// Name of the bucket or container.
    pub bucket: String,
    /// Folder in the bucket, without slashes at its ends.
    pub folder: String,
    /// URL of the server; `None` for the provider's own.
    pub endpoint: Option<String>,
    /// Region of an S3 bucket; `None` for that of the environment.
    pub region: Option<String>,
}

/// Settings that go with a URL.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// URL of the server.
    pub endpoint: Option<&'a str>,
    /// Region of an S3 bucket.
    pub region: Option<&'a str>,
    /// Whether plain HTTP may leave this machine.
    pub allow_http: bool,
}

const FORMS: &str = "write s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER, or \
                     file:///DIRECTORY";

impl Address {
    /// Parses a URL, or the path of a directory. A relative path starts at `base`.
    ///
    /// # Errors
    /// `InvalidInput`. The message has no part of a URL that may hold a secret.
    pub fn parse(url: &str, base: &Path, settings: Settings<'_>) -> Result<Self> {
        let invalid = |why: &str, help: &str| {
            Error::new(ErrorKind::InvalidInput, format!("{why}\nhelp: {help}"))
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            let begin = url.split_once(':').map_or("", |(begin, _)| begin);
            return match begin {
                "s3" | "gs" | "az" | "file" => {
                    let why = format!("{begin}: is not followed by two slashes");
                    Err(invalid(&why, FORMS))
                }
                _ if url.is_empty() => Err(invalid("the URL is empty", FORMS)),
                _ => Self::directory(base.join(url), settings),
            };
        };
        let provider = match scheme {
            "file" if rest.starts_with('/') => return Self::directory(rest.into(), settings),
            "file" => {
                let help = "write file:///DIRECTORY, with three slashes";
                return Err(invalid("the directory has no absolute path", help));
            }
            "s3" => Provider::S3,
            "gs" => Provider::Google,
            "az" => Provider::Azure,
            _ => return Err(invalid("the URL has an unknown scheme", FORMS)),
        };
        if rest.contains(['@', '?', '#']) {
            let help = "put secrets into a file of mode 0600, and name it with `credentials`";
            return Err(invalid("the URL has more than a bucket and a folder", help));
        }
        let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let folder = folder.strip_suffix('/').unwrap_or(folder);
        let fits = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
        };
        if !fits(bucket) {
            return Err(invalid("the URL names no bucket", FORMS));
        }
        if folder.is_empty() {
            let help =
                format!("write {scheme}://{bucket}/NAME: each volume has a folder of its own");
            return Err(invalid("the URL names no folder in the bucket", &help));
        }
        if !folder.split('/').all(fits) {
            let help = "use letters, digits, -, _ and ., and no part that begins with a dot";
            return Err(invalid("the folder has a name that is not portable", help));
        }
        if settings.region.is_some() && provider != Provider::S3 {
            let help = "remove `region`: the bucket's name is enough";
            return Err(invalid("only S3 has regions", help));
        }
        let endpoint = settings
            .endpoint
            .map(|endpoint| endpoint.trim_end_matches('/'));
        if let Some(endpoint) = endpoint {
            check_endpoint(endpoint, provider, settings.allow_http)?;
        }
        Ok(Self {
            place: Place::Bucket(Bucket {
                provider,
                bucket: bucket.to_owned(),
                folder: folder.to_owned(),
                endpoint: endpoint.map(str::to_owned),
                region: settings.region.map(str::to_owned),
            }),
        })
    }

    fn directory(path: PathBuf, settings: Settings<'_>) -> Result<Self> {
        if settings.endpoint.is_some() || settings.region.is_some() {
            let what = "a directory has no endpoint and no region\n\
                        help: remove them, or write a URL such as s3://BUCKET/FOLDER";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(Self {
            place: Place::Directory(path),
        })
    }

    /// Returns the bucket of a remote store; `None` for a directory.
    #[must_use]
    pub const fn bucket(&self) -> Option<&Bucket> {
        match &self.place {
            Place::Directory(_) => None,
            Place::Bucket(bucket) => Some(bucket),
        }
    }
}

fn check_endpoint(endpoint: &str, provider: Provider, allow_http: bool) -> Result<()> {
    let invalid = |why: &str, help: &str| {
        let what = format!("{why}\nhelp: {help}");
        Err(Error::new(ErrorKind::InvalidInput, what))
    };
    const FORM: &str = "write https://HOST:PORT";
    let Some((scheme, rest)) = endpoint.split_once("://") else {
        return invalid("the endpoint is no URL", FORM);
    };
    if rest.contains(['@', '?', '#']) || rest.is_empty() {
        return invalid("the endpoint is more than a server's address", FORM);
    }
    let authority = rest
        .split_once('/')
        .map_or(rest, |(authority, _)| authority);
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split_once(']').map_or(address, |(host, _)| host),
        None => authority
            .split_once(':')
            .map_or(authority, |(host, _)| host),
    };
    let is_local = host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    match scheme {
        "https" => Ok(()),
        "http" if is_local => Ok(()),
        // Its requests carry a token with which anybody may send others.
        "http" if provider != Provider::S3 => invalid(
            "credentials would cross the network in plain text",
            "use https",
        ),
        "http" if allow_http => Ok(()),
        "http" => invalid(
            "data would cross the network in plain text",
            "use https; or write allow_http = true for a network that you trust",
        ),
        _ => invalid("the endpoint is neither http nor https", FORM),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Directory(path) => path.display().fmt(f),
            Place::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}/{}",
            self.provider.scheme(),
            self.bucket,
            self.folder
        )?;
        match &self.endpoint {
            Some(endpoint) => write!(f, " at {endpoint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, settings: Settings<'_>) -> Result<Address> {
        Address::parse(url, Path::new("/etc/forebay"), settings)
    }

    #[test]
    fn an_address_is_a_directory_or_a_folder_of_a_bucket() {
        for (url, shown) in [
            ("/srv/objects/db", "/srv/objects/db"),
            ("file:///srv/objects/db", "/srv/objects/db"),
            ("objects", "/etc/forebay/objects"),
            ("s3://bucket/volumes/db/", "s3://bucket/volumes/db"),
            ("gs://bucket/db", "gs://bucket/db"),
            ("az://container/db", "az://container/db"),
        ] {
            let address = parse(url, Settings::default()).expect(url);
            assert_eq!(address.to_string(), shown);
        }
        let settings = Settings {
            endpoint: Some("http://127.0.0.1:9000/"),
            region: Some("eu-west-1"),
            allow_http: false,
        };
        let address = parse("s3://b/db", settings).expect("complete");
        assert_eq!(address.to_string(), "s3://b/db at http://127.0.0.1:9000");
        let bucket = address.bucket().expect("it is one");
        assert_eq!(bucket.region.as_deref(), Some("eu-west-1"));
    }

    #[test]
    fn wrong_urls_are_refused_without_their_secrets() {
        for (url, cause) in [
            ("", "is empty"),
            ("http://host/db", "unknown scheme"),
            ("file://srv/db", "no absolute path"),
            ("s3://", "names no bucket"),
            ("s3:///db", "names no bucket"),
            ("s3://bucket", "names no folder"),
            ("s3://bucket/", "names no folder"),
            ("s3:/bucket/db", "not followed by two slashes"),
            ("file:/srv/db", "not followed by two slashes"),
            ("s3://bucket/a//b", "not portable"),
            ("s3://bucket/../b", "not portable"),
            ("s3://KEY:SECRET@bucket/db", "more than a bucket"),
            ("az://container/db?sig=SECRET", "more than a bucket"),
        ] {
            let error = parse(url, Settings::default()).expect_err(url).report();
            assert!(error.contains(cause) && error.contains("help: "), "{error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn plain_http_stays_on_this_machine_unless_it_is_allowed() {
        let of = |url: &str, endpoint: &str, allow_http: bool| {
            let settings = Settings {
                endpoint: Some(endpoint),
                region: None,
                allow_http,
            };
            parse(url, settings).map_err(|error| error.report())
        };
        for local in [
            "http://127.0.0.1:9000",
            "http://localhost",
            "http://[::1]:9000",
        ] {
            of("s3://b/db", local, false).expect(local);
        }
        of("s3://b/db", "https://minio.lan:9000", false).expect("encrypted");
        let refused = of("s3://b/db", "http://minio.lan:9000", false).expect_err("plain");
        assert!(refused.contains("allow_http = true"), "{refused}");
        of("s3://b/db", "http://minio.lan:9000", true).expect("allowed");
        of("gs://b/db", "http://gcs.lan", true).expect_err("its token is not encrypted");
        of("s3://b/db", "http://127.0.0.1.lan", false).expect_err("another host");
        of("s3://b/db", "minio.lan:9000", false).expect_err("no URL");
        of("s3://b/db", "https://k:s@minio.lan", false).expect_err("it has a user");
        of("/srv/db", "https://minio.lan", false).expect_err("a directory");
    }
}
