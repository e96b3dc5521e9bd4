"""Misses of libCacheSim's policies. Arguments: a file of references, its number of references, capacities.

The file has the columns of libCacheSim's oracleGeneral format; every object has size 1. Prints one line a policy and
capacity: name, capacity, misses.
"""

import sys

import libcachesim as lcs

path, references, capacities = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


def policies(capacity):
    common = {"cache_size": capacity, "hashpower": 20}
    yield "lru", lcs.LRU(**common)
    yield "fifo", lcs.FIFO(**common)
    yield "clock", lcs.Clock(**common)
    yield "sieve", lcs.Sieve(**common)
    yield "arc", lcs.ARC(**common)
    yield "lirs", lcs.LIRS(**common)
    # As in the paper: a tenth, as many ghosts as the main queue has places, moved when used more than once.
    s3fifo = {"small_size_ratio": 0.1, "ghost_size_ratio": 0.9, "move_to_main_threshold": 2}
    yield "s3fifo", lcs.S3FIFO(**common, **s3fifo)


for capacity in map(int, capacities):
    for name, cache in policies(capacity):
        reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE)
        miss_ratio, _ = cache.process_trace(reader)
        print(name, capacity, round(miss_ratio * references), flush=True)
