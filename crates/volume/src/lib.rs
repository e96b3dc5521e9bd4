//! What a client sees: bounds, flush scope over all connections, counters.
