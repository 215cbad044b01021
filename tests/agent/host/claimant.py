"""A process of its own that uses leases as it is told: one JSON command a line, one JSON answer a line."""

from __future__ import annotations

import json
import sys

from orchestrator.agent.leases import Lease, LeaseError, Leases


def main(workdir: str, gpu_dir: str, name: str) -> None:
    leases = Leases(workdir, gpu_dir, name)
    held: list[Lease] = []
    for line in sys.stdin:
        command, *uuids = json.loads(line)
        answer: object = None
        try:
            if command == "claim":
                lease = leases.try_claim(uuids)
                held += [lease] if lease else []
                answer = lease is not None
            elif command == "release":
                while held:
                    held.pop().release()
            elif command == "reserve":
                leases.reserve(uuids)
            elif command == "unreserve":
                leases.unreserve()
            elif command == "holder":
                answer = leases.holder_of(uuids[0])
        except LeaseError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
