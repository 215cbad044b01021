"""GPU clocks held at one frequency while cases ask for it (`lock_clocks`), and given back whatever becomes of us.

A small process of its own, the guardian, runs every nvidia-smi that changes a clock. It reads what to do from a pipe
whose other end only the agent has: when that end closes, for whatever reason (SIGKILL included), it gives the clocks
back and ends. Because it is the guardian that sets them, no change can come after the last reset.

The driver does not tell whether clocks were locked before, so giving back means the driver's default (`nvidia-smi -rgc`).
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from typing import Dict, List, Mapping, Optional, Sequence, Union

from . import children, smi

ANSWER_S = 40.0

# Standard library only and nothing of ours: it must not depend on files that go with a run.
_GUARDIAN = r"""
import os, signal, subprocess, sys
program, uuids = sys.argv[1], sys.argv[2:]

def call(uuid, option):
    try:
        done = subprocess.run([program, "-i", uuid, option], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=15)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = " ".join(done.stdout.decode("utf-8", "replace").split())
    # Without the right it says so and exits with 0 on some drivers.
    denied = "not have permission" in said or "Insufficient Permissions" in said or "not supported" in said.lower()
    return "" if done.returncode == 0 and not denied else said or "exit code %d" % done.returncode

def reset():
    for uuid in uuids:
        for _ in range(3):
            if not call(uuid, "-rgc"):
                break

def leave(*_):
    reset()
    os._exit(0)

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, leave)
for line in sys.stdin:
    problems = [problem for problem in (call(uuid, "--lock-gpu-clocks=" + line.strip()) for uuid in uuids) if problem]
    os.write(1, (problems[0].replace("\n", " ") if problems else "ok").encode("utf-8", "replace") + b"\n")
leave()
"""


class ClockLock:
    """The clocks of a crew's GPUs. Every call takes seconds at most; what fails is said, and never raised."""

    def __init__(self, devices: Sequence[Mapping[str, object]], environ: Mapping[str, str]) -> None:
        self._uuids = [str(device["uuid"]) for device in devices if device["kind"] == "gpu"]
        self._environ = {name: value for name, value in environ.items() if not name.startswith("FARBENCH_")}
        self._program = smi.find(environ)
        self._guardian: Optional[subprocess.Popen[bytes]] = None
        self.locked_mhz: Optional[int] = None

    def hold(self, wanted: Union[bool, int, None]) -> Optional[str]:
        """Lock the clocks at `wanted` MHz (True: the GPU's default application clock), or give them back (False, None).

        Returns why it could not be done, or None."""
        if wanted is None or wanted is False:
            return self.give_back()
        if not self._uuids:
            return "it has no GPU"
        if any(uuid.startswith("MIG-") for uuid in self._uuids):
            return "a MIG slice shares its GPU's clocks with others"
        if self._program is None:
            return "nvidia-smi was not found"
        try:
            mhz = (
                default_clock_mhz(self._program, self._uuids[0], self._environ)
                if wanted is True
                else int(wanted)
            )
        except smi.SmiError as error:
            return str(error)
        if mhz == self.locked_mhz and self._guardian is not None and self._guardian.poll() is None:
            return None
        problem = self._ask(mhz)
        if problem is None:
            self.locked_mhz = mhz
        else:
            self.give_back()
        return problem

    def give_back(self) -> Optional[str]:
        """Let the driver choose the clocks again. Returns when that is done; why it is not, or None."""
        guardian, self._guardian, self.locked_mhz = self._guardian, None, None
        if guardian is None:
            return None
        assert guardian.stdin is not None
        assert guardian.stdout is not None
        guardian.stdin.close()
        try:
            code: Optional[int] = guardian.wait(ANSWER_S * 2)
        except subprocess.TimeoutExpired:
            code = None
        guardian.stdout.close()
        if code == 0:
            return None
        # It was killed: its work is left to us.
        return self._reset()

    def _reset(self) -> Optional[str]:
        assert self._program is not None
        for uuid in self._uuids:
            try:
                smi.run([self._program, "-i", uuid, "-rgc"], self._environ, ANSWER_S)
            except smi.SmiError as error:
                return str(error)
        return None

    def _ask(self, mhz: int) -> Optional[str]:
        answer = ""
        for _ in range(2):  # the guardian may have been asked to end, and be about to
            try:
                if self._guardian is None or self._guardian.poll() is not None:
                    self._guardian = self._start()
                assert self._guardian.stdin is not None
                self._guardian.stdin.write(b"%d,%d\n" % (mhz, mhz))
                self._guardian.stdin.flush()
                answer = _line(self._guardian)
            except BrokenPipeError:
                pass
            except OSError as error:
                return f"the guardian of the clocks cannot be used: {error.strerror or error}"
            if answer:
                return None if answer == "ok" else answer
            if self._guardian is not None:
                self._guardian.kill()
                self._guardian.wait()
        return "nvidia-smi did not answer"

    def _start(self) -> "subprocess.Popen[bytes]":
        assert self._program is not None
        with children.start() as note:
            guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARDIAN, self._program, *self._uuids],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=self._environ,
                start_new_session=True,  # what ends our session or group must leave it the time to reset
            )
            note(guardian.pid)
        return guardian


def default_clock_mhz(program: str, uuid: str, environ: Dict[str, str]) -> int:
    """The clock a GPU is meant to run applications at, else its highest. Raises `smi.SmiError`."""
    fields: List[str] = ["clocks.default_applications.graphics", "clocks.max.graphics"]
    for value in smi.query(program, uuid, fields, environ, ANSWER_S):
        if value is not None and value > 0:
            return int(value)
    raise smi.SmiError(
        "nvidia-smi tells neither the default nor the highest clock of this GPU: name one in MHz"
    )


def _line(process: "subprocess.Popen[bytes]") -> str:
    """One line of its output, or what came of it within the time it may take."""
    assert process.stdout is not None
    descriptor, data = process.stdout.fileno(), b""
    deadline = time.monotonic() + ANSWER_S
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not data.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(descriptor, 4096)
            if not chunk:
                break
            data += chunk
    return data.decode("utf-8", "replace").strip()
