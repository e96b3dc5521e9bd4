//! Pure codecs for the protocols that Forebay speaks. No I/O.
