"""Being asked for a passphrase on a terminal: the question stands alone, and Ctrl-C is an answer."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd, make_key

QUESTION = "passphrase of "
PATIENCE_S = 60


class Seat:
    """A user at a terminal, in which one command after another runs."""

    def __init__(self, desk: Laptop) -> None:
        self._desk = desk
        self._ours, self._theirs = pty.openpty()
        self._process: subprocess.Popen[bytes] | None = None
        self.seen = ""

    def start(self, *arguments: str) -> None:
        # A session that has no terminal yet gets the first one that it opens.
        line = 'exec "$@" <"$0" >"$0" 2>&1'
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", line, os.ttyname(self._theirs), sys.executable, "-m", "orchestrator", *arguments],
            cwd=self._desk.folder, env=self._desk.environ | {"TERM": "xterm"}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.seen = ""

    def read(self, seconds: float) -> str:
        """What appears within that time."""
        end, new = time.monotonic() + seconds, ""
        while (left := end - time.monotonic()) > 0:
            if select.select([self._ours], [], [], left)[0]:
                new += os.read(self._ours, 65536).decode()
        self.seen += new
        return new

    def read_until(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self.read(0.05)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """The command's exit code."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self.read(0.05)
        self.read(0.05)
        return self._process.returncode

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._theirs)[3] & termios.ECHO)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def seat(laptop: Laptop, host: Sshd) -> Iterator[Seat]:
    key = laptop.folder / "key"
    make_key(key, passphrase="open sesame é")
    (host.folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    laptop.hosts(host, identity_file=str(key))
    laptop.write("one.py", "print('{\"median_us\": 1.5}')\n")
    payload = {"script": "one.py", "results": "json_lines"}
    laptop.write("sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"m": [1]}}))
    seat = Seat(laptop)
    yield seat
    seat.close()


def test_a_question_stands_alone_on_the_screen_and_is_asked_once(seat: Seat) -> None:
    seat.start("run", "sweep.yaml")
    seat.read_until(": ")
    assert re.search(rf"\n{QUESTION}\S+/key: $", seat.seen)
    assert not seat.echoes()
    assert seat.read(0.5) == "", "a view that redraws itself would erase the question"
    seat.type("open sesame é\n")
    assert seat.end() == 0
    assert "1 measurement: 1 ok" in seat.seen
    assert seat.seen.count(QUESTION) == 1
    assert "sesame" not in seat.seen
    assert seat.echoes()


def test_ctrl_c_at_the_question_leaves_at_once_and_says_the_way_back(seat: Seat) -> None:
    seat.start("run", "sweep.yaml")
    seat.read_until(": ")
    run_id = seat.seen.split()[0]
    seat.type("\x03")
    assert seat.end() == 130
    assert f"follow it with: farbench resume {run_id}" in seat.seen
    assert "leaving as soon as" not in seat.seen
    assert seat.echoes()
    seat.start("resume", run_id)
    seat.read_until(": ")
    seat.type("open sesame é\n")
    assert seat.end() == 0
    assert "1 measurement: 1 ok" in seat.seen
