"""Every path of a run, named in one place, and the ids of runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

from orchestrator.errors import ArchiveError

OPEN = "open"
COMMITTED = "runs"
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What the id of a run may look like: it names folders."""

_LONGEST_NAME = 120


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: `archive/open/<run id>` while it may still change, `archive/runs/<run id>` afterwards."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id, which is the folder's name."""
        return self.path.name

    @property
    def is_committed(self) -> bool:
        """Whether the run is complete and will never change again."""
        return self.path.parent.name == COMMITTED

    @property
    def run_json(self) -> Path:
        """What was run, where and with what (`document.RunDocument`)."""
        return self.path / "run.json"

    @property
    def scripts(self) -> Path:
        """The rendered payloads, byte for byte as they ran."""
        return self.path / "scripts"

    @property
    def results_jsonl(self) -> Path:
        """The results, one measurement a line; only in a committed run."""
        return self.path / "results.jsonl"

    @property
    def results_parquet(self) -> Path:
        """The same results, typed; only in a committed run."""
        return self.path / "results.parquet"

    @property
    def lock(self) -> Path:
        """The file whose flock the run's one coordinator holds."""
        return self.path / "coordinator.lock"

    @property
    def hosts(self) -> Path:
        """One folder a host."""
        return self.path / "hosts"

    def events(self, host: str) -> Path:
        """The copy of a host's journal, byte for byte."""
        return self.hosts / safe_name(host) / "events.jsonl"

    @property
    def arrivals(self) -> Path:
        """In which order the journals grew: a line `<folder of the host> <bytes>` for each piece that came in."""
        return self.hosts / "arrivals"

    def logs(self, host: str) -> Path:
        """The workers' logs of a host."""
        return self.path / "logs" / safe_name(host)

    def collected(self, host: str) -> Path:
        """The files that script payloads asked to keep, of a host."""
        return self.path / "collected" / safe_name(host)

    @property
    def imported(self) -> Path:
        """The file of another tool that the run was made of, as it was; only in an imported run."""
        return self.path / "imported"

    def host_names(self, known: tuple[str, ...] = ()) -> list[str]:
        """The hosts that have a journal here. `known` are the names to look for first (a long one is not readable
        from its folder's name)."""
        by_folder = {safe_name(name): name for name in known}
        try:
            found = sorted(entry.name for entry in self.hosts.iterdir() if (entry / "events.jsonl").is_file())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArchiveError(f"{self.hosts}: cannot be read: {error.strerror}") from None
        return [by_folder.get(name) or unquote(name) for name in found]


def safe_name(host: str) -> str:
    """A host's name as one folder name: percent-encoded where it holds anything but letters, digits and `-._~`."""
    name = quote(host, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(host.encode("utf-8")).hexdigest()[:16]
        return f"{name[: _LONGEST_NAME - 17]}~{digest}"
    return name or "%"


def new_run_id(clock: Callable[[], float], randomness: Callable[[int], bytes]) -> str:
    """An id that sorts by time: `YYYYMMDDTHHMMSSZ-<6 hex>`. `clock` gives UTC seconds, `randomness(n)` n bytes."""
    return f"{datetime.fromtimestamp(clock(), UTC):%Y%m%dT%H%M%SZ}-{randomness(3).hex()}"
