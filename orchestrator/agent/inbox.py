"""What comes to a running agent: batches of cases in `queue/`, requests in `control/`."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from .history import History
from .journal import Journal
from .paths import RunPaths, read_json
from .queueing import CaseQueue, Entry, Released
from .wire import finite

Targets = List[Optional[str]]
SUSPECT = 2
"""So many agents that died while a case was on may have died of it."""


class Inbox:
    """Takes each batch in once and each case once, however often they are delivered.

    A case that was given back may come again, in another batch. The newest batch says whether more will come. A batch
    may ask for one device model (`device_model`): its cases are others than the same cases for another model."""

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
        self._known: Set[Tuple[str, Optional[str]]] = set()
        self._models = list(dict.fromkeys(str(device["name"]) for device in devices))
        self._targets: Targets = [None]
        self._gang_targets: Targets = [None]
        if job.get("replicate_devices"):
            self._targets = [device["uuid"] for device in devices] or [None]
        elif job.get("replicate_models") and len(self._models) > 1:
            self._targets = self._gang_targets = [*self._models]

    @property
    def newest(self) -> str:
        """Name of the newest batch taken in."""
        return max(self._taken, default="")

    def targets(self, devices: Sequence[Mapping[str, Any]]) -> Targets:
        """The lanes of the queue that may run on these devices."""
        lanes: Targets = [None]
        if len({device["name"] for device in devices}) == 1:
            lanes.append(devices[0]["name"])
        return [*lanes, devices[0]["uuid"]] if len(devices) == 1 else lanes

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
            model = None if batch.get("device_model") is None else str(batch["device_model"])
            again = name in self._history.batches
            skipped = self._history.released if again else set()
            items = sorted(batch["items"], key=self._is_suspect)  # stable
            added = [case_id for item in items if (case_id := self._add(item, model, skipped)) is not None]
            self.sealed = bool(batch.get("sealed"))
            if not again:
                self._history.batches.add(name)
                self._history.released.difference_update((case_id, model) for case_id in added)
                self._journal.append(
                    "queued", case_ids=added, sealed=self.sealed, batch=name, **for_model(model), **_id(batch)
                )
            if added and model is not None and model not in self._models:
                self._journal.append("problem", message=f"this host has no {model} any more")
                self.release({model: added})

    def release(self, released: Released, reason: str = "") -> None:
        """These cases are given back, and told so: they may come again. `reason` when we can do nothing more here."""
        for model, case_ids in released.items():
            keys = [(case_id, model) for case_id in case_ids]
            self._known.difference_update(keys)
            self._history.released.update(keys)
            why = {"reason": reason} if reason else {}
            self._journal.append("released", case_ids=case_ids, **for_model(model), **why)

    def requests(self) -> Iterator[Dict[str, Any]]:
        """Requests to the agent in the order in which they came, each once."""
        for name in self._paths.requests():
            path = os.path.join(self._paths.control, name)
            request = read_json(path)
            if isinstance(request, dict):
                yield request
            os.unlink(path)

    def _is_suspect(self, item: Any) -> bool:
        """Whether agents have died while the case was on, perhaps of it: the others are measured first."""
        case_id = item.get("case_id") if isinstance(item, dict) else None
        return self._history.ended_agents(str(case_id)) >= SUSPECT

    def _add(self, item: Any, model: Optional[str], skipped: Set[Tuple[str, Optional[str]]]) -> Optional[str]:
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
        key = (case_id, model)
        if key in self._known or key in skipped:
            return None
        self._known.add(key)
        if model is not None:
            targets: Targets = [model] if model in self._models else []
        else:
            targets = self._targets if gang == 1 else self._gang_targets
        for target in targets:
            done = delivered_done | self._history.done(case_id, target)
            if any(backend not in done for backend in backends):
                attempt = self._history.next_attempt(case_id)
                reported = self._history.reported(case_id, target)
                self._queue.add(Entry(item, target, done, attempt, model, reported))
        return case_id


def for_model(model: Optional[str]) -> Dict[str, str]:
    """The field of an event that says for which device model its cases are, where that is not all the same."""
    return {} if model is None else {"device_model": model}


def _id(batch: Mapping[str, Any]) -> Dict[str, Any]:
    return {"id": batch["id"]} if isinstance(batch.get("id"), str) else {}
