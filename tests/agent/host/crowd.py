"""One of several processes that claim at random, alone and as gangs, and write down what happened and when.

Usage: crowd SEED ROUNDS WORKDIR GPU_DIR MARKS LOG UUID…. MARKS is a folder in which a device in use has a file.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

from orchestrator.agent.leases import Leases


def main(seed: str, rounds: str, workdir: str, gpu_dir: str, marks: str, log: str, *uuids: str) -> None:
    chance = random.Random(int(seed))
    leases = Leases(workdir, gpu_dir, f"run-{seed}")
    with open(log, "w", encoding="ascii") as out:
        for _ in range(int(rounds)):
            wanted = chance.sample(uuids, chance.choice([1, 1, 2, 3, len(uuids)]))
            reserving = ticket = None
            while True:
                asked = time.monotonic()
                lease = leases.try_claim(wanted)
                if lease is not None:
                    break
                if len(wanted) > 1 and ticket is None:
                    reserving = time.monotonic()
                    leases.reserve(wanted)
                    ticket = time.monotonic()
                time.sleep(chance.uniform(0, 0.002))
            got = time.monotonic()
            for uuid in wanted:
                os.close(os.open(f"{marks}/{uuid}", os.O_CREAT | os.O_EXCL))  # fails if two hold it
            time.sleep(chance.uniform(0, 0.004))
            for uuid in wanted:
                os.unlink(f"{marks}/{uuid}")
            lease.release()
            out.write(
                json.dumps(
                    {"uuids": wanted, "reserving": reserving, "ticket": ticket, "asked": asked, "got": got}
                )
                + "\n"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
