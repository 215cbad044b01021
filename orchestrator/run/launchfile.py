"""`launch.json` in an open run's folder: all that a later command needs to follow the run or to take it up again.

It makes `attach` and `resume` independent of the sweep, hosts.yaml and the working folder that the run began with.
No secret is in it: values that came from the environment are looked up again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.archive.faults import reading
from orchestrator.errors import ArchiveError
from orchestrator.inventory import HostSpec

NAME = "launch.json"
VERSION = 1


@dataclass(frozen=True)
class Launch:
    """Hosts, their jobs, and the queue items by case. `hands` are the cases each host is given at the start, each
    with the backends to measure there; None: the cases are dealt out while the run goes."""

    run_id: str
    hosts: Mapping[str, HostSpec]
    jobs: Mapping[str, Mapping[str, Any]]
    items: Mapping[str, Mapping[str, Any]]
    hands: Mapping[str, Mapping[str, Sequence[str]]] | None
    lost_after_s: float

    def hand(self, host: str) -> list[Mapping[str, Any]]:
        """The queue items that a host is given at the start."""
        cases = (self.hands or {}).get(host, {})
        return [self._item(case_id, backends) for case_id, backends in cases.items()]

    def _item(self, case_id: str, backends: Sequence[str]) -> Mapping[str, Any]:
        """The item itself where all of its backends are meant: there may be many hosts."""
        item = self.items[case_id]
        return item if list(backends) == item["backends"] else {**item, "backends": list(backends)}

    def to_bytes(self) -> bytes:
        """The file's content."""
        document = {
            "schema_version": VERSION,
            "run_id": self.run_id,
            "hosts": {name: spec.model_dump(mode="json") for name, spec in self.hosts.items()},
            "jobs": dict(self.jobs),
            "items": dict(self.items),
            "hands": None if self.hands is None else {host: dict(hand) for host, hand in self.hands.items()},
            "lost_after_s": self.lost_after_s,
        }
        return json.dumps(document, allow_nan=False).encode("ascii")


def read(folder: Path) -> Launch:
    """The launch of an open run. Raises `ArchiveError` when it is missing or damaged."""
    path = folder / NAME
    try:
        with reading(path, absent=False):
            document = json.loads(path.read_bytes())
        if document["schema_version"] > VERSION:
            raise ArchiveError(
                f"{path}: was written by a newer farbench; upgrade farbench to go on with this run"
            )
        return Launch(
            run_id=document["run_id"],
            hosts={name: HostSpec.model_validate(spec) for name, spec in document["hosts"].items()},
            jobs=document["jobs"],
            items=document["items"],
            hands=document["hands"],
            lost_after_s=document["lost_after_s"],
        )
    except FileNotFoundError:
        raise ArchiveError(f"{path}: missing; this run can be reported, but not taken up again") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path}: is damaged: {error}") from None
