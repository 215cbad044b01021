"""Runs whose agent Slurm starts: a batch job on one node. The login node submits it and asks how it stands; whatever else
passes between the two passes through the run's folder, which both must see.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from .paths import RunPaths, read_json, sync_file, write_file, write_json
from .wire import native

COMMAND_S = 30.0
"""A controller of Slurm that is busy answers late."""
ONE_NODE = ("--nodes=1", "--ntasks=1")
NOTICE_S = 30
"""So long before the job's time is over Slurm asks the agent to end."""
_WAITING = frozenset(("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
_ALIVE = _WAITING | {"RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
_PLACES = ("/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin")
# What is the user's reaches it as arguments, never as text of the script.
_SCRIPT = b"""#!/bin/sh
# Starts a farbench agent: "$1" a Python, "$2" the agent's code, "$3" the run's folder, "$4" first or again.
for python in "$1" python3 /usr/bin/python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
        exec "$python" -c 'import sys; sys.path.insert(0, sys.argv[1]); from farbench_agent.slurm_job import main; main(sys.argv[2:])' "$2" "$3" "$4"
    fi
done
echo "farbench: this node has no Python 3.8 or newer (tried $1 and python3)" >&2
exit 97
"""


class SlurmError(Exception):
    """Slurm did not do what it was asked; the message is its own."""


class Job(NamedTuple):
    """A job as Slurm tells of it; one that it does not know any more is `GONE`."""

    number: str
    state: str
    reason: str = ""

    @property
    def alive(self) -> bool:
        """Whether an agent may be at work in it, or will be."""
        return self.state in _ALIVE

    @property
    def waits(self) -> bool:
        """Whether it has not begun."""
        return self.state in _WAITING

    def __str__(self) -> str:
        reason = self.reason if self.reason not in ("", "None") else ""
        if self.waits:
            return f"Slurm job {self.number} waits{f': {reason}' if reason else ''}"
        if self.alive:
            return f"Slurm job {self.number} is {self.state.lower()}"
        return f"Slurm job {self.number} ended: {self.state}{f' ({reason})' if reason else ''}"


def options(job: Mapping[str, Any]) -> Optional[List[str]]:
    """What sbatch is to be told for a job of ours; None where Slurm is not to be asked."""
    launcher = job.get("launcher")
    asked = launcher.get("slurm") if isinstance(launcher, dict) else None
    return [str(option) for option in asked] if isinstance(asked, list) else None


def number_of(paths: RunPaths) -> Optional[str]:
    """The newest job of a run, if Slurm has been asked for one."""
    known = read_json(paths.slurm)
    number = known.get("job") if isinstance(known, dict) else None
    return number if isinstance(number, str) and number.isdigit() else None


def submit(paths: RunPaths, asked: List[str], first: bool) -> str:
    """Ask Slurm for a job that runs the agent; its number. Raises SlurmError, OSError."""
    code = _keep_code(paths)
    write_file(paths.slurm_script, _SCRIPT)
    log = paths.log("agent").replace("%", "%%")
    line = [
        _program("sbatch"), "--parsable", f"--job-name=farbench-{paths.run_id}", "--chdir=/", f"--output={log}",
        "--open-mode=append", f"--signal=B:TERM@{NOTICE_S}", *asked, *ONE_NODE, "--no-requeue",
        paths.slurm_script, sys.executable, code, paths.root, "first" if first else "again",
    ]  # fmt: skip
    number = _ask(line)[0].strip().split(";")[0]
    if not number.isdigit():
        raise SlurmError(f"sbatch answered {number[:200]!r}, which is no job")
    write_json(paths.slurm, {"job": number})
    return number


def look(number: str) -> Job:
    """How a job stands. Raises SlurmError where Slurm cannot be asked."""
    try:
        lines = _ask(
            [_program("squeue"), "--noheader", f"--jobs={number}", "--states=all", "--format=%T|%r"]
        )[0]
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        lines = ""
    state, _, reason = lines.strip().partition("\n")[0].partition("|")
    return Job(number, state or "GONE", reason)


def cancel(number: str) -> None:
    """Ask Slurm to end a job; one that has ended is no error. Raises SlurmError."""
    try:
        _ask([_program("scancel"), number])
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise


def version() -> str:
    """What sbatch says it is. Raises SlurmError."""
    return _ask([_program("sbatch"), "--version"])[0].strip()


def rehearse(asked: List[str]) -> str:
    """When and where a job could begin, in Slurm's words; nothing is submitted. Raises SlurmError."""
    return _ask([_program("sbatch"), *asked, *ONE_NODE, "--test-only", "--wrap=true"])[1].strip()


def _keep_code(paths: RunPaths) -> str:
    """Our own code, copied to where the job finds it however long it waits: a folder or a zip to import from."""
    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.isfile(source):
        target = f"{paths.code}.zip"
        shutil.copyfile(source, target)
        sync_file(target)
        return target
    package = os.path.dirname(os.path.abspath(__file__))
    shutil.copytree(
        package,
        os.path.join(paths.code, os.path.basename(package)),
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    return paths.code


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_PLACES))
    if found is None:
        raise SlurmError(f"there is no {name} here: is this a login node of the cluster?")
    return found


def _ask(line: List[str]) -> Tuple[str, str]:
    """What a program printed, and what it said on standard error. Raises SlurmError."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [native(word) for word in line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{os.path.basename(line[0])} did not answer within {COMMAND_S:.0f} s") from None
    if done.returncode != 0:
        told = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise SlurmError(f"{os.path.basename(line[0])}: {told}"[:2000])
    return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
