//! Leaves: devices that touch media, and the emulation of slower ones.
