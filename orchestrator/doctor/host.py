"""Judging the host itself: shell, logout, work folder, temporary folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.launch.messages import COMFORTABLE_BYTES

from .check import Check, failed, ok, skipped, warning

NEEDED_BYTES = 100 * 2**20
SMALL_TMP_BYTES = 512 * 2**20
_NO_SHELLS = ("nologin", "false")
_NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "fuse.sshfs", "ceph", "wekafs", "9p")


def judge_host(facts: Mapping[str, Any], noise: tuple[int, str]) -> list[Check]:
    """Shell, home folder, and what happens at logout."""
    checks = [_shell(facts, noise)]
    told = facts.get("kills_at_logout")
    checks.append(
        warning("logout", str(told), f"sudo loginctl enable-linger {facts.get('user')}")
        if told
        else ok("logout", "what is started goes on")
    )
    load, cpus = facts.get("load"), facts.get("cpus")
    if isinstance(load, (int, float)) and isinstance(cpus, int) and load > cpus:
        checks.append(
            warning(
                "load",
                f"{load:.1f} on {cpus} CPUs",
                "others compute here: host times and CPU results will be noisy",
            )
        )
    elif isinstance(load, (int, float)):
        checks.append(ok("load", f"{load:.1f} on {cpus} CPUs"))
    else:
        checks.append(skipped("load", "this system does not tell"))
    return checks


def judge_slurm(facts: Mapping[str, Any]) -> list[Check]:
    """Whether Slurm would take a job such as hosts.yaml asks for."""
    if facts.get("error"):
        fix = "correct `launcher: {slurm: …}` in hosts.yaml, or log in to a node that has Slurm's programs"
        return [failed("slurm", str(facts["error"]), fix, blocking=True)]
    return [ok("slurm", f"{facts.get('version')}; {facts.get('told')}")]


def judge_workdir(facts: Mapping[str, Any]) -> list[Check]:
    """Whether the work folder can be written and what lies in it be run, and how much room it has."""
    path = facts["path"]
    if facts["write_error"]:
        return [failed("workdir", f"{path}: {facts['write_error']}", "set another `workdir:`", blocking=True)]
    checks = []
    mode = int(facts["mode"])
    kind = f" ({facts['filesystem']})" if facts.get("filesystem") else ""
    if facts["exec_error"]:
        checks.append(
            failed(
                "workdir",
                f"{path}: programs and compiled libraries cannot be run there ({facts['exec_error']}): mounted noexec?",
                "set `workdir:` to a folder on a file system without noexec",
            )
        )
    elif mode & 0o022:
        checks.append(
            warning("workdir", f"{path} can be changed by other users (mode {mode:04o})", f"chmod 700 {path}")
        )
    elif facts.get("filesystem") in _NETWORK:
        checks.append(
            warning(
                "workdir",
                f"{path} is on a network file system{kind}",
                "set `workdir:` to a local disk if the host has one: compiling and loading are slow over the network",
            )
        )
    else:
        checks.append(ok("workdir", f"{path}{kind}"))
    checks.append(space(path, facts))
    return checks


def judge_tmp(facts: Mapping[str, Any]) -> list[Check]:
    """The temporary folder, where compilers and Triton put what they make."""
    path, free = facts["path"], int(facts.get("free_bytes") or 0)
    fix = "set TMPDIR in the host's `env:` to a folder with room where programs may run"
    if facts["write_error"]:
        return [failed("tmp", f"{path}: {facts['write_error']}", fix)]
    if facts["exec_error"]:
        return [
            warning(
                "tmp", f"{path}: what is compiled there cannot be run ({facts['exec_error']}): noexec?", fix
            )
        ]
    if free < SMALL_TMP_BYTES:
        return [
            warning(
                "tmp", f"{path} has only {size(free)} left: kernels that are compiled there may fail", fix
            )
        ]
    return [ok("tmp", f"{path}, {size(free)} free")]


def size(number: float) -> str:
    """Bytes for people."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def space(path: str, facts: Mapping[str, Any]) -> Check:
    """Room in the work folder."""
    free = int(facts.get("free_bytes") or 0)
    fix = "`farbench gc HOST --yes` removes old runs; or set another `workdir:`"
    if facts.get("free_inodes") == 0:
        return failed("space", f"{path} has no inodes left: no file can be made", fix, blocking=True)
    if free < NEEDED_BYTES:
        return failed("space", f"{size(free)} free", fix, blocking=True)
    if free < COMFORTABLE_BYTES:
        return warning("space", f"only {size(free)} free", fix)
    return ok("space", f"{size(free)} free")


def _shell(facts: Mapping[str, Any], noise: tuple[int, str]) -> Check:
    shell = facts.get("shell")
    count, tail = noise
    if count:
        return warning(
            "shell",
            f"{shell}: login scripts print {count} bytes on standard output, such as {' '.join(tail.split())[:60]!r}",
            "farbench leaves it aside, but scp and rsync cannot: print only when a person logs in "
            "(`case $- in *i*) … esac` in .bashrc)",
        )
    if shell is None:
        return skipped("shell", f"user {facts.get('user')} has no entry in passwd")
    if shell.rsplit("/", 1)[-1] in _NO_SHELLS:
        return ok("shell", f"{shell} (commands run all the same)")
    return ok("shell", shell)
