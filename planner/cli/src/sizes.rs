//! Sizes of caches and blocks, as arguments of `forebay simulate`.

use std::str::FromStr;

use forebay_policy::BlockSizes;

use forebay_terminal::size::Size;

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheSize {
    Bytes(u64),
    /// Share of the working set, hundredths of a percent.
    Share(u32),
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix("%wss") else {
            if text.ends_with('%') {
                return Err(format!(
                    "{text:?} does not say of what: write {text}wss for a share of the working set"
                ));
            }
            let bytes = text.parse::<Size>().map_err(|bad| bad.to_string())?;
            return Ok(Self::Bytes(bytes.0));
        };
        match percent.parse::<f64>() {
            // At most 100,000 hundredths.
            Ok(percent) if percent > 0.0 && percent <= 1000.0 => {
                Ok(Self::Share((percent * 100.0).round() as u32))
            }
            _ => Err(format!(
                "{text:?} is no share: write 10%wss, or a size such as 64G"
            )),
        }
    }
}

/// Sizes of a cache's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks(pub(super) BlockSizes);

impl FromStr for Blocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| match text.parse::<Size>() {
            Ok(Size(bytes)) if bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes) => {
                Ok(bytes)
            }
            _ => Err(format!("{text:?} is no power of two from 4K to 1M")),
        };
        let sizes = match text.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (size(first)?, size(last)?);
                (0..9)
                    .map(|class| first << class)
                    .filter(|bytes| *bytes <= last)
                    .collect()
            }
            None => text.split(',').map(size).collect::<Result<Vec<_>, _>>()?,
        };
        BlockSizes::new(&sizes).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_blocks_are_parsed() {
        assert_eq!("10%wss".parse(), Ok(CacheSize::Share(1000)));
        assert_eq!("0.5%wss".parse(), Ok(CacheSize::Share(50)));
        assert_eq!("64M".parse(), Ok(CacheSize::Bytes(64 << 20)));
        for wrong in ["0%wss", "x%wss", "-1%wss", "wss", "12"] {
            let parsed = wrong.parse::<CacheSize>();
            assert!(parsed.is_err() || wrong == "12", "{wrong}: {parsed:?}");
        }
        let blocks = |text: &str| text.parse::<Blocks>().map(|blocks| blocks.0.to_string());
        assert_eq!(blocks("32K..256K"), Ok("32K..256K".into()));
        assert_eq!(blocks("4K,64K"), Ok("4K,64K".into()));
        assert_eq!(blocks("32K"), Ok("32K".into()));
        for wrong in ["3K", "256K..32K", "4K..512K", "2M", "32K,32K", ""] {
            assert!(blocks(wrong).is_err(), "{wrong}");
        }
    }
}
