"""Runs whose agent Slurm starts: a batch job on one node. The login node submits it and asks how it stands; whatever else
passes between the two passes through the run's folder, which both must see.
"""

from __future__ import annotations

import fcntl
import os
import re
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
GONE = "GONE"
_WAITING = frozenset(("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
# One that is COMPLETING may still have processes; and it is not told yet whether it was cancelled, say.
_ALIVE = _WAITING | {"COMPLETING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
_NUMBER = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)
_STATE = re.compile(r"^([A-Z_]+)\|(.*)$", re.MULTILINE)
_SILENT = re.compile(
    r"contact slurm controller|timed out|connect(ion)? (failure|refused)|standby mode|temporarily",
    re.IGNORECASE,
)
"""What Slurm's programs say when the controller did not answer: whether it did what it was asked is not known."""
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


class SlurmSilent(SlurmError):
    """Its controller did not answer, and may have done it."""


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

    @property
    def taken_away(self) -> bool:
        """Whether it ended by what befell its node, or for somebody else's job: another one may fare better."""
        return self.state in ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")

    @property
    def ran(self) -> bool:
        """Whether it ended by itself."""
        return self.state in ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "TIMEOUT")

    def __str__(self) -> str:
        # Of a job that was cancelled while it waited, Slurm goes on telling what it waited for.
        telling = self.reason not in ("", "None") and self.state != "CANCELLED"
        reason = self.reason if telling else ""
        if self.waits:
            return f"Slurm job {self.number} waits{f': {reason}' if reason else ''}"
        if self.alive:
            return f"Slurm job {self.number} is {self.state.lower()}"
        if self.state == GONE:
            return f"Slurm job {self.number} ended, and Slurm does not know it any more"
        return f"Slurm job {self.number} ended: {self.state}{f' ({reason})' if reason else ''}"


def options(job: Mapping[str, Any]) -> Optional[List[str]]:
    """What sbatch is to be told for a job of ours; None where Slurm is not to be asked."""
    launcher = job.get("launcher")
    asked = launcher.get("slurm") if isinstance(launcher, dict) else None
    return [str(option) for option in asked] if isinstance(asked, list) else None


def number_of(paths: RunPaths) -> Optional[str]:
    """The newest job of a run, if its number is known."""
    known = read_json(paths.slurm)
    number = known.get("job") if isinstance(known, dict) else None
    return number if isinstance(number, str) and number.isdigit() else None


def asked_for(paths: RunPaths) -> bool:
    """Whether there is a job of a run, or may be one: sbatch may have been cut off before it could tell the number."""
    known = read_json(paths.slurm)
    return isinstance(known, dict) and (known.get("job") is None or number_of(paths) is not None)


def forget(paths: RunPaths) -> None:
    """No job is wanted any more: one that begins all the same ends at once (`adopt`)."""
    write_json(paths.slurm, {"job": ""})


def adopt(paths: RunPaths, number: str) -> bool:
    """Whether this job is the one that is wanted: where nobody could tell so far, it is from here on.

    The caller holds the run's lock, so that of two jobs for one run only one goes on."""
    if number_of(paths) is None and asked_for(paths):
        write_json(paths.slurm, {"job": number})
    return number_of(paths) == number


def find(paths: RunPaths) -> Optional[str]:
    """The job of a run, looked for by its name where the number is not known. Raises SlurmError."""
    number = number_of(paths)
    if number is None and asked_for(paths):
        ours = [f"--user={os.getuid()}", f"--name={_name(paths)}"]
        found = _NUMBER.findall(_ask([_program("squeue"), "--noheader", *ours, "--format=%A"])[0])
        if found and number_of(paths) is None:  # the job itself may have told meanwhile
            write_json(paths.slurm, {"job": found[-1]})
        number = number_of(paths)
    return number


def submitting(paths: RunPaths) -> int:
    """A lock for the time in which it is found out whether there is a job and, if not, one is asked for: a link that breaks
    leaves somebody behind who is still waiting for sbatch. Closing the descriptor gives it back."""
    fd = os.open(f"{paths.slurm}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def submit(paths: RunPaths, asked: List[str], first: bool) -> None:
    """Ask Slurm for a job that runs the agent. Raises SlurmError where there is none for sure, OSError.

    It returns also where Slurm did not answer: `find` tells later whether there is a job."""
    code = _keep_code(paths)
    write_file(paths.slurm_script, _SCRIPT)
    log = paths.log("agent").replace("%", "%%")
    if "\\" in log:  # Slurm takes them out of names
        log = "/dev/null"
    line = [
        _program("sbatch"), f"--signal=B:TERM@{NOTICE_S}", *asked, "--parsable", f"--job-name={_name(paths)}", "--chdir=/",
        f"--output={log}", "--open-mode=append", *ONE_NODE, "--no-requeue",
        paths.slurm_script, sys.executable, code, paths.root, "first" if first else "again",
    ]  # fmt: skip
    write_json(paths.slurm, {"job": None})
    try:
        told = _ask(line)[0]
    except SlurmSilent:
        return
    except SlurmError:
        forget(paths)
        raise
    found = _NUMBER.findall(told)  # among what a site's own sbatch may print besides
    if found:
        write_json(paths.slurm, {"job": found[-1]})
    elif find(paths) is None:
        forget(paths)
        raise SlurmError(f"sbatch answered {told.strip()[:200]!r}, which is no job")


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
    told = _STATE.search(lines)
    return Job(number, told.group(1), told.group(2).strip()) if told else Job(number, GONE)


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


def _name(paths: RunPaths) -> str:
    return f"farbench-{paths.run_id}"


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
    # What the user's own squeue shows is not what ours is to.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = subprocess.run(
            [native(word) for word in line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environ, "LC_ALL": "C"},
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"{os.path.basename(line[0])} did not answer within {COMMAND_S:.0f} s") from None
    if done.returncode != 0:
        name = os.path.basename(line[0])
        told = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        error = SlurmSilent if _SILENT.search(told) else SlurmError
        raise error((told if told.startswith(f"{name}: ") else f"{name}: {told}")[:2000])
    return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
