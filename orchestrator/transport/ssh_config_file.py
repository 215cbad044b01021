"""A small reader of ssh config files, for controllers without an ssh client.

It understands `Host`, `Include` and `Match all`. Any other `Match` block is left out with a warning that names its line: a
block whose condition was not checked is never applied.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orchestrator.transport.patterns import matches_list

MAX_INCLUDES = 16
_SEVERAL = frozenset({"identityfile", "certificatefile"})
"""Options whose values add up; of every other one the first value counts."""


def read_ssh_config(
    files: Sequence[Path], host: str, *, home: Path, warn: Callable[[str], None]
) -> dict[str, list[str]]:
    """The options for `host`: lower-case option → values, in the form of `ssh -G` (which fills in defaults, unlike this).

    The first value of an option wins, across files in their order. A missing file is an empty one.
    """
    settings: dict[str, list[str]] = {}
    for file in files:
        for key, value in _Reader(host, home, warn).options(file, applies=True, depth=0):
            if key not in settings:
                settings[key] = [value]
            elif key in _SEVERAL and value not in settings[key]:
                settings[key].append(value)
    if name := settings.get("hostname"):
        name[0] = name[0].replace("%%", "\0").replace("%h", host).replace("\0", "%")
    return settings


class _Reader:
    def __init__(self, host: str, home: Path, warn: Callable[[str], None]) -> None:
        self._host = host
        self._home = home
        self._warn = warn

    def options(self, file: Path, *, applies: bool, depth: int) -> Iterator[tuple[str, str]]:
        """The options of one file that hold for the host. A block opened in an included file ends with that file."""
        try:
            lines = file.read_text("utf-8-sig", errors="surrogateescape").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return
        outer = applies
        for number, line in enumerate(lines, 1):
            key, words = self._parse(line, f"{file}:{number}")
            if key == "host":
                applies = outer and matches_list(self._host, words)
            elif key == "match":
                applies = outer and [word.lower() for word in words] == ["all"]
                if not applies and outer:
                    self._warn(
                        f"{file}:{number}: this Match block is left out: only an ssh client can check it"
                    )
            elif key == "include" and applies:
                yield from self._included(file, words, depth)
            elif key and words and applies:
                yield key, " ".join(words)

    def _included(self, file: Path, patterns: Sequence[str], depth: int) -> Iterator[tuple[str, str]]:
        if depth >= MAX_INCLUDES:
            self._warn(f"{file}: more than {MAX_INCLUDES} levels of Include")
            return
        base = Path("/etc/ssh") if file.is_relative_to("/etc/ssh") else self._home / ".ssh"
        for pattern in patterns:
            whole = self._home / pattern[2:] if pattern.startswith("~/") else base / pattern
            for path in sorted(Path("/").glob(str(whole).lstrip("/"))):
                yield from self.options(path, applies=True, depth=depth + 1)

    def _parse(self, line: str, place: str) -> tuple[str, list[str]]:
        text = line.strip()
        if not text or text.startswith("#"):
            return "", []
        end = next((i for i, c in enumerate(text) if c in " \t="), len(text))
        key, rest = text[:end].lower(), text[end:].strip()
        rest = rest[1:].strip() if rest.startswith("=") else rest
        if key == "proxycommand":
            return key, [rest]
        try:
            return key, shlex.split(rest, comments=True)
        except ValueError as error:
            self._warn(f"{place}: {error}")
            return "", []
