//! The crash-consistent map: layout, superblock, records, log, replay, check. No policy.
