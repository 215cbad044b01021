"""Which controller may steer a run: the one that took it over last. Others may look on.

A run's archive has one coordinator by its own lock. A copy of that archive on another laptop, or a coordinator that
slept through its successor's work, knows nothing of that lock: here the newest session stands, by a token and an epoch
that only grows, and cases are never dealt out by two at once.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from .launcher import request
from .paths import RunPaths, read_json, write_json


def take_over(paths: RunPaths, command: Mapping[str, Any]) -> None:
    """Note the session that asks for the run (`claim`), unless it has it already; the agent journals it."""
    token = command.get("coordinator")
    if not isinstance(token, str) or not command.get("claim") or may_steer(paths, token, strict=True):
        return
    before = read_json(paths.coordinator)
    epoch = int(before.get("epoch") or 0) + 1 if isinstance(before, dict) else 1
    write_json(paths.coordinator, {"epoch": epoch, "token": token})
    request(paths, {"type": "coordinator", "epoch": epoch})


def may_steer(paths: RunPaths, token: Optional[str], strict: bool = False) -> bool:
    """Whether the session with this token is the newest; a run that nobody has claimed may be steered by anyone."""
    now = read_json(paths.coordinator)
    if not isinstance(now, dict):
        return not strict
    return now.get("token") == token
