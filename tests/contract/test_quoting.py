"""Arguments byte for byte through every login shell that is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.transport.quoting import login_shell_line

SHELLS = [
    shell
    for shell in ("sh", "bash", "dash", "zsh", "ksh", "busybox", "fish", "tcsh", "csh")
    if shutil.which(shell)
]
SHOW = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])) + b'\\0')",
]
NASTY = st.sampled_from(
    ["'", '"', "\\", "!", "\n", "$", "`", "$(id)", "%s", "\\0101", "é", "\udcff", "^a^b", "''", " ", "~", "*"]
)
ARGUMENT = st.lists(
    st.one_of(NASTY, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8))
).map("".join)


def seen_by(shell: str, argv: list[str], tmp_home: str) -> list[str]:
    command = ["busybox", "sh"] if shell == "busybox" else [shell]
    environ = {"PATH": os.environ["PATH"], "HOME": tmp_home, "LC_ALL": "C"}
    done = subprocess.run(
        [*command, "-c", login_shell_line([*SHOW, *argv])], capture_output=True, env=environ, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [os.fsdecode(part) for part in done.stdout.split(b"\0")[:-1]] if argv else []


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argv=st.lists(ARGUMENT, min_size=1, max_size=4))
def test_arguments_survive(shell: str, argv: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert seen_by(shell, argv, str(tmp_path_factory.getbasetemp())) == argv


@pytest.mark.parametrize("shell", SHELLS)
def test_every_byte_and_a_long_argument_survive(shell: str, tmp_path: str) -> None:
    argv = [os.fsdecode(bytes(range(1, 256))), "it's " * 3000]
    assert seen_by(shell, argv, str(tmp_path)) == argv


@pytest.mark.parametrize("shell", SHELLS)
def test_a_signal_shows_through_the_shells(shell: str, tmp_path: str) -> None:
    command = ["busybox", "sh"] if shell == "busybox" else [shell]
    done = subprocess.run(
        [*command, "-c", login_shell_line(["sh", "-c", "kill -9 $$"])],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert done.returncode == -9


def test_bash_as_the_inner_shell_decodes_alike() -> None:
    """On many hosts /bin/sh is bash."""
    argv = [os.fsdecode(bytes(range(1, 256))), "'!\\\n"]
    line = login_shell_line([*SHOW, *argv])
    inner = line.removeprefix("exec /bin/sh -c '").removesuffix("'")
    done = subprocess.run(["bash", "--posix", "-c", inner], capture_output=True)
    assert [os.fsdecode(part) for part in done.stdout.split(b"\0")[:-1]] == argv


def test_the_line_is_plain_ascii() -> None:
    line = login_shell_line(["printf", "it's\n!\\é\udcff"])
    assert line.startswith("exec /bin/sh -c '")
    assert line.isascii()
    assert line.isprintable()
    inner = line.removeprefix("exec /bin/sh -c '").removesuffix("'")
    assert not set(inner) & set("'!\n")
    assert all(inner[i + 1].isdigit() for i, char in enumerate(inner) if char == "\\")


@pytest.mark.parametrize(
    ("argv", "message"),
    [([], "no command"), (["a\0b"], "NUL"), (["x" * 200_000], "longer than a host takes")],
)
def test_what_cannot_be_said_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        login_shell_line(argv)
