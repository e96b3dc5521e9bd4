//! Any bytes, given to the decoder of the page cache's messages.
#![no_main]

forebay_fuzz::target!("../../page-cache/pagecache/tests/pagecache_codec/check.rs");
