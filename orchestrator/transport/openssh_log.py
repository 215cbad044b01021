"""What the log of an `ssh` says: the step that it reached, what it told a person, whether it waits for one."""

from __future__ import annotations

import errno
import os
import re

# What ssh logs at its first level of debugging when a step begins; the last that is there tells the step that failed.
_MARKS = (
    ("Connecting to ", "connect"),
    ("Executing proxy command", "connect"),
    ("Local version string", "banner"),
    ("Remote protocol version", "key exchange"),
    ("Server host key:", "host key"),
    ("Server host certificate:", "host key"),
    ("SSH2_MSG_NEWKEYS received", "authentication"),
    ("Authenticated to", "exec"),
)
SERVER_VERSION = re.compile(r"remote software version (.*)")
_HARDWARE_KEY = re.compile(
    r"^debug1: Server accepts key: (.+) (?:ECDSA|ED25519)-SK(?:-CERT)? SHA256:", re.MULTILINE
)
NO_SIGNATURE = re.compile(r"signing failed for \S+-SK\b")
_SIGNED = re.compile(
    r"Authenticated to|Authentications that can continue|signing failed for|No more authentication"
)
_NOT_CONNECTED = re.compile(r"^debug1: connect to address \S+ port \d+: (.+)$", re.MULTILINE)
SERVER_KEY = re.compile(r"Server host key: (\S+) (SHA256:\S+)")


def step_of(log: str) -> str:
    """The step in which an `ssh` gave up, by its log at DEBUG1."""
    reached = [(log.rfind(mark), step) for mark, step in _MARKS if mark in log]
    return max(reached)[1] if reached else "resolve"


def waits_for_touch(log: str) -> str | None:
    """The hardware key that an `ssh` has asked for a signature and that has not signed yet, by its log at DEBUG1."""
    asked = list(_HARDWARE_KEY.finditer(log))
    return asked[-1][1] if asked and not _SIGNED.search(log, asked[-1].end()) else None


def nobody_listens(log: str) -> bool:
    """Whether every address of the host answered an `ssh` that no server is there, by its log at DEBUG1."""
    return {why.strip() for why in _NOT_CONNECTED.findall(log)} == {os.strerror(errno.ECONNREFUSED)}


def words_of(log: str) -> str:
    """What an `ssh` said to a person: its log without debugging lines."""
    lines = [line.strip().strip("@").strip() for line in log.splitlines()]  # warnings stand in frames of @
    said = [
        line
        for line in lines
        if line
        and not re.match(r"debug\d: |OpenSSH_|Authenticated to|Connection closed$|.*Unsupported option", line)
    ]
    return "\n".join("".join(char if char.isprintable() else "?" for char in line) for line in said[-12:])
