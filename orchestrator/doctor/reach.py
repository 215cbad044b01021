"""The way to a host, step by step: what a connection that came about proves, and what a failure means."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import HostError
from orchestrator.inventory import HostSpec
from orchestrator.transport.target import Target

from .check import Check, failed, ok, skipped, warning

STEPS = ("ssh config", "resolve", "connect", "key exchange", "host key", "authentication", "exec")
_OTHER_NAMES = {"banner": "key exchange"}
_WORKDIR_STEPS = (
    "find the work folder",
    "create the work folder",
    "store the uploaded files",
    "check the upload",
)

_FIXES = {
    "ssh config": "fix the ssh config, or name another with `ssh_config:` in hosts.yaml",
    "resolve": "check `address:` in hosts.yaml and the ssh config; does `ssh` with the same name work?",
    "connect": "is the host up, and does a firewall or VPN stand between? `ssh -v` shows the same",
    "key exchange": "is it an SSH server that listens on that port?",
    "host key": "compare the fingerprint with the host's before you accept it",
    "authentication": "check `user:` and `identity_file:`, and that the key is loaded (`ssh-add -l`)",
    "exec": "does the account have a login shell, and do its login scripts end?",
    "python": "install Python 3.8 or later, or name one with `agent_python:` in hosts.yaml",
    "workdir": "set another `workdir:` in hosts.yaml",
}  # fmt: skip


def reached(spec: HostSpec, target: Target | None) -> list[Check]:
    """Every step but the last, for a connection that came about; whether commands run is not known by that."""
    if target is None:
        return [ok(step, "the server inside farbench") for step in STEPS[:-1]]
    via = (
        f" through {target.jump.name}"
        if target.jump
        else " through a ProxyCommand"
        if target.proxy_command
        else ""
    )
    checks = {step: ok(step, "") for step in STEPS[:-1]}
    checks["ssh config"] = ok("ssh config", target.ssh_command)
    checks["resolve"] = ok("resolve", target.host)
    checks["connect"] = ok("connect", f"{target.host} port {target.port}{via}")
    checks["host key"] = _host_key(target)
    checks["authentication"] = ok("authentication", f"as {target.user}")
    return list(checks.values())


def not_reached(error: HostError, target: Target | None) -> list[Check]:
    """The steps before the one that failed, the failure, and the steps that could not be tried."""
    step = _OTHER_NAMES.get(error.step or "", error.step or "connect")
    if step not in STEPS:
        step = "connect"
    before = STEPS[: STEPS.index(step)]
    after = STEPS[STEPS.index(step) + 1 :]
    found = {"ssh config": target.ssh_command, "resolve": target.host} if target is not None else {}
    return [
        *(ok(name, found.get(name, "")) for name in before),
        failed(step, error.bare_message, error.hint or _FIXES[step], blocking=True),
        *(skipped(name, f"after {step}") for name in after),
    ]


def too_slow(limit_s: float, reached_step: str, target: Target | None) -> list[Check]:
    """The same for a host that was still silent when its time was over."""
    error = HostError("", f"no answer within {limit_s:.0f} s", step=reached_step)
    return not_reached(error, target)


def not_started(error: HostError) -> list[Check]:
    """What a failure after the login means: of the shell, of Python, or of the work folder."""
    if error.step in _WORKDIR_STEPS:
        name, before = "workdir", ["exec", "python"]
    elif error.step == "start" and "Python" in error.bare_message:
        name, before = "python", ["exec"]
    else:
        name, before = "exec", []
    fix = error.hint or _FIXES[name]
    return [*(ok(step, "") for step in before), failed(name, error.bare_message, fix, blocking=True)]


def merged(first: Sequence[Check], then: Sequence[Check]) -> list[Check]:
    """Both, where a later check of the same name takes the earlier one's place."""
    checks = {check.name: check for check in first}
    checks.update({check.name: check for check in then})
    return list(checks.values())


def _host_key(target: Target) -> Check:
    if target.insecure:
        return warning(
            "host key",
            "not checked: `insecure: true`",
            "remove `insecure:` and accept the host's key with ssh",
        )
    if target.accept_new:
        return ok("host key", "known, or new and accepted (StrictHostKeyChecking accept-new)")
    if target.check_was_off:
        return ok("host key", "known (the ssh config's `StrictHostKeyChecking no` is not followed)")
    return ok("host key", "known")
