"""Between the journals and the dealer: what events mean for who holds which case, and what is left of a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.events import journal as events
from orchestrator.model import Status
from orchestrator.run.dealer import Action, Dealer, Enqueue, Release, Seal

Item = Mapping[str, Any]


class Dealing:
    """Hears every event (as a listener of the fold) and tells the dealer; turns its actions into control messages."""

    def __init__(self, items: Mapping[str, Item], hosts: Sequence[str]) -> None:
        self.dealer = Dealer(list(items), hosts)
        self._items = items
        self._backends = {case_id: set(item["backends"]) for case_id, item in items.items()}
        self._measured: dict[
            tuple[str, str], set[str]
        ] = {}  # (case, model) -> backends with a result, until all have
        self._models: dict[str, dict[str, str]] = {}  # host -> UUID -> model
        self._begun: dict[str, int] = {}  # host -> where in its journal the newest agent began

    def hear(self, host: str, event: events.Event) -> None:
        """An event of a host's journal."""
        match event:
            case events.AgentStarted():
                before, self._begun[host] = self._begun.get(host), event.offset or 0
                if before is not None and self._begun[host] <= before:
                    self.dealer.gone(host, forgotten=True)  # another journal: the run's folder was lost
                else:
                    self.dealer.restarted(host)
            case events.Devices():
                self._models[host] = {device.uuid: device.model for device in event.devices}
                if event.devices:
                    self.dealer.ready(host, Counter(device.model for device in event.devices))
            case events.Queued():
                self.dealer.queued(host, event.device_model, event.case_ids)
            case events.LeaseWait():
                self.dealer.waiting(host, self._model(host, [event.device]), True)
            case events.WorkerChanged():
                self.dealer.waiting(host, self._model(host, event.devices), False)
            case events.CaseChanged(type="case_started"):
                self.dealer.started(host, self._model(host, event.devices), event.case_id)
            case events.CaseChanged():
                self.dealer.stopped(host, self._model(host, event.devices), event.case_id)
            case events.Measured():
                self._note(host, event)
            case events.Released():
                self.dealer.released(host, event.device_model, event.case_ids)
                if event.reason:
                    self.dealer.gone(host)

    def control(self, action: Action) -> dict[str, Any]:
        """The message that carries an action out."""
        match action:
            case Enqueue():
                items = [self._item(case_id, action.model) for case_id in action.case_ids]
                return {"type": "enqueue", "items": items, "sealed": False, "device_model": action.model}
            case Release():
                case_ids = list(action.case_ids)
                return {"type": "release", "case_ids": case_ids, "device_model": action.model}
            case Seal():
                return {"type": "enqueue", "items": [], "sealed": True}

    def _item(self, case_id: str, model: str) -> dict[str, Any]:
        """A case, without the backends that another host has measured already."""
        item = dict(self._items[case_id])
        measured = self._measured.get((case_id, model), ())
        return {**item, "done": [*item["done"], *(b for b in item["backends"] if b in measured)]}

    def _model(self, host: str, uuids: Sequence[str]) -> str:
        models = self._models.get(host, {})
        if uuids and uuids[0] in models:
            return models[uuids[0]]
        return next(iter(models.values()), "")

    def _note(self, host: str, event: events.Measured) -> None:
        record = event.measurement
        case_id, status = str(record.get("case_id")), str(record.get("status"))
        wanted = self._backends.get(case_id)
        if wanted is None or status in (Status.LOST, Status.CANCELLED):
            return
        device = record.get("device")
        uuid = device.get("uuid") if isinstance(device, dict) else None
        model = self._model(host, [uuid] if isinstance(uuid, str) else [])
        measured = self._measured.setdefault((case_id, model), set())
        measured.add(event.asked or str(record.get("backend")))
        if measured >= wanted - set(self._items[case_id]["done"]):
            # Kept: a host that comes back may bring a result of it again.
            self.dealer.finished(host, model, case_id)
