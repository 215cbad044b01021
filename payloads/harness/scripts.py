"""The payloads that one worker serves: its own, and those of the run's other scripts, loaded at their first case.

Importing torch again in another process takes longer than measuring a case, and the device stands idle meanwhile.
"""

from __future__ import annotations

import os
import runpy
from typing import Any, Dict, List, Mapping, Optional

from . import failures, settings
from .declare import Payload

_waiting: Optional[List[Payload]] = None


def taken(payload: Payload) -> bool:
    """For `main`: whether the script is only being loaded, so that its payload was left here and must not be run."""
    if _waiting is None:
        return False
    _waiting.append(payload)
    return True


class Scripts:
    """Payloads by the name of their script; all scripts lie in one folder."""

    def __init__(self, own: str, payload: Payload) -> None:
        self._folder = os.path.dirname(os.path.abspath(own))
        self._own = os.path.basename(own)
        self._payloads = {self._own: payload}
        self._settings = settings.Apart(self._own)

    def payload_of(self, message: Mapping[str, Any]) -> Payload:
        """The payload of an agent's message. Raises whatever its script raises when it is loaded."""
        name = os.path.basename(str(message.get("script") or self._own))
        if name not in self._payloads:
            path = os.path.join(self._folder, name)
            self._payloads[name] = self._settings.load(name, lambda: _load(path))
        self._settings.enter(name)
        return self._payloads[name]


def refusals(error: Exception, item: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """The outcome of every backend of a case whose script does not load."""
    failures.log(error, "load {}".format(item["payload"]))
    status, reason = failures.classify(error)
    return [{"backend": name, "status": status, "reason": reason} for name in item["backends"]]


def _load(path: str) -> Payload:
    global _waiting
    _waiting = []
    try:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as error:
            raise RuntimeError(
                "{} called sys.exit({!r})".format(os.path.basename(path), error.code)
            ) from error
        if len(_waiting) != 1:
            raise RuntimeError("{} does not end in one call of main".format(os.path.basename(path)))
        return _waiting[0]
    finally:
        _waiting = None
