//! Where a socket listens or connects to.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_block::{Error, ErrorKind, Result};

/// The address of a stream socket.
///
/// As text: `127.0.0.1:10809`, `[::1]:10809`, `unix:/run/forebay/nbd.sock`, or just a path with a
/// slash in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A Unix socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let path = text
            .strip_prefix("unix:")
            .or_else(|| text.contains('/').then_some(text));
        match path {
            Some("") => Err(invalid(text)),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| invalid(text)),
        }
    }
}

fn invalid(text: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("{text:?} is not an address\nhelp: write IP:PORT, [IPv6]:PORT or unix:/PATH"),
    )
}

/// An address as the kernel takes it.
pub(super) struct Raw {
    pub(super) storage: Box<libc::sockaddr_storage>,
    pub(super) len: libc::socklen_t,
}

impl Raw {
    pub(super) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const *self.storage).cast()
    }
}

fn store<T>(value: T, len: usize) -> Raw {
    const {
        assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>());
        assert!(align_of::<T>() <= align_of::<libc::sockaddr_storage>());
    }
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut storage: Box<libc::sockaddr_storage> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: it is large and aligned enough for any kind of address, checked above.
    unsafe { (&raw mut *storage).cast::<T>().write(value) }
    Raw {
        storage,
        len: libc::socklen_t::try_from(len).expect("a small size"),
    }
}

pub(super) fn raw_tcp(address: &SocketAddr) -> Raw {
    match address {
        SocketAddr::V4(v4) => {
            let value = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            store(value, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(v6) => {
            let value = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            store(value, size_of::<libc::sockaddr_in6>())
        }
    }
}

pub(super) fn raw_unix(path: &Path) -> Result<Raw> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut value: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    value.sun_family = family(libc::AF_UNIX);
    let most = value.sun_path.len() - 1;
    if bytes.is_empty() || bytes.len() > most || bytes.contains(&0) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "the path {:?} cannot name a socket\n\
                 help: use 1 to {most} bytes, none of them zero",
                path.display().to_string()
            ),
        ));
    }
    for (to, &from) in value.sun_path.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok(store(value, len))
}

fn family(family: libc::c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).expect("a small constant")
}
