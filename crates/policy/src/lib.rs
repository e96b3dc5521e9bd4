//! Pure decisions: block index, replacement, allocation, promotion, cleaning order. No I/O, no clock, no threads.
