"""How fast libCacheSim replays a file of its oracleGeneral format through LRU. Arguments: the file, the cache's size in
bytes, its number of requests, passes. Prints, for each pass, seconds of processor time and misses; reading and decoding
are included.
"""

import sys
import time

import libcachesim as lcs

path, size_bytes, requests, passes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

for _ in range(passes):
    cache = lcs.LRU(cache_size=size_bytes, hashpower=20)
    began = time.process_time()
    reader = lcs.TraceReader(path, lcs.TraceType.ORACLE_GENERAL_TRACE)
    miss_ratio, _ = cache.process_trace(reader)
    print(time.process_time() - began, round(miss_ratio * requests), flush=True)
