"""Secrets are hidden in what a host says, also where only the end of one is left."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from orchestrator.errors import HostUnusable
from orchestrator.launch.exchange import Exchange
from orchestrator.launch.files import FileSet
from orchestrator.launch.hiding import Hiding

SECRET = 'sé"cr\\et-9f3a'


@pytest.mark.parametrize(
    "written", [SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1]]
)
def test_a_value_and_its_end(written: str) -> None:
    hiding, whole = Hiding([SECRET, "abc"]), written.encode()
    assert hiding.hide(b"x " + whole + b" y" + whole) == b"x *** y***"
    for cut in range(1, len(whole) - 3):
        assert hiding.hide(whole[cut:] + b" y") == b"*** y"


def test_short_values_are_no_secrets() -> None:
    assert Hiding(["abc", ""]).hide(b"abcabc") == b"abcabc"


class Parrot:
    """A process that prints what it is sent, on one of its streams, and ends."""

    def __init__(self, on_stderr: bool) -> None:
        self.on_stderr = on_stderr
        self.heard = b""

    def write(self, data: bytes, timeout_s: float) -> None:
        self.heard += data

    def readline(self, timeout_s: float, limit: int) -> bytes:
        line, self.heard = (b"", self.heard) if self.on_stderr else (self.heard, b"")
        return line

    def stderr_tail(self) -> bytes:
        return self.heard[-100:]

    def wait(self, timeout_s: float) -> tuple[int, None]:
        return 3, None


@pytest.mark.parametrize("on_stderr", [False, True])
def test_a_host_that_prints_what_it_is_sent_betrays_nothing(on_stderr: bool) -> None:
    exchange = Exchange(cast("Any", Parrot(on_stderr)), "h1")
    with pytest.raises(HostUnusable) as caught:
        exchange.begin(None, {"command": {"name": "launch", "secrets": {"TOKEN": SECRET}}}, FileSet())
    assert '"secrets": {"TOKEN": "***"}' in str(caught.value)
    assert SECRET not in exchange.noise[1]
