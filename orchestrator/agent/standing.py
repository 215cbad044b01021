"""How a run stands on this host, as its journal tells: results by status, and whom it waits for."""

from __future__ import annotations

from typing import Any, Dict

from .journal import read_events
from .paths import RunPaths


def standing(paths: RunPaths) -> Dict[str, Any]:
    """{"counts": {status: n}, "waiting": {device: holder}}."""
    counts: Dict[str, int] = {}
    waiting: Dict[str, Any] = {}
    for event in read_events(paths.journal):
        kind = event.get("type")
        if kind == "measurement":
            status = str(event["measurement"]["status"])
            counts[status] = counts.get(status, 0) + 1
        elif kind == "lease_wait":
            waiting[str(event.get("device"))] = event.get("holder")
        elif kind == "worker_starting":
            for device in event.get("devices") or ():
                waiting.pop(device, None)
        elif kind in ("agent_started", "agent_finished"):
            waiting.clear()
    return {"counts": counts, "waiting": waiting}
