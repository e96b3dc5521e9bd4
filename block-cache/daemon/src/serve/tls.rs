//! The certificates and keys of NBD servers.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_frontend::nbd::{self, Demand};

use crate::config::Tls;
use crate::secrets::read_private;

/// Largest file of certificates, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the files that `tls` names.
///
/// # Errors
/// `Permission` if other users can read or change the key. `InvalidInput` for an invalid file, or a
/// key of another certificate. No error contains part of the key.
pub(crate) fn load(tls: &Tls) -> Result<nbd::Tls> {
    let certificate = read_public(&tls.certificate, "the certificate")?;
    let key = read_private(&tls.key, "the key")?;
    let clients = tls.client_ca.as_deref();
    let clients = clients.map(|path| read_public(path, "the clients' authorities"));
    let clients = clients.transpose()?;
    let demand = match tls.required {
        true => Demand::Required,
        false => Demand::Offered,
    };
    nbd::Tls::new(demand, &certificate, key.as_bytes(), clients.as_deref()).context(|| {
        let mut files = format!(
            "TLS with {} and {}",
            tls.certificate.display(),
            tls.key.display()
        );
        if let Some(clients) = &tls.client_ca {
            files += &format!(", clients' authorities in {}", clients.display());
        }
        files
    })
}

fn read_public(path: &Path, what: &str) -> Result<Vec<u8>> {
    let shown = path.display();
    let unreadable = || format!("cannot read {what} in {shown}");
    // Opening must not wait on a named pipe, which is refused below.
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).context(unreadable)?;
    let about = file.metadata().context(unreadable)?;
    if !about.is_file() || about.len() > MAX_BYTES {
        let why = format!("{shown}, which should have {what}, is no regular file, or above 1 MiB");
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .context(unreadable)?;
    Ok(bytes)
}
