//! The keys of a volume in object storage.

use std::fmt;
use std::path::PathBuf;

use forebay_object::stores::address::{Address, Settings};
use toml::Spanned;

use super::{RawDevice, span};
use crate::config::problem::Problems;

/// A volume in object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSettings {
    /// Folder of its objects.
    pub address: Address,
    /// File with credentials, absolute path; `None` for those of the environment.
    pub credentials: Option<PathBuf>,
    /// Size, bytes: creates or extends the volume. `None` for the size that it has.
    pub size_bytes: Option<u64>,
    /// Name of a snapshot to open in place of the volume.
    pub snapshot: Option<String>,
    /// Prices of the store.
    pub prices: Option<Prices>,
}

impl fmt::Display for ObjectSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        match &self.snapshot {
            Some(snapshot) => write!(f, " (snapshot {snapshot})"),
            None => Ok(()),
        }
    }
}

/// Prices of a store, in billionths of its currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// Of 1000 creations or lists.
    pub put: u64,
    /// Of 1000 reads.
    pub get: u64,
    /// Of a GiB stored for a month.
    pub stored: u64,
    /// Of a downloaded GiB.
    pub downloaded: u64,
}

/// Use of a store, of which [`Prices`] are the prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumption {
    /// Creations and lists.
    pub puts: u64,
    /// Reads.
    pub gets: u64,
    /// Bytes that are stored.
    pub stored_bytes: u64,
    /// Bytes that were downloaded.
    pub downloaded_bytes: u64,
    /// Time in which this was counted, seconds.
    pub seconds: u64,
}

/// Seconds of a month of 30 days.
const MONTH_S: u64 = 30 * 24 * 3600;

impl Prices {
    /// Parses `put 0.005, get 0.0004, stored 0.023, downloaded 0.09`, of which each part may be
    /// left out. Returns `None` for another text.
    fn parse(text: &str) -> Option<Self> {
        let mut prices = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (name, price) = part.trim().split_once(' ')?;
            let price = billionths(price.trim())?;
            let place = match name {
                "put" => &mut prices.put,
                "get" => &mut prices.get,
                "stored" => &mut prices.stored,
                "downloaded" => &mut prices.downloaded,
                _ => return None,
            };
            *place = price;
            if seen.contains(&name) {
                return None;
            }
            seen.push(name);
        }
        Some(prices)
    }

    /// Returns the estimated price of a month with this use, hundredths of the currency.
    #[must_use]
    pub fn monthly_cents(&self, of: &Consumption) -> u64 {
        const CENT: f64 = 1e7;
        const GIB: f64 = (1_u64 << 30) as f64;
        let months = of.seconds.max(1) as f64 / MONTH_S as f64;
        let product = |price: u64, amount: f64| price as f64 * amount;
        let in_time = product(self.put, of.puts as f64 / 1e3)
            + product(self.get, of.gets as f64 / 1e3)
            + product(self.downloaded, of.downloaded_bytes as f64 / GIB);
        let stored = product(self.stored, of.stored_bytes as f64 / GIB);
        ((in_time / months + stored) / CENT).round() as u64
    }
}

/// Parses a decimal number below a million, with at most nine decimals.
fn billionths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || whole.len() > 6 || part.len() > 9 {
        return None;
    }
    let part: u64 = format!("{part:0<9}").parse().ok()?;
    Some(whole.parse::<u64>().ok()? * 1_000_000_000 + part)
}

impl RawDevice {
    /// Returns the volume in object storage. Returns `None` if a key is missing or wrong.
    pub(super) fn resolve_object(&self, problems: &mut Problems<'_>) -> Option<ObjectSettings> {
        let name = self.name.get_ref();
        let Some(url) = &self.url else {
            problems.add(
                &self.name.span(),
                format!("device {name:?} of kind object has no `url`"),
                "add url = \"s3://BUCKET/FOLDER\", or the path of a directory",
            );
            return None;
        };
        fn text(value: &Option<Spanned<String>>) -> Option<&str> {
            value.as_ref().map(|value| value.get_ref().as_str())
        }
        for value in [&self.url, &self.endpoint].into_iter().flatten() {
            // A user with a password, or a signature.
            if value.get_ref().contains(['@', '?']) {
                problems.withhold(&value.span());
            }
        }
        let settings = Settings {
            endpoint: text(&self.endpoint),
            region: text(&self.region),
            allow_http: (self.allow_http.as_ref()).is_some_and(|allowed| *allowed.get_ref()),
        };
        let address = match Address::parse(url.get_ref(), &problems.base(), settings) {
            Ok(address) => Some(address),
            Err(error) => {
                let what = format!("device {name:?}: {}", error.report());
                problems.add(&url.span(), what, "");
                None
            }
        };
        if let (Some(place), Some(address)) = (span(self.credentials.as_ref()), &address)
            && address.bucket().is_none()
        {
            let help = "remove `credentials`, or write a URL such as s3://BUCKET/FOLDER";
            problems.add(
                &place,
                format!("device {name:?}: a directory needs no secret"),
                help,
            );
        }
        if let Some(size) = &self.size
            && (size.get_ref().0 == 0 || size.get_ref().0 % 4096 != 0)
        {
            problems.add(
                &size.span(),
                format!("the size of device {name:?} is not a multiple of 4K above zero"),
                "write a size such as \"2T\", or leave `size` out for a volume that exists",
            );
        }
        if let (Some(place), Some(_)) = (span(self.snapshot.as_ref()), &self.size) {
            let what = format!("device {name:?}: a snapshot has the size of its volume");
            problems.add(&place, what, "remove `size`");
        }
        let prices = self.prices.as_ref().and_then(|prices| {
            let parsed = Prices::parse(prices.get_ref());
            if parsed.is_none() {
                problems.add(
                    &prices.span(),
                    format!(
                        "device {name:?}: {:?} is no list of prices",
                        prices.get_ref()
                    ),
                    "write prices = \"put 0.005, get 0.0004, stored 0.023, downloaded 0.09\"",
                );
            }
            parsed
        });
        Some(ObjectSettings {
            address: address?,
            credentials: (self.credentials.as_ref())
                .map(|path| problems.base().join(path.get_ref())),
            size_bytes: self.size.as_ref().map(|size| size.get_ref().0),
            snapshot: text(&self.snapshot).map(str::to_owned),
            prices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_parsed_and_make_a_monthly_estimate() {
        let text = "put 0.005, get 0.0004, stored 0.023, downloaded 0.09";
        let prices = Prices::parse(text).expect("complete");
        assert_eq!(prices.put, 5_000_000);
        // A day with 1000 PUTs each hour, and 100 GiB.
        let of = Consumption {
            puts: 24_000,
            gets: 240_000,
            stored_bytes: 100 << 30,
            downloaded_bytes: 10 << 30,
            seconds: 24 * 3600,
        };
        // 30 * 0.12 + 30 * 0.096 + 30 * 0.9 + 2.3
        assert_eq!(prices.monthly_cents(&of), 3578);
        assert_eq!(
            Prices::parse("stored 1").expect("a part").stored,
            1_000_000_000
        );
        for wrong in [
            "",
            "put",
            "put x",
            "put -1",
            "put 1, put 2",
            "put 0.0000000001",
            "all 1",
        ] {
            assert_eq!(Prices::parse(wrong), None, "{wrong:?}");
        }
    }
}
