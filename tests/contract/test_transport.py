"""What every transport promises, on real servers: OpenSSH, the embedded one, dropbear; and over the system's ssh."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import HostError
from orchestrator.transport.base import Transport
from orchestrator.transport.open import Connections
from tests.support.sshd import Spec
from tests.support.waiting import BOUND_S, wait_for


@pytest.fixture
def transport(every_host: Spec, connections: Connections) -> Transport:
    return connections.transport(every_host)


def test_status_and_both_streams(transport: Transport) -> None:
    done = transport.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.exit_status, done.signal, done.stdout, done.stderr) == (3, None, b"out\n", b"err\n")


def test_death_by_a_signal_is_told_from_a_status(transport: Transport, every_host: Spec) -> None:
    done = transport.run(["sh", "-c", "echo last words; kill -9 $$"])
    name = "unknown" if every_host.transport == "openssh" else "KILL"  # ssh does not tell which
    assert (done.exit_status, done.signal, done.stdout) == (None, name, b"last words\n")


def test_status_255_is_a_status(transport: Transport) -> None:
    done = transport.run(["sh", "-c", "exit 255"])
    assert (done.exit_status, done.signal) == (255, None)


@pytest.mark.parametrize(
    "argument",
    [
        'it\'s "$HOME" $(touch pwned) `id` \n {x!r}',
        "",
        "!!",
        "\\",
        "é€\U0001f600",
        "a\r\nb\n\n",
        "-n",
        "\udcff",
        "*  ~ #",
    ],
)
def test_arguments_arrive_byte_for_byte(transport: Transport, argument: str) -> None:
    done = transport.run(["printf", "%s\\n", argument, "end"])
    assert done.stdout == os.fsencode(argument) + b"\nend\n"
    assert transport.run(["sh", "-c", "ls"]).stdout.find(b"pwned") == -1


def test_standard_input_arrives_byte_for_byte(transport: Transport) -> None:
    data = bytes(range(256)) * 4 + b"\r\n\x04\x03"
    assert transport.run(["cat"], stdin=data).stdout == data


def test_no_standard_input_is_an_empty_one(transport: Transport) -> None:
    assert transport.run(["wc", "-c"]).stdout.strip() == b"0"


def test_ten_megabytes_both_ways_at_once(transport: Transport) -> None:
    data = os.urandom(10 * 1024 * 1024)
    assert transport.run(["cat"], stdin=data, timeout_s=BOUND_S).stdout == data


def test_six_megabytes_of_errors_before_six_of_output(transport: Transport) -> None:
    script = "head -c 6000000 /dev/zero | tr '\\0' e >&2; head -c 6000000 /dev/zero"
    done = transport.run(["sh", "-c", script], timeout_s=BOUND_S)
    assert (done.exit_status, len(done.stdout), done.stderr) == (0, 6_000_000, b"e" * 65536)


def test_errors_are_drained_while_nobody_reads(transport: Transport) -> None:
    process = transport.spawn(["sh", "-c", "head -c 20000000 /dev/zero >&2; echo done"])
    assert process.readline(BOUND_S) == b"done\n"
    assert process.wait(BOUND_S) == (0, None)


def test_wait_drains_what_nobody_reads(transport: Transport) -> None:
    process = transport.spawn(["sh", "-c", "head -c 20000000 /dev/zero; exit 4"])
    assert process.wait(BOUND_S) == (4, None)


def test_lines_and_counted_bytes_interleave(transport: Transport) -> None:
    process = transport.spawn(["printf", "%s\\n%s%s\\nrest", "one", "\x01" * 5, "two"])
    assert process.readline(BOUND_S) == b"one\n"
    assert process.read_exactly(5, BOUND_S) == b"\x01" * 5
    assert process.readline(BOUND_S) == b"two\n"
    assert process.readline(BOUND_S) == b"rest"
    assert process.readline(BOUND_S) == b""
    assert process.wait(BOUND_S) == (0, None)


def test_too_few_bytes_is_the_end_of_the_file_not_a_lost_link(transport: Transport) -> None:
    process = transport.spawn(["printf", "abc"])
    with pytest.raises(EOFError):
        process.read_exactly(4, BOUND_S)


def test_a_long_line_comes_in_pieces(transport: Transport) -> None:
    process = transport.spawn(["printf", "abcdefgh\\n"])
    assert [process.readline(BOUND_S, limit=5) for _ in range(3)] == [b"abcde", b"fgh\n", b""]


def test_a_line_that_is_late_is_not_lost(transport: Transport) -> None:
    process = transport.spawn(["sh", "-c", "printf half; read go; echo ' and half'"])
    with pytest.raises(TimeoutError):
        process.readline(0.5)
    process.write(b"go\n")
    assert process.readline(BOUND_S) == b"half and half\n"


def test_a_command_that_takes_too_long(transport: Transport, pid_file: Path) -> None:
    with pytest.raises(TimeoutError, match="did not end within"):
        transport.run(["sh", "-c", f"echo $$ > '{pid_file}'; exec sleep 600"], timeout_s=1)
    assert transport.run(["echo", "still here"]).stdout == b"still here\n"


def test_writing_to_a_command_that_has_ended(transport: Transport) -> None:
    process = transport.spawn(["true"])
    process.wait(BOUND_S)
    with pytest.raises(BrokenPipeError):
        process.write(b"x" * 100)


def test_closing_ends_a_reader_in_another_thread(transport: Transport, pid_file: Path) -> None:
    process = transport.spawn(["sh", "-c", f"echo $$ > '{pid_file}'; exec sleep 600"])
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.append(process.readline()))
    reader.start()
    wait_for(pid_file.exists)
    process.close()
    process.close()
    reader.join(BOUND_S)
    assert lines == [b""]


def test_eight_threads_at_once(transport: Transport) -> None:
    answers: list[bytes] = []
    start = threading.Barrier(8)

    def ask(number: int) -> None:
        start.wait()
        answers.append(transport.run(["sh", "-c", 'echo "$1"', "_", str(number)]).stdout)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert sorted(answers) == [b"%d\n" % number for number in range(8)]


def test_a_detached_process_outlives_the_connection(
    transport: Transport, tmp_path: Path, pid_file: Path
) -> None:
    script = 'setsid sh -c \'echo $$ > "$1"; while ! test -e "$2"; do sleep 0.05; done; touch "$3"\' _ "$@" </dev/null >/dev/null 2>&1 &'
    go, done = tmp_path / "go", tmp_path / "done"
    assert (
        transport.run(
            ["sh", "-c", script, "_", str(pid_file), str(go), str(done)], timeout_s=BOUND_S
        ).exit_status
        == 0
    )
    transport.close()
    go.touch()
    wait_for(done.exists)


def test_a_closed_transport_stays_closed(transport: Transport) -> None:
    transport.run(["true"])
    transport.close()
    with pytest.raises(HostError, match="closed"):
        transport.run(["true"])


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    """Where a command writes its pid; what still runs at the end is killed."""
    path = tmp_path / "pid"
    yield path
    try:
        os.kill(int(path.read_text()), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass
