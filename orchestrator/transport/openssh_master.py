"""The `ssh` that logs in and keeps a control socket, and how its failures are told."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import HostRefused, HostUnreachable
from orchestrator.transport.host_key import accepted_key, changed_key, unknown_key
from orchestrator.transport.known_hosts import KnownHosts, fingerprint
from orchestrator.transport.lanes import Turns, closes_hastily
from orchestrator.transport.openings import PROXY_COMMAND_HINT, Dropped, hung_up
from orchestrator.transport.openssh_log import (
    NO_SIGNATURE,
    SERVER_KEY,
    SERVER_VERSION,
    nobody_listens,
    step_of,
    waits_for_touch,
    words_of,
)
from orchestrator.transport.target import Target, Warn

PERSIST_S = 60
"""How long a master stays without any command. One whose controller was killed ends then by itself."""
HANDSHAKE_TIMEOUT_S = 20.0
"""Beyond the time to connect, until the host key is known."""
LOGIN_TIMEOUT_S = 60.0
"""From then on: for a passphrase, and a touch of a hardware key."""
LOOK_EVERY_S = 0.5
"""How often the log is read; a hardware key that needs no touch has signed by then."""
EXIT_TIMEOUT_S = 5
SAID_CHARS = 2000
"""How much of what a ProxyCommand printed is told."""
_POLL_S = 0.01


class Master:
    """A control socket, and the master behind it if one lives."""

    def __init__(
        self, host: str, client: str, folder: Path, environ: Mapping[str, str], number: int = 0
    ) -> None:
        """`number` tells the masters of a folder apart."""
        self.host = host
        self.client = client
        self.socket = folder / f"s{number or ''}"
        self.log = folder / f"log{number or ''}"
        self.said = folder / f"printed{number or ''}"
        """What a ProxyCommand prints; ssh itself writes to the log."""
        self.turns = Turns()
        self.starting = True
        """Until it listens, or has failed."""
        self.environ = dict(environ)

    @property
    def step(self) -> str:
        """The step that its log has reached."""
        return step_of(_text(self.log))

    def is_alive(self) -> bool:
        """Whether somebody listens on the socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def client_command(self) -> list[str]:
        """The words of an `ssh` that goes through the socket, and fails rather than connect by itself."""
        return [
            self.client, "-F", "/dev/null", "-S", str(self.socket), "-o", "ControlMaster=no", "-o", "ProxyCommand=false",
            "-o", "BatchMode=yes", "-a", "-x", "-T",
        ]  # fmt: skip

    def end(self) -> None:
        """Let the master go, and with it every command."""
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [*self.client_command(), "-O", "exit", "--", "host"], env=self.environ, check=False, timeout=EXIT_TIMEOUT_S,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip


@dataclass(frozen=True)
class MasterSettings:
    """What a master is started with. `through` is the command that stands in for a connection, by way of a jump host."""

    target: Target
    known: KnownHosts
    through: Sequence[str] | None
    keepalive_s: float
    silence_s: float


def start_master(master: Master, settings: MasterSettings, closing: threading.Event, warn: Warn) -> None:
    """Log in; afterwards the master listens. Raises `HostUnreachable`, `HostRefused` with the step; `Dropped`."""
    target = settings.target
    master.log.unlink(missing_ok=True)
    command = [
        master.client,
        *_options(master, settings),
        *target.ssh_words[1:-1],
        "--",
        target.ssh_words[-1],
    ]
    with master.said.open("wb") as said:
        process = subprocess.Popen(
            command, env=_asking(master.environ), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
    try:
        timed_out = not _ended(process, master.log, settings, closing, warn)
    finally:
        if process.poll() is None:
            with suppress(
                ProcessLookupError
            ):  # and with it a ProxyCommand, or who waits for a touch of a hardware key
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if closing.is_set():
        master.end()
        raise HostUnreachable(target.name, "the connection was closed", step="connect")
    log = _text(master.log)
    if process.returncode == 0 and master.is_alive():
        _tell(target, log, warn)
        version = SERVER_VERSION.search(log)
        master.turns.one_at_a_time = version is not None and closes_hastily(version[1])
        return
    raise _failure(settings, log, _text(master.said)[-SAID_CHARS:], timed_out)


def _options(master: Master, settings: MasterSettings) -> list[str]:
    """What comes first on the command line, and so wins over the ssh config."""
    target = settings.target
    files = ["/dev/null"] if target.insecure else [str(path) for path in target.known_hosts]
    if target.accept_new and target.new_keys_file is None:
        files.insert(0, "/dev/null")  # ssh adds a new key to the first one
    known_hosts = " ".join('"' + path.replace("%", "%%") + '"' for path in files) or "none"
    checking = "no" if target.insecure else "accept-new" if target.accept_new else "yes"
    values = {
        "ControlPersist": PERSIST_S, "LogLevel": "DEBUG1", "StrictHostKeyChecking": checking,
        "UserKnownHostsFile": known_hosts, "GlobalKnownHostsFile": "none", "UpdateHostKeys": "no",
        "ConnectTimeout": max(1, round(target.connect_timeout_s)), "ServerAliveInterval": max(1, round(settings.keepalive_s)),
        "ServerAliveCountMax": max(1, round(settings.silence_s / settings.keepalive_s)),
        "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no", "ClearAllForwardings": "yes",
        "RemoteCommand": "none", "PermitLocalCommand": "no", "VisualHostKey": "no",
        "GSSAPIDelegateCredentials": "no",
        "BatchMode": "no" if master.environ.get("SSH_ASKPASS") else "yes",
    }  # fmt: skip
    if settings.through is not None:
        values["ProxyCommand"] = shlex.join(settings.through)
    named = [word for key, value in values.items() for word in ("-o", f"{key}={value}")]
    # -v too: without it, the standard error of a ProxyCommand behind a control socket goes nowhere.
    return ["-v", "-M", "-N", "-T", "-a", "-x", "-S", str(master.socket), "-E", str(master.log), *named]


def _asking(environ: Mapping[str, str]) -> dict[str, str]:
    """ssh asks for passphrases through SSH_ASKPASS only, never on a terminal. (Old clients want a DISPLAY for that.)"""
    return {"DISPLAY": ":", **environ, "SSH_ASKPASS_REQUIRE": "force"}


def _ended(
    process: subprocess.Popen[bytes],
    log: Path,
    settings: MasterSettings,
    closing: threading.Event,
    warn: Warn,
) -> bool:
    """Wait for the end, and `LOGIN_TIMEOUT_S` from when the handshake is done; False when it does not come in time."""
    look_again = time.monotonic() + LOOK_EVERY_S
    deadline = time.monotonic() + settings.target.connect_timeout_s + HANDSHAKE_TIMEOUT_S
    logging_in = told = False
    while process.poll() is None:
        now = time.monotonic()
        if now > min(look_again, deadline):
            text, look_again = _text(log), now + LOOK_EVERY_S
            if not logging_in and step_of(text) in ("authentication", "exec"):
                logging_in, deadline = True, now + LOGIN_TIMEOUT_S
            if not told and (key := waits_for_touch(text)):
                warn(f"{settings.target.name}: {key}: touch the hardware key")
                told = True
        if now > deadline:
            return False
        if closing.wait(_POLL_S):
            return True
    return True


def _text(log: Path) -> str:
    return log.read_text("utf-8", "replace") if log.exists() else ""


def _tell(target: Target, log: str, warn: Warn) -> None:
    shown = SERVER_KEY.search(log)
    key = shown.group(2) if shown else "(a certificate)"
    if target.insecure:
        warn(f"{target.name}: insecure: the host key {key} was not checked")
    elif shown and ("Permanently added" in log or "Failed to add the host" in log):
        problem = None if "Permanently added" in log else "it cannot be written"
        warn(accepted_key(target, f"{shown.group(1)} {key}", problem))


def _failure(
    settings: MasterSettings, log: str, printed: str, timed_out: bool
) -> HostUnreachable | HostRefused:
    target = settings.target
    step, said = step_of(log), words_of(log)
    said = said or ("no answer in time" if timed_out else "ssh gave no reason")
    if timed_out and (key := waits_for_touch(log)):
        return _not_touched(target, f"{key}: no signature within {LOGIN_TIMEOUT_S:g} s")
    if timed_out:
        return HostUnreachable(target.name, said, step=step)
    if step == "host key":
        return _key_refusal(settings, log, said)
    if step == "authentication":
        hint = f"does `{target.ssh_command}` work without a password?"
        if NO_SIGNATURE.search(log):
            return _not_touched(target, said)
        if target.smart_card:
            hint = "a PIN is asked for with the program in SSH_ASKPASS only; or hand the card to the agent: `ssh-add -s PROVIDER`"
        if not target.public_keys:
            said += "\n  the ssh config says PubkeyAuthentication no, so that no key is offered"
        missing = [path for path in target.identity_files if target.identities_named and not path.exists()]
        said += "".join(f"\n  {path}: no such key file" for path in missing)
        return HostRefused(target.name, said, step=step, hint=hint)
    if step in ("connect", "banner") and target.proxy_command is not None:
        return Dropped(
            target.name, f"the ProxyCommand ended: {words_of(printed) or said}", step="connect",
            hint=PROXY_COMMAND_HINT,
        )  # fmt: skip
    if step == "banner" and settings.through is None and "Connection timed out" not in said:
        return hung_up(target.name, f" ({said})")
    if step == "banner" and settings.through is not None:
        return HostUnreachable(
            target.name, f"{target.jump.name if target.jump else 'its jump host'}: {said}", step="connect"
        )
    refused = step == "connect" and nobody_listens(log)
    return HostUnreachable(target.name, said, step=step, nobody_listens=refused)


def _not_touched(target: Target, said: str) -> HostRefused:
    return HostRefused(
        target.name, f"the hardware key did not sign: {said}", step="authentication",
        hint="touch it when it blinks; a PIN is asked for with the program in SSH_ASKPASS only; is it plugged in, and does"
        f" `{target.ssh_command}` work?",
    )  # fmt: skip


def _key_refusal(settings: MasterSettings, log: str, said: str) -> HostRefused:
    """The refusal in the words of the other transport, where ssh only says that the key did not do."""
    target = settings.target
    shown = SERVER_KEY.search(log)
    entries = settings.known.keys_of(*target.key_host)
    known_ones = {fingerprint(entry.blob) for entry in entries}
    if "revoked" in said.lower() or shown is None or shown.group(2) in known_ones:
        return HostRefused(target.name, said, step="host key")
    text = f"{shown.group(1)} {shown.group(2)}"
    return changed_key(target, entries, text) if entries else unknown_key(target, text)
