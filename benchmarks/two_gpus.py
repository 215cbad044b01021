"""Whether two devices of a host take the time of half the work: reads the journals of runs in an archive.

    python benchmarks/two_gpus.py ARCHIVE RUN_ON_TWO RUN_ON_ONE

Prints the measurements of each device and, for both runs, the time from the last worker's `ready` to the last result.
Exit code 1 when a device of the first run measured fewer than a third of its cases, or it took more than 0.6 of the second's time.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def read(archive: str, run: str) -> tuple[Counter[str], float]:
    """(cases by device, seconds from the last worker's first readiness to the last result)."""
    (journal,) = (Path(archive) / "runs" / run / "hosts").glob("*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    cases = {
        (e["measurement"]["case_id"], e["measurement"]["device"]["uuid"])
        for e in events
        if e["type"] == "measurement"
    }
    first_ready: dict[str, float] = {}
    for event in events:
        if event["type"] == "worker_ready":
            for device in event["devices"]:
                first_ready.setdefault(device, event["mono"])
    last = max(event["mono"] for event in events if event["type"] == "measurement")
    return Counter(device for _, device in cases), last - max(first_ready.values())


def main() -> int:
    """Compare the two runs."""
    archive, two, one = sys.argv[1:4]
    shared, two_s = read(archive, two)
    alone, one_s = read(archive, one)
    for device, count in sorted(shared.items()):
        print(f"{device}: {count} cases")
    print(f"two devices {two_s:.2f} s, one device {one_s:.2f} s, ratio {two_s / one_s:.2f}")
    fair = len(shared) == 2 and min(shared.values()) * 3 >= sum(shared.values()) and len(alone) == 1
    return 0 if fair and two_s <= 0.6 * one_s else 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main())
