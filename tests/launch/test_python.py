"""Finding an interpreter on the host, with fake ones on PATH in front of the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import HostUnusable
from orchestrator.launch.dialogue import Dialogue
from orchestrator.launch.python import NO_PYTHON_STATUS, found_versions, stub_command
from orchestrator.transport.open import Connections
from tests.support.sshd import Sshd

STUB = b"import sys\nprint('stub', sys.stdin.read(), sys.flags.isolated)\n"


def interpreter(path: Path, version: tuple[int, ...] | None) -> str:
    """A Python that takes itself for another version; for None one that does not start, as Python 2 given `-I`."""
    if version is None:
        path.write_text('#!/bin/sh\ntest "$1" = -V && { echo Python 2.7.18; exit; }\nexit 2\n')
    else:
        pretend = f"import sys; sys.version_info = {(*version, 0)}; exec(sys.argv[1])"
        path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{pretend}' \"$5\"\n")
    path.chmod(0o700)
    return str(path)


def find(
    candidates: list[str], *, rest: bytes = b"rest", home: str = "/"
) -> subprocess.CompletedProcess[bytes]:
    command = [*stub_command(None)[:4], *candidates]
    data = b"%d\n%b%b" % (len(STUB), STUB, rest)
    return subprocess.run(
        command, input=data, capture_output=True, env={"PATH": "/usr/bin:/bin", "HOME": home}, timeout=60
    )


def test_the_first_that_is_new_enough_runs_the_stub_with_its_own_input(tmp_path: Path) -> None:
    old = interpreter(tmp_path / "old python", (3, 6, 8))
    broken = interpreter(tmp_path / "python2", None)
    done = find(["/nowhere/python", old, broken, sys.executable, "python3"])
    assert (done.returncode, done.stdout) == (0, b"stub rest 1\n")
    assert found_versions(done.stderr) == [f"{old} is 3.6.8", f"{broken} is Python 2.7.18"]


def test_none_that_fits(tmp_path: Path) -> None:
    done = find([interpreter(tmp_path / "old", (3, 7, 17)), "/nowhere/python"])
    assert (done.returncode, done.stdout) == (NO_PYTHON_STATUS, b"")
    assert found_versions(done.stderr) == [f"{tmp_path}/old is 3.7.17"]


def test_the_home_folder_is_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "my python").symlink_to(sys.executable)
    assert find(["~/my python"], home=str(tmp_path)).stdout == b"stub rest 1\n"


def test_the_stubs_status_is_the_commands(tmp_path: Path) -> None:
    stub = b"raise SystemExit(9)"
    command = stub_command(None)
    assert subprocess.run(command, input=b"%d\n%b" % (len(stub), stub), timeout=60).returncode == 9


def test_the_order() -> None:
    assert stub_command("~/p", "/venv/bin/python")[4:] == [
        "~/p", "python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python3.8",
        "/usr/bin/python3", "python", "/venv/bin/python",
    ]  # fmt: skip


def test_a_host_without_a_python_says_which_it_has(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    """bash's `command -v` and the shell's own lookup are told that nothing else is there."""
    (sshd.home / ".bashrc").write_text(f"exec /bin/sh '{tmp_path}/no_python'\n")
    interpreter(tmp_path / "old", (3, 6, 8))
    script = stub_command(None)[2].replace("'", "'\\''")
    (tmp_path / "no_python").write_text(f"exec /bin/sh -c '{script}' farbench '{tmp_path}/old'\n")
    spec = sshd.spec()
    with pytest.raises(HostUnusable) as caught:
        Dialogue(connections.transport(spec), spec).status("r1")
    assert f"no Python 3.8 or later ({tmp_path}/old is 3.6.8)" in str(caught.value)
    assert "agent_python:" in str(caught.value)
