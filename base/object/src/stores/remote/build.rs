//! Builds the client of a provider from settings, credentials and the environment.

use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use zeroize::Zeroizing;

use crate::stores::address::{Bucket, Provider};
use crate::stores::credentials::Credentials;

/// Time limit for a connection to the server.
const CONNECT: Duration = Duration::from_secs(5);

/// Settings that are taken from the environment. Others, such as an endpoint, come from the
/// configuration alone.
const S3: [&str; 11] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
];
const GOOGLE: [&str; 3] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];
const AZURE: [&str; 7] = [
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
];

type Values = Vec<(String, Zeroizing<String>)>;
/// Texts that no message may have.
type Secrets = Vec<Zeroizing<String>>;

/// Returns names with values for a client: those of the file, or else of the environment.
fn values(provider: Provider, credentials: Option<&Credentials>) -> Result<Values> {
    let names: &[&str] = match provider {
        Provider::S3 => &S3,
        Provider::Google => &GOOGLE,
        Provider::Azure => &AZURE,
    };
    if credentials.is_some_and(|credentials| credentials.provider() != provider) {
        let what = "the credentials are those of another provider";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let is_used = |name: &&&str| credentials.is_none() || name.ends_with("REGION");
    let set = names.iter().filter(is_used).filter_map(|name| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some((name.to_ascii_lowercase(), Zeroizing::new(value)))
    });
    let mut values: Values = set.collect();
    for (name, value) in credentials.iter().flat_map(|file| file.values()) {
        values.push((name.to_owned(), Zeroizing::new(value.to_owned())));
    }
    Ok(values)
}

/// Returns a client, and the secrets that it has.
///
/// # Errors
/// `InvalidInput` for incomplete settings.
pub(super) fn build(
    bucket: &Bucket,
    credentials: Option<&Credentials>,
) -> Result<(Arc<dyn ObjectStore>, Secrets)> {
    // The client takes the process's provider. Another part of the process may have set it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let values = values(bucket.provider, credentials)?;
    let has = |name: &str| values.iter().any(|(other, _)| other.ends_with(name));
    let missing = |what: &str, help: &str| {
        Err(Error::new(
            ErrorKind::InvalidInput,
            format!("there are no credentials: {what}\nhelp: {help}"),
        ))
    };
    if bucket.provider == Provider::S3 && bucket.endpoint.is_some() && !has("access_key_id") {
        return missing(
            "no file, and no AWS_ACCESS_KEY_ID in the environment",
            "name a file of mode 0600 with `credentials`",
        );
    }
    if bucket.provider == Provider::Azure && !has("account_name") {
        return missing(
            "no file, and no AZURE_STORAGE_ACCOUNT_NAME in the environment",
            "name a file of mode 0600 with `credentials`",
        );
    }
    let built = match bucket.provider {
        Provider::S3 => s3(bucket, &values),
        Provider::Google => google(bucket, &values),
        Provider::Azure => azure(bucket, &values),
    };
    let secrets: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
    let store = built.map_err(|error| {
        let text = super::failure::plain(&error, &secrets);
        let what = format!("the settings make no client: {text}\nhelp: see its credentials");
        Error::new(ErrorKind::InvalidInput, what)
    })?;
    Ok((store, secrets))
}

fn options(bucket: &Bucket) -> ClientOptions {
    let is_http = bucket
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    ClientOptions::new()
        .with_allow_http(is_http)
        .with_connect_timeout(CONNECT)
        // Each request has a limit, which depends on its data.
        .with_timeout_disabled()
}

/// One retry, for a connection that the server has closed meanwhile.
fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(500),
            base: 2.0,
        },
        max_retries: 1,
        retry_timeout: Duration::from_secs(10),
    }
}

fn s3(bucket: &Bucket, values: &Values) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in values {
        builder = builder.with_config(name.parse::<AmazonS3ConfigKey>()?, value.as_str());
    }
    builder = builder
        .with_bucket_name(&bucket.bucket)
        .with_client_options(options(bucket))
        .with_retry(retry())
        // Not all stores with this protocol have requests that delete several objects.
        .with_disable_bulk_delete(true);
    if let Some(region) = &bucket.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(Arc::new(builder.build()?))
}

fn google(bucket: &Bucket, values: &Values) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in values {
        builder = builder.with_config(name.parse::<GoogleConfigKey>()?, value.as_str());
    }
    builder = builder
        .with_bucket_name(&bucket.bucket)
        .with_client_options(options(bucket))
        .with_retry(retry());
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    Ok(Arc::new(builder.build()?))
}

fn azure(bucket: &Bucket, values: &Values) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in values {
        builder = builder.with_config(name.parse::<AzureConfigKey>()?, value.as_str());
    }
    builder = builder
        .with_container_name(&bucket.bucket)
        .with_client_options(options(bucket))
        .with_retry(retry());
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    Ok(Arc::new(builder.build()?))
}
