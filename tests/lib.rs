//! Tests of the whole stack; see the folders beside this file.
