//! The `forebay` program and the library face.
