"""A host in a folder: the real stub and agent, spoken to through the real start-up command over local pipes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import procs
from orchestrator.launch.bundle import agent_bundle, stub_source
from orchestrator.launch.python import stub_command
from tests.support.waiting import wait_for

PAYLOAD = Path(__file__).with_name("payload.py")
PATIENCE_S = 60.0


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    entry = procs.stat(pid)
    return entry is not None and entry.state != "Z"


class Call:
    """One exec channel: the stub with one request."""

    def __init__(self, process: subprocess.Popen[bytes], nonce: str) -> None:
        self.process = process
        self.nonce = nonce.encode()
        self.journal = bytearray()
        self.ended = threading.Event()
        self._lines: queue.Queue[tuple[dict[str, Any], bytes] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            mark, _, text = line.partition(b" ")
            if mark != self.nonce:
                continue
            message = json.loads(text)
            body = b""
            if message["type"] in ("events", "file"):
                body = self.process.stdout.read(message["length"])
                assert len(body) == message["length"]
            self._lines.put((message, body))
        self._lines.put(None)
        self.ended.set()

    def next(self) -> tuple[dict[str, Any], bytes]:
        """The next message and the bytes after it."""
        answer = self._lines.get(timeout=PATIENCE_S)
        if answer is None:
            assert self.process.stderr is not None
            raise AssertionError(f"the stub ended: {self.process.stderr.read().decode(errors='replace')}")
        return answer

    def expect(self, kind: str) -> dict[str, Any]:
        """The next message of a kind; events on the way are kept."""
        while True:
            message, body = self.next()
            if message["type"] == "events":
                assert message["offset"] + len(body) >= 0
                self.journal += body
            if message["type"] == kind:
                return message
            assert message["type"] in ("events", "alive", "launched"), message

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events received so far."""
        found = [json.loads(line) for line in bytes(self.journal).split(b"\n") if line.startswith(b"{")]
        return [event for event in found if kind in (None, event["type"])]

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Follow until so many events of a kind came."""
        while len(found := self.events(kind)) < count:
            self.expect("events")
        return found

    def say(self, **message: Any) -> None:
        """A control line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """Hang up as a lost connection does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.ended.wait(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


class Host:
    """A workdir and how to reach it."""

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "work dir é漢"
        self.traces = folder / "traces"
        self.traces.mkdir()
        self.run_id = "20260101-120000-abcd"
        self.run_dir = self.workdir / "runs" / self.run_id
        self.nonce = secrets.token_hex(8)
        self.env = {**os.environ, "FARBENCH_LEASE_DIR": str(folder / "leases"), "HOME": str(folder)}
        self.python = os.environ.get("FARBENCH_TEST_AGENT_PYTHON", sys.executable)
        self.job: dict[str, Any] = {
            "schema_version": 1, "run_id": self.run_id, "host": "testhost", "nonce": self.nonce,
            "python": sys.executable, "activate": None, "env": {"TRACES": str(self.traces)},
            "devices": {"cpu": 1}, "replicate_devices": False, "wait_for_devices": True,
            "payloads": {"fake": {"kind": "template", "script": "scripts/fake.py"}},
        }  # fmt: skip
        self.tree: dict[str, bytes] = {"scripts/fake.py": PAYLOAD.read_bytes()}
        self.calls: list[Call] = []
        self.uploads: list[list[str]] = []

    def call(
        self, command: dict[str, Any], files: dict[str, bytes] | None = None, upload: bool = True
    ) -> Call:
        """Open a channel with one request, upload what is missing."""
        agent, bundle = agent_bundle()
        contents = {agent: bundle, **(files or {})}
        nonce = secrets.token_hex(8)
        process = subprocess.Popen(
            stub_command(self.python), env=self.env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        request = {
            "nonce": nonce, "workdir": str(self.workdir), "agent": agent,
            "files": [[sha256, len(data)] for sha256, data in contents.items()], "command": command,
        }  # fmt: skip
        stub = stub_source()
        process.stdin.write(b"%d\n%b%b\n" % (len(stub), stub, json.dumps(request).encode()))
        process.stdin.flush()
        call = Call(process, nonce)
        self.calls.append(call)
        hello, _ = call.next()
        if hello["type"] != "hello":
            raise AssertionError(hello)
        self.uploads.append(hello["missing"])
        with contextlib.suppress(BrokenPipeError):  # what was refused is not read to its end
            for sha256 in hello["missing"] if upload else ():
                process.stdin.write(contents[sha256])
            process.stdin.flush()
        return call

    def launch(self, items: list[dict[str, Any]], sealed: bool = True, **more: Any) -> Call:
        """Launch the run and follow it."""
        files = {hashlib.sha256(data).hexdigest(): data for data in self.tree.values()}
        command = {
            "name": "launch", "run_id": self.run_id, "job": self.job,
            "tree": {path: hashlib.sha256(data).hexdigest() for path, data in self.tree.items()},
            "queue": items, "sealed": sealed, "secrets": {}, "follow": 0, **more,
        }  # fmt: skip
        return self.call(command, files)

    def run(self, items: list[dict[str, Any]], **more: Any) -> dict[str, dict[str, Any]]:
        """Launch, follow to the end, and give the measurements by `case/backend`."""
        call = self.launch(items, **more)
        end = call.expect("end")
        assert end["state"] == "finished", call.events()
        assert end["offset"] == len(call.journal)
        return measurements(call)

    def measurements(self) -> list[dict[str, Any]]:
        """What the journal on disk says, in order."""
        lines = (self.run_dir / "events.jsonl").read_bytes().split(b"\n")
        events = [event for event in map(_event, lines) if event is not None]
        return [event["measurement"] for event in events if event["type"] == "measurement"]

    def trace(self, name: str) -> list[str]:
        """Lines that payloads left."""
        path = self.traces / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def agent_pid(self) -> int:
        """The newest agent."""
        return int(json.loads((self.run_dir / "agent.json").read_bytes())["pid"])

    def close(self) -> None:
        """End everything, and see that nothing of the run is left."""
        for call in self.calls:
            call.close()
        identity = self.run_dir / "agent.json"
        if identity.exists():
            who = json.loads(identity.read_bytes())
            if procs.is_alive(who):
                os.kill(who["pid"], signal.SIGTERM)
                wait_for(lambda: not procs.is_alive(who))
        assert procs.end_marked(self.nonce, grace_s=0.0) == []


def measurements(call: Call) -> dict[str, dict[str, Any]]:
    """Measurements by `case/backend`; each must be there once."""
    found: dict[str, dict[str, Any]] = {}
    for event in call.events("measurement"):
        record = event["measurement"]
        key = f"{record['case_id']}/{record['backend']}"
        assert key not in found, f"{key} was measured twice"
        found[key] = record
    return found


def item(case_id: str, backends: tuple[str, ...] = ("torch",), **more: Any) -> dict[str, Any]:
    """A queue item."""
    params = more.pop("params", {})
    return {
        "case_id": case_id, "label": f"label of {case_id}", "payload": "fake", "params": params,
        "backends": list(backends), "measure": {}, "accuracy": {}, "timeout_s": 60, "compile_timeout_s": 60,
        "devices_per_case": 1, "done": [], **more,
    }  # fmt: skip


def does(case_id: str, **actions: str) -> dict[str, Any]:
    """A queue item whose backends behave as told, in this order."""
    return item(case_id, tuple(actions), params={"does": actions})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def _event(line: bytes) -> dict[str, Any] | None:
    """The event on a line; None for one that was cut off."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event
