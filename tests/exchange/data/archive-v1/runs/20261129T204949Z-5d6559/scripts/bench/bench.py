"""Sort, and say how long it took."""

import json
import sys
import time

n = min(int(sys.argv[1]), 1000)
samples = []
for _ in range(8):
    started = time.perf_counter()
    sorted(range(n, 0, -1))
    samples.append((time.perf_counter() - started) * 1e6)
median_us = sorted(samples)[4]
print(
    json.dumps(
        {"median_us": median_us, "samples_us": samples, "big": 2**53 + 1, "text": "[bs=8] \u2028 \x1b[31m"}
    )
)
if n == 333:
    sys.exit(3)
