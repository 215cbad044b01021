"""Making a host's payload environment what a profile says, only where it is not so already."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import HostError, HostUnusable, UsageError
from orchestrator.launch.dialogue import Dialogue
from orchestrator.launch.exchange import Exchange
from orchestrator.launch.messages import printable

from .profiles import Profile
from .wheelhouse import Wheelhouse

FORMAT = 1
"""Raised when an environment must be made anew though its requirements are the same."""
SILENCE_S = 120.0
"""The host says something every 5 s while it installs."""


@dataclass(frozen=True)
class Outcome:
    """`changed` is False when there was nothing to do; `reasons` say why there was."""

    environment: str
    changed: bool
    python: str
    freeze: Mapping[str, Any]
    reasons: Sequence[str] = ()

    def to_json(self, host: str) -> dict[str, Any]:
        """`setup --json`."""
        return {
            "host": host, "environment": self.environment, "changed": self.changed, "python": self.python,
            "reasons": list(self.reasons), "freeze": dict(self.freeze),
        }  # fmt: skip


def set_up(
    dialogue: Dialogue,
    host: str,
    profile: Profile,
    *,
    name: str,
    wheelhouse: Wheelhouse | None = None,
    extra_indexes: Sequence[str] = (),
    base_python: str | None = None,
    installer: str | None = None,
    force: bool = False,
    even_without_gpu: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Create or update the environment `name` on a host. Raises `HostError`; the environment before is then still in use.

    Raises `UsageError` where a profile for GPUs is to be made on a host that has none, unless `even_without_gpu`."""
    digest = _digest(profile, wheelhouse, extra_indexes, base_python)
    python, freeze, reasons = _present(dialogue, host, name, digest, force)
    if not reasons:
        return Outcome(name, False, python, freeze)
    if profile.for_gpus and not even_without_gpu and not _has_gpu(dialogue):
        raise UsageError(
            f"{host} has no GPU (none that its driver shows, or that `devices:` in hosts.yaml allows), and {profile.name} "
            "installs several gigabytes for one. Nothing was installed; --yes installs it all the same"
        )
    if profile.usual_index and wheelhouse is None and not extra_indexes:
        on_progress(f"{name}: {profile.usual_index}")
    for reason in reasons:
        on_progress(f"{name}: {reason}")
    command = {
        "name": "setup", "environment": name, "profile": profile.name, "digest": digest, "requirements": profile.text,
        "wheels": None if wheelhouse is None else wheelhouse.wheels, "base_python": base_python,
        "python_range": profile.pythons, "installer": installer, "extra_indexes": list(extra_indexes),
    }  # fmt: skip
    exchange, _ = dialogue.converse(command, None if wheelhouse is None else wheelhouse.files)
    try:
        installed = _installed(exchange, host, on_progress)
    except HostUnusable as error:
        hint = error.hint or profile.note if error.step == "install" else error.hint
        raise HostUnusable(host, error.bare_message, step=error.step, hint=hint) from error
    finally:
        exchange.close()
    return Outcome(name, True, _text(installed, "python"), _mapping(installed, "freeze"), reasons)


def _has_gpu(dialogue: Dialogue) -> bool:
    _, found = dialogue.probe()
    return any(device.kind == "gpu" for device in found.devices)


def _present(
    dialogue: Dialogue, host: str, name: str, digest: str, force: bool
) -> tuple[str, Mapping[str, Any], list[str]]:
    """(its interpreter, its freeze, why it must be made anew) of the environment as it is."""
    exchange, _ = dialogue.converse({"name": "environment", "environment": name})
    try:
        found = exchange.answer(dict[str, Any], "environment", SILENCE_S)
    finally:
        exchange.close()
    freeze = found.get("freeze")
    if not isinstance(freeze, dict):
        return _text(found, "python"), {}, ["is not there yet"]
    reasons = [printable(str(change), 300) for change in found.get("changed") or []]
    if reasons:
        reasons = ["was changed since it was installed: " + ", ".join(reasons[:5])]
    if freeze.get("digest") != digest:
        reasons.append("was installed from other requirements, or other wheels")
    if force and not reasons:
        reasons.append("is as it should be, and made anew all the same")
    return _text(found, "python"), freeze, reasons


def _installed(exchange: Exchange, host: str, on_progress: Callable[[str], None]) -> Mapping[str, Any]:
    while True:
        message = exchange.next_message(SILENCE_S)
        if message is None:
            raise HostError(host, "our program there ended before the environment was made", step="install")
        if message["type"] == "installed":
            return message
        if message["type"] == "progress" and isinstance(message.get("text"), str) and message["text"]:
            on_progress(printable(message["text"], 500))


def _digest(
    profile: Profile, wheelhouse: Wheelhouse | None, extra_indexes: Sequence[str], base_python: str | None
) -> str:
    """What the environment is made from; equal digests need no new build."""
    facts = {
        "format": FORMAT, "requirements": list(profile.requirements), "pythons": profile.pythons, "base_python": base_python,
        "wheels": None if wheelhouse is None else wheelhouse.wheels,
        "extra_indexes": [re.sub(r"(?<=://)[^/@]+@", "", url) for url in extra_indexes],
    }  # fmt: skip
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8")).hexdigest()


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    return printable(value) if isinstance(value, str) else ""


def _mapping(message: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = message.get(key)
    return value if isinstance(value, dict) else {}
