"""What comes to a running agent: batches of cases in `queue/`, requests in `control/`."""

from __future__ import annotations

import os
from typing import Any, Container, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from .history import History
from .journal import Journal
from .paths import RunPaths, read_json
from .queueing import CaseQueue, Entry
from .wire import finite

Targets = List[Optional[str]]


class Inbox:
    """Takes each batch in once and each case once, however often they are delivered.

    A case that was given back may come again, in another batch. The newest batch says whether more will come."""

    def __init__(
        self,
        paths: RunPaths,
        job: Mapping[str, Any],
        journal: Journal,
        history: History,
        queue: CaseQueue,
        devices: Sequence[Mapping[str, Any]],
    ) -> None:
        self.sealed = False
        self._paths = paths
        self._journal = journal
        self._history = history
        self._queue = queue
        self._taken: Set[str] = set()
        self._known: Set[str] = set()
        self._targets: Targets = [None]
        if job.get("replicate_devices"):
            self._targets = [device["uuid"] for device in devices] or [None]

    @property
    def newest(self) -> str:
        """Name of the newest batch taken in."""
        return max(self._taken, default="")

    def targets(self, devices: Sequence[Mapping[str, Any]]) -> Targets:
        """The lanes of the queue that may run on these devices."""
        return [None, devices[0]["uuid"]] if len(devices) == 1 else [None]

    def take_batches(self) -> None:
        """Put the cases of new batches into the queue."""
        for name in self._paths.batches():
            if name in self._taken:
                continue
            self._taken.add(name)
            batch = read_json(os.path.join(self._paths.queue, name))
            if not isinstance(batch, dict) or not isinstance(batch.get("items"), list):
                self._journal.append("problem", message=f"{name} in the queue is no batch of cases")
                continue
            again = name in self._history.batches
            skipped = self._history.released if again else ()
            added = [case_id for item in batch["items"] if (case_id := self._add(item, skipped)) is not None]
            self.sealed = bool(batch.get("sealed"))
            if not again:
                self._history.batches.add(name)
                self._history.released.difference_update(added)
                self._journal.append("queued", case_ids=added, sealed=self.sealed, batch=name)

    def forget(self, case_ids: Sequence[str]) -> None:
        """These cases were given back: they may come again."""
        self._known.difference_update(case_ids)
        self._history.released.update(case_ids)

    def requests(self) -> Iterator[Dict[str, Any]]:
        """Requests to the agent in the order in which they came, each once."""
        for name in self._paths.requests():
            path = os.path.join(self._paths.control, name)
            request = read_json(path)
            if isinstance(request, dict):
                yield request
            os.unlink(path)

    def _add(self, item: Any, skipped: Container[str]) -> Optional[str]:
        """Queue what is left of a case; its id if it is newly known."""
        try:
            item = finite(item)[0]
            case_id = str(item["case_id"])
            backends = [str(backend) for backend in item["backends"]]
            gang = int(item.get("devices_per_case") or 1)
            delivered_done = set(item.get("done") or ())
            str(item["payload"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._journal.append("problem", message=f"not a case: {type(error).__name__}: {error}")
            return None
        if case_id in self._known or case_id in skipped:
            return None
        self._known.add(case_id)
        for target in self._targets if gang == 1 else [None]:
            done = delivered_done | self._history.done(case_id, target)
            if any(backend not in done for backend in backends):
                self._queue.add(Entry(item, target, done, self._history.next_attempt(case_id)))
        return case_id
