"""Running a recipe on its host, through the agent: the folder's own command, on the device it was measured on, under its lease."""

from __future__ import annotations

import os
import secrets as randomness
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.archive import new_run_id
from orchestrator.errors import HostUnusable
from orchestrator.events.journal import (
    BadLine,
    JournalLines,
    LeaseWait,
    Measured,
    Problem,
    parse_line,
    parse_measurement,
)
from orchestrator.launch.dialogue import Dialogue, End, Events, Following
from orchestrator.model import Measurement
from orchestrator.repro.folder import files_of
from orchestrator.repro.recipe import Recipe
from orchestrator.transport.base import Transport

START_S = 60
"""The program starts and imports its libraries within the time that farbench gives it; by hand there is no such limit."""
_FOLDER = "scripts/repro/"
_OF_A_HARNESS = ("timing", "accuracy", "metrics", "verdict", "reasons", "extra")


@dataclass(frozen=True)
class Comeback:
    """What the host measured now. `run_id` names the run in its work folder, where the log is."""

    run_id: str
    measurement: Measurement
    problems: tuple[str, ...] = ()


def run_again(
    recipe: Recipe,
    transport: Transport,
    *,
    secrets: Mapping[str, str],
    tell: Callable[[str], None] = lambda message: None,
    clock: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Comeback:
    """Stage the folder's files, run its command once, and read its result. `tell` hears what somebody waiting should.

    Nothing is left running on the host when this ends, also by an exception. Raises `HostError`."""
    run_id = new_run_id(clock, random_bytes)
    dialogue = Dialogue(transport, recipe.spec)
    files = files_of(recipe)
    following = dialogue.launch(
        job=_job(recipe, run_id, files),
        tree={_FOLDER + name: content for name, content in files.items()},
        queue=[_item(recipe)],
        secrets=secrets,
    )
    ended = False
    try:
        measurements, problems = _follow(following, recipe, tell)
        ended = True
    finally:
        if not ended:
            dialogue.cancel(run_id)
    found = next((m for m in measurements if _is_the_same(m, recipe)), None)
    if found is None:
        raise HostUnusable(
            recipe.spec.name,
            "; ".join(problems) or f"it measured {len(measurements)} things, and not this one",
            step="repro",
        )
    if not recipe.is_script:
        found = found.model_copy(update={"row": recipe.measurement.row})
    return Comeback(run_id, found, tuple(problems))


def _job(recipe: Recipe, run_id: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The recipe's job, with its program as a script payload and its device alone."""
    name = recipe.measurement.payload
    config: dict[str, Any] = dict(recipe.job["payloads"][name])
    if not recipe.is_script:
        config = {
            "kind": "script", "python": True, "collect": [], "keys": ["case_id"],
            "results": {"from": "stdout", "format": "json_lines"},
        }  # fmt: skip
    config["files"] = {path: _FOLDER + path for path in files}
    return {
        **recipe.job,
        "run_id": run_id,
        "nonce": randomness.token_hex(16),
        "devices": list(recipe.devices) or recipe.job["devices"],
        "replicate_devices": False,
        "payloads": {name: config},
    }


def _item(recipe: Recipe) -> dict[str, Any]:
    (backend,) = recipe.item["backends"]
    patience = recipe.item["timeout_s"]
    if not recipe.is_script:
        patience += recipe.item.get("compile_timeout_s") or 0
    return {
        **recipe.item,
        "commands": {backend: list(recipe.argv)},
        "timeout_s": patience + START_S,
        "done": [],
    }


def _follow(
    following: Following, recipe: Recipe, tell: Callable[[str], None]
) -> tuple[list[Measurement], list[str]]:
    lines = JournalLines()
    found: list[Measurement] = []
    problems: list[str] = []
    for message in following:
        if isinstance(message, End) and message.state != "finished" and not found:
            problems.append(f"the agent ended as {message.state}")
        if not isinstance(message, Events):
            continue
        for _, line in lines.feed(message.data):
            try:
                event = parse_line(line or b"null")
                if isinstance(event, Measured):
                    found.append(_as_measured(parse_measurement(event.measurement, host=recipe.spec.name)))
            except BadLine as error:
                problems.append(str(error))
                continue
            if isinstance(event, Problem):
                problems.append(event.message)
            if isinstance(event, LeaseWait):
                tell(f"{event.device} is measured on by somebody else; waiting")
    return found, problems


def _as_measured(m: Measurement) -> Measurement:
    """A harness prints its timing whole; what reads programs' output keeps that beside what it understands."""
    if m.status not in ("ok", "incorrect") or not isinstance(m.extra.get("timing"), dict):
        return m
    printed = {name: m.extra[name] for name in _OF_A_HARNESS if m.extra.get(name) is not None}
    rest = printed.pop("extra", None)
    try:
        return parse_measurement(
            {**m.model_dump(mode="json"), **printed, "extra": rest if isinstance(rest, dict) else {}}
        )
    except BadLine:
        return m  # what the program prints has these names, but is not a harness's


def _is_the_same(m: Measurement, recipe: Recipe) -> bool:
    before = recipe.measurement
    if recipe.is_script:
        return m.backend == before.backend and m.row == before.row
    printed = (m.row or {}).get("case_id", before.case_id)
    return m.backend == before.backend and printed == before.case_id
