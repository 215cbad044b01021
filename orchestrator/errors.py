"""Everything farbench refuses, as one tree; each class carries the exit code that `farbench` ends with.

    FarbenchError
    ├── UsageError            2    wrong arguments
    │   └── FileError         2    a wrong file: sweep, hosts.yaml, template (knows file and line)
    ├── NothingToDo           4    no case selected, nothing left to resume
    ├── NoUsableHost          3    not one host could be used
    ├── HostError             3    one host could not be used; `state` says how
    │   ├── HostUnreachable        no connection, or it was lost
    │   ├── HostRefused            host key or authentication
    │   └── HostUnusable           no Python, no room, no device, broken agent
    ├── ArchiveError          2    no such run, a damaged or locked archive
    │   └── ArchiveFault           the disk or the rights here are at fault, and no run is harmed
    │       ├── ArchiveUnreadable      what is kept of a run could not be read
    │       └── ArchiveUnwritable      what came of a run could not be kept
    │           └── ArchiveFull        for want of room
    └── RunIncomplete         1    the run ended, but not every measurement is ok or unsupported

Outcomes of measurements are values (`model.Status`), never exceptions.
"""

from __future__ import annotations

from pathlib import Path

EXIT_OK = 0
EXIT_INCOMPLETE = 1
EXIT_USAGE = 2
EXIT_NO_HOST = 3
EXIT_NOTHING = 4
EXIT_REGRESSION = 5
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class FarbenchError(Exception):
    """A refusal with one clear message: what is wrong, where, and what to do about it."""

    exit_code = EXIT_INCOMPLETE


class UsageError(FarbenchError):
    """Arguments that make no sense."""

    exit_code = EXIT_USAGE


class FileError(UsageError):
    """A file the user wrote is wrong; the message starts with `path:line:` where a line is known (1-based)."""

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.line = line
        self.bare_message = message
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(where + message)


class NothingToDo(FarbenchError):
    """No case is selected, or nothing is left to resume."""

    exit_code = EXIT_NOTHING


class NoUsableHost(FarbenchError):
    """Not one of the selected hosts could be used."""

    exit_code = EXIT_NO_HOST


class HostError(FarbenchError):
    """One host could not be used. `step` names the step that failed, `state` is what the run reports."""

    exit_code = EXIT_NO_HOST
    state = "unusable"

    def __init__(self, host: str, message: str, *, step: str | None = None, hint: str | None = None) -> None:
        self.host = host
        self.step = step
        self.hint = hint
        self.bare_message = message
        text = f"{host}: {f'{step}: ' if step else ''}{message}"
        super().__init__(f"{text}\n  {hint}" if hint else text)


class HostUnreachable(HostError):
    """No connection, or a connection that was lost. `nobody_listens`: the address answered that no server is there."""

    state = "unreachable"

    def __init__(
        self,
        host: str,
        message: str,
        *,
        step: str | None = None,
        hint: str | None = None,
        nobody_listens: bool = False,
    ) -> None:
        self.nobody_listens = nobody_listens
        super().__init__(host, message, step=step, hint=hint)


class HostRefused(HostError):
    """The host key is unknown or changed, or the host did not accept us."""

    state = "refused"


class HostUnusable(HostError):
    """Reached, but it cannot run measurements: no Python, no room, no device, a broken agent."""

    state = "unusable"


class ArchiveError(FarbenchError):
    """No such run, or an archive that is damaged or in use."""

    exit_code = EXIT_USAGE


class ArchiveFault(ArchiveError):
    """The file system here did not do its part; what came of a run is still at its hosts."""


class ArchiveUnreadable(ArchiveFault):
    """What is kept of a run here could not be read: a missing right, a failing disk."""


class ArchiveUnwritable(ArchiveFault):
    """What came of a run could not be kept here."""


class ArchiveFull(ArchiveUnwritable):
    """There is no room for it: the disk is full, a quota used up, or a file may not grow any more."""


class RunIncomplete(FarbenchError):
    """The run ended, but not every measurement is ok or unsupported."""

    exit_code = EXIT_INCOMPLETE
