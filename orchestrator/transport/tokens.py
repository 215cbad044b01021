"""The `%`-tokens and `${VARIABLES}` of ssh config values that `ssh -G` prints as they were written."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class UnknownToken(ValueError):
    """A token that ssh does not know, or a variable that is not set: ssh ends there."""


@dataclass(frozen=True)
class Connection:
    """What the tokens of one connection stand for."""

    host: str
    address: str
    port: int
    user: str
    key_alias: str | None
    jumps: str
    local_user: str
    home: Path
    unique: str | None = None
    """What ssh itself says that %C is."""

    def tokens(self) -> Mapping[str, str]:
        """Token letter → its text."""
        local = socket.gethostname()
        ours = hashlib.sha1(f"{local}{self.host}{self.port}{self.user}".encode()).hexdigest()  # noqa: S324  # as ssh does
        told = self.unique if self.unique and re.fullmatch(r"[0-9a-f]{40,}", self.unique) else None
        return {
            "%": "%", "h": self.host, "n": self.address, "p": str(self.port), "r": self.user, "u": self.local_user,
            "d": str(self.home), "i": str(os.getuid()), "k": self.key_alias or self.address, "j": self.jumps,
            "l": local, "L": local.split(".")[0], "C": told or ours,
        }  # fmt: skip


def fill(text: str, tokens: Mapping[str, str]) -> str:
    """Every token replaced once, from left to right. Raises `UnknownToken`."""

    def one(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise UnknownToken(f"%{match[1]} in {text!r} is not known")
        return tokens[match[1]]

    return re.sub(r"%(.?)", one, text)


def expand(path: str, tokens: Mapping[str, str], environ: Mapping[str, str], home: Path) -> Path:
    """A path of the ssh config: `~`, tokens and `${VARIABLES}`. Raises `UnknownToken`."""

    def variable(match: re.Match[str]) -> str:
        if not environ.get(match[1]):
            raise UnknownToken(f"the variable {match[0]} in {path!r} is not set")
        return environ[match[1]]

    # What a token or a variable stands for is not looked through again.
    parts = re.split(r"(\$\{[^}]*\})", path)
    text = "".join(
        _VARIABLE.sub(variable, part) if _VARIABLE.fullmatch(part) else fill(part, tokens) for part in parts
    )
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UnknownToken(f"{path!r}: {error}") from error
