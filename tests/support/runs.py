"""Small runs for tests that speak with the agent directly: a script payload, its job, its cases, and what came back."""

from __future__ import annotations

import json
import secrets
from typing import Any

from orchestrator.launch.dialogue import Dialogue, Events, Message
from orchestrator.transport.base import Transport

SCRIPT = b"import json, sys\nprint(json.dumps({'time_us': 5, 'seen': sys.argv[1]}))\n"
TREE = {"scripts/bench/bench.py": SCRIPT}


def job(run_id: str, **changes: Any) -> dict[str, Any]:
    """A job whose one payload, `bench`, runs scripts/bench/bench.py on one CPU slot."""
    bench = {
        "kind": "script", "files": {"bench.py": "scripts/bench/bench.py"}, "python": True, "collect": [],
        "results": {"from": "stdout", "format": "json_lines"}, "keys": [],
    }  # fmt: skip
    return {
        "schema_version": 1, "run_id": run_id, "host": "gpu1", "nonce": secrets.token_hex(8), "python": None, "activate": None,
        "env": {}, "devices": {"cpu": 1}, "replicate_devices": False, "wait_for_devices": True, "payloads": {"bench": bench},
        **changes,
    }  # fmt: skip


def item(case_id: str, argument: str = "x") -> dict[str, Any]:
    """A case that gives `argument` to the script."""
    return {
        "case_id": case_id, "label": case_id, "payload": "bench", "params": {}, "backends": ["bench"], "measure": {},
        "accuracy": {}, "timeout_s": 60, "compile_timeout_s": 60, "devices_per_case": 1,
        "commands": {"bench": ["bench.py", argument]}, "done": [],
    }  # fmt: skip


def journal(messages: list[Message]) -> list[dict[str, Any]]:
    """The events of the host's journal among `messages`."""
    data = b"".join(message.data for message in messages if isinstance(message, Events))
    return [json.loads(line) for line in data.splitlines()]


def measurements(messages: list[Message]) -> list[dict[str, Any]]:
    """The records of the host's measurements among `messages`."""
    return [event["measurement"] for event in journal(messages) if event["type"] == "measurement"]


def run_one(
    transport: Transport,
    spec: Any,
    *,
    script: bytes = SCRIPT,
    argument: str = "x",
    run_id: str = "r1",
    **changes: Any,
) -> dict[str, Any]:
    """The record of one case of a run of its own; `changes` are keys of the job."""
    messages = list(
        Dialogue(transport, spec).launch(
            job=job(run_id, **changes), tree={"scripts/bench/bench.py": script}, queue=[item("c1", argument)]
        )
    )
    (record,) = measurements(messages)
    return record
