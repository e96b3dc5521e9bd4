//! The cache engine: look-up, allocate, six modes, clean, recover.
