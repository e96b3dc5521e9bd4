//! Model disk, workload generator, crash-point driver and checkers.
