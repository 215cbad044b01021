"""A host that says anything at all: the answer is a HostError in bounded time, never a hang, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import HostError, HostUnreachable, HostUnusable
from orchestrator.launch import exchange
from orchestrator.launch.dialogue import Dialogue
from orchestrator.launch.fetching import fetch
from orchestrator.transport.open import Connections
from orchestrator.transport.output import Output
from tests.support.sshd import Spec, Sshd

# Stands where the login shell would: reads the request for its nonce, and says what it was told to.
SHELL = """\
import os, sys, json
n = int(sys.stdin.buffer.readline()); sys.stdin.buffer.read(n)
nonce = json.loads(sys.stdin.buffer.readline())["nonce"].encode()
reply = open(sys.argv[1], "rb").read().replace(b"@NONCE@", nonce)
os.write(2, b"\\x1b[31mstderr of the host\\n")
while reply:
    reply = reply[os.write(1, reply):]
if os.path.exists(sys.argv[1] + ".wait"):
    sys.stdin.buffer.read()
"""
HELLO = {
    "type": "hello", "missing": [], "workdir": "/w", "python": "/p", "version": "3.11.0", "uid": 0, "hostname": "h",
    "boot_id": "", "time": 1.0,
}  # fmt: skip


def line(**message: object) -> bytes:
    return b"@NONCE@ " + json.dumps(message).encode() + b"\n"


GREETING = line(**HELLO)
Host = Callable[[bytes], Dialogue]


@pytest.fixture
def host(make_sshd: Callable[..., Sshd], connections: Connections, tmp_path: Path) -> Host:
    (tmp_path / "shell.py").write_text(SHELL)
    spec = make_sshd(shell=f"/usr/bin/env python3 -I -S {tmp_path}/shell.py {tmp_path}/reply").spec()
    transport = connections.transport(spec)

    def answering(reply: bytes) -> Dialogue:
        (tmp_path / "reply").write_bytes(reply)
        return Dialogue(transport, spec)

    return answering


FOLLOWED = [
    (b"", "ended without an answer"),
    (b"@NONCE@", "ended without an answer"),
    (b"@NONCE@ {", "a message without an end"),
    (b"@NONCE@ {}\n", "not a message"),
    (b"@NONCE@ [" + b"[" * 100_000 + b"\n", "not JSON"),
    (b'@NONCE@ {"type": NaN}\n', "not JSON"),
    (b"@NONCE@ \xff\xfe\n", "not JSON"),
    (b"wrongnonce " + GREETING[8:], "ended without an answer"),
    (line(type="hello"), "hello: missing"),
    (line(**{**HELLO, "missing": ["0" * 64]}), "files that it was not offered"),
    (line(**{**HELLO, "missing": "../../etc/passwd"}), "hello: missing"),
    (line(type="launched", pid=1), "'launched' where 'hello' was due"),
    (line(type="refused", step="s\x1b[2J", path="/x", error="no\x07 room", hint="h"), "s[2J: /x: no room"),
    (line(type="refused"), "refused: step"),
    (GREETING, "ended before the run did"),
    (GREETING + line(type="events", offset=0, length=-1) + b"x", "events: length"),
    (GREETING + line(type="events", offset=0, length=10**12), "events: length"),
    (GREETING + line(type="events", offset=0, length=10) + b"short", "the answer broke off"),
    (GREETING + line(type="events", offset=7, length=0), "the journal from 7 on instead of 0"),
    (GREETING + line(type="alive", agent="perhaps", time=0), "alive: agent"),
    (GREETING + line(type="end", state="exploded", offset=0), "end: state"),
    (GREETING + line(type="\x1b]0;title\x07"), "unknown message while following"),
    (GREETING + b"x" * 5_000_000, "it prints without end"),
]


@pytest.mark.parametrize(("reply", "message"), FOLLOWED, ids=[message for _, message in FOLLOWED])
def test_nonsense_while_following(reply: bytes, message: str, host: Host) -> None:
    with pytest.raises(HostError) as caught:
        list(host(reply).follow("r1", 0))
    assert message in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_what_the_host_printed_is_in_the_message(host: Host) -> None:
    with pytest.raises(HostUnusable) as caught:
        host(b"some noise\r\nand more").status("r1")
    assert "some noise\n    and more" in str(caught.value)
    assert "[31mstderr of the host" in str(caught.value)


def test_a_host_that_never_answers(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "HELLO_TIMEOUT_S", 2.0)
    (tmp_path / "reply.wait").touch()
    with pytest.raises(HostUnusable, match="did not start our program within 2 s"):
        host(b"Are you sure? [y/n] ").status("r1")


def test_a_follower_that_falls_silent(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.launch.dialogue.SILENCE_S", 2.0)
    (tmp_path / "reply.wait").touch()
    with pytest.raises(HostUnreachable, match="no word from it for 2 s"):
        list(host(GREETING).follow("r1", 0))


def test_a_host_that_takes_no_files(host: Host) -> None:
    """It asks for them, says why it cannot, and is gone before they all have come."""
    from orchestrator.launch.files import FileSet

    files = FileSet({"big": b"x" * 50_000_000})
    hello = line(**{**HELLO, "missing": [files.tree["big"]]})
    refusal = line(
        type="refused", step="store", path="/w/cache", error="No space left on device", hint="free some"
    )
    with pytest.raises(HostUnusable) as caught:
        host(hello + refusal).launch(job={"run_id": "r1"}, tree=files, queue=[])
    assert str(caught.value) == "gpu1: store: /w/cache: No space left on device\n  free some"


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", "", "logs/\0"])
def test_paths_that_lead_out_are_never_handed_on(path: str, host: Host) -> None:
    with pytest.raises(HostUnusable, match="outside the run's folder"):
        host(GREETING + line(type="files", files=[["logs/ok", 1], [path, 1]])).list_files("r1")


def test_several_files_come_in_one_dialogue(host: Host) -> None:
    reply = (
        GREETING + line(type="file", path="a", size=5, length=3) + b"abc"
        + line(type="file", path="a", size=5, length=2) + b"de" + line(type="same", path="b", size=7)
        + line(type="file", path="c", size=0, length=0) + line(type="large", path="d", size=1000)
        + line(type="unread", path="e", error="gone\x1b") + line(type="fetched")
    )  # fmt: skip
    came = [
        (f.path, f.size, f.content and f.content.read(), f.is_same, f.is_large, f.error)
        for f in fetch(host(reply), "r1", dict.fromkeys("abcde"), 100)
    ]
    assert came == [
        ("a", 5, b"abcde", False, False, None), ("b", 7, None, True, False, None), ("c", 0, b"", False, False, None),
        ("d", 1000, None, False, True, None), ("e", 0, None, False, False, "gone"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "reply",
    [
        line(type="file", path="x", size=100, length=100) + b"x" * 100,
        line(type="file", path="x", size=5, length=6) + b"x" * 6,
        line(type="file", path="x", size=5, length=3) + b"xxx" + line(type="file", path="x", size=6, length=3) + b"xxx",
        line(type="file", path="x", size=5, length=0) + line(type="file", path="x", size=5, length=0),
        line(type="file", path="y", size=1, length=1) + b"y",
        line(type="dance", path="x"),
        line(type="same", path="x"),
        b"",
    ],
)  # fmt: skip
def test_other_files_than_were_asked_for(host: Host, reply: bytes) -> None:
    with pytest.raises(HostError):
        list(fetch(host(GREETING + reply), "r1", {"x": None}, 10))


def test_a_line_of_many_megabytes(host: Host) -> None:
    with pytest.raises(HostUnusable, match="makes no sense"):
        host(GREETING + b'@NONCE@ {"type": "' + b"y" * 70_000_000).status("r1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(
    ["hello", "same", "large", "unread", "fetched", "refused", "events", "alive", "end", "launched", "file", "files", "status", "cancelled", "probe", "runs", "gc",
     "other_journal", "facts", "x"]
)  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(
        ["missing", "offset", "length", "state", "agent", "time", "step", "error", "pid", "files", "size", "path", "devices",
         "modules", "runs", "removed", "bytes", "measurements", "already", "run_dir", "behind", "sealed", "reason"]
    ),
    JSON,
)  # fmt: skip
MESSAGE = st.tuples(TYPES, FIELDS).map(lambda pair: line(**{**pair[1], "type": pair[0]}))
RIGHT = st.sampled_from(
    [line(type="status", agent=True, state="running", offset=1, pid=1), line(type="file", path="x", size=3, length=3) + b"abc",
     line(type="same", path="logs/a", size=1), line(type="fetched"),
     line(type="files", files=[["logs/a", 1]]), line(type="runs", runs=[]), line(type="gc", removed=[], bytes=0),
     line(type="cancelled", measurements=1), line(type="events", offset=0, length=4) + b"abc\n",
     line(type="end", state="finished", offset=4), line(type="alive", agent=True, time=1.0)]
)  # fmt: skip
REPLY = st.tuples(
    st.sampled_from([b"", GREETING]), st.lists(MESSAGE | RIGHT | st.binary(max_size=40), max_size=4)
).map(lambda parts: parts[0] + b"".join(parts[1]))
ASKED: dict[str, Callable[[Dialogue], object]] = {
    "follow": lambda dialogue: list(dialogue.follow("r1", 0)),
    "launch": lambda dialogue: list(dialogue.launch(job={"run_id": "r1"}, tree={}, queue=[])),
    "status": lambda dialogue: dialogue.status("r1"),
    "cancel": lambda dialogue: dialogue.cancel("r1"),
    "fetch": lambda dialogue: list(fetch(dialogue, "r1", {"x": None, "logs/a": "0"}, 100)),
    "list": lambda dialogue: dialogue.list_files("r1"),
    "probe": lambda dialogue: dialogue.probe(["torch"]),
    "runs": lambda dialogue: dialogue.runs(),
    "gc": lambda dialogue: dialogue.gc(dry_run=True),
}


class Recorded(Output):
    """A host that has said it all already: the far end of the dialogue as bytes, so that thousands fit into a test."""

    def __init__(self, reply: bytes) -> None:
        super().__init__("gpu1")
        self._reply = reply

    def spawn(self, argv: Sequence[str], *, unread_bytes: int | None = None) -> Recorded:
        return self

    def write(self, data: bytes, timeout_s: float | None = None) -> None:
        """The first thing that is written holds the nonce."""
        if b'{"nonce": "' in data:
            nonce = data.rpartition(b'{"nonce": "')[2][:32]
            self._reply = self._reply.replace(b"@NONCE@", nonce)

    def _receive(self, deadline: float | None) -> bool:
        self._buffer += self._reply
        self._reply = b""
        return bool(self._buffer) and self._scanned < len(self._buffer)

    def close_stdin(self) -> None: ...

    def close(self) -> None: ...

    def stderr_tail(self) -> bytes:
        return b"\x1b[31mstderr of the host\n"

    def wait(self, timeout_s: float | None = None) -> tuple[int | None, str | None]:
        return 1, None


@settings(max_examples=300, deadline=None)
@given(reply=REPLY, asked=st.sampled_from(sorted(ASKED)))
def test_anything_at_all_in_answer_to_every_question(reply: bytes, asked: str) -> None:
    """What is made of it is a value, or one HostError without anything that a terminal would obey."""
    told = ""
    try:
        ASKED[asked](Dialogue(Recorded(reply), Spec("gpu1")))  # type: ignore[arg-type]
    except HostError as error:
        told = str(error)
    assert "\x1b" not in told
    assert len(told) < 10_000


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reply=REPLY)
def test_anything_at_all_over_a_real_connection(reply: bytes, host: Host) -> None:
    try:
        list(host(reply).follow("r1", 0))
    except HostError:
        pass
