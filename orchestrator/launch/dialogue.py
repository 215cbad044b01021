"""What the controller can ask of a host. Each question is one exec channel; see docs/architecture.md for the dialogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

from orchestrator.errors import HostError, HostUnreachable
from orchestrator.launch.ahead import JOURNAL_UNREAD_BYTES, CalledAhead
from orchestrator.launch.bundle import agent_bundle, stub_source
from orchestrator.launch.exchange import Exchange
from orchestrator.launch.files import Content, FileSet
from orchestrator.launch.messages import (
    Alive,
    Cancelled,
    Collected,
    End,
    Events,
    EventsHeader,
    FileList,
    Hello,
    Launched,
    OtherJournal,
    Probe,
    RemoteFile,
    RunList,
    RunStatus,
)
from orchestrator.launch.python import stub_command
from orchestrator.transport.base import Transport

__all__ = [
    "Alive", "Collected", "Dialogue", "End", "Events", "FileSet", "Following", "Hello", "Launched", "Message",
    "OtherJournal", "Probe", "RemoteFile", "RunStatus", "Session",
]  # fmt: skip

Message = Hello | Launched | Events | Alive | OtherJournal | End
SILENCE_S = 30.0
"""The stub says something every 5 s; after this long without a word the link counts as lost."""
ANSWER_TIMEOUT_S = 120.0
CANCEL_TIMEOUT_S = 600.0
"""Workers get time to end by themselves before they are killed."""
PROBE_TIMEOUT_S = 300.0
"""It imports the libraries of the payloads."""

T = TypeVar("T")


class HostSpec(Protocol):
    """What a dialogue needs to know of an entry of hosts.yaml."""

    @property
    def name(self) -> str:
        """The entry's key."""

    @property
    def workdir(self) -> str:
        """The work folder on the host; `~` is the host's."""

    @property
    def agent_python(self) -> str | None:
        """The interpreter to try first for the agent."""

    @property
    def python(self) -> str | None:
        """The interpreter of the payloads."""

    @property
    def activate(self) -> str | None:
        """What /bin/sh sources before a payload starts."""

    @property
    def devices(self) -> Any:
        """Which devices to use."""

    @property
    def env(self) -> Mapping[str, Any]:
        """Variables of the payloads; what is no text is known only when a run starts."""


@dataclass(frozen=True)
class Session:
    """A coordinator's claim to steer a run: the host obeys the session that claimed it last."""

    token: str
    claim: bool = False

    def fields(self) -> dict[str, Any]:
        """What a command carries of it."""
        return {"coordinator": self.token, "claim": self.claim}


class Following:
    """A host's journal as it grows. Iterate once; `send_control` and `close` may be called from other threads.

    The iteration ends after `End` and `OtherJournal`, after `close`, or after `Launched` where no following was asked for. It raises
    `HostUnreachable` when the link breaks or is silent, `HostUnusable` when the host refuses or sends nonsense.
    """

    def __init__(self, exchange: Exchange, hello: Hello, *, launches: bool, offset: int | None) -> None:
        self.hello = hello
        self._exchange = exchange
        self._launches = launches
        self._offset = offset
        self._closed = False

    def __iter__(self) -> Iterator[Message]:
        try:
            yield self.hello
            if self._launches:
                yield self._exchange.answer(Launched, "launched", ANSWER_TIMEOUT_S)
            while self._offset is not None:
                message = self._next()
                yield message
                if isinstance(message, End | OtherJournal):
                    return
        except HostError:
            if not self._closed:
                raise
        finally:
            self.close()

    def send_control(self, message: Mapping[str, Any]) -> None:
        """Tell the agent something: `cancel`, `enqueue`, `release`. Raises `HostUnreachable`."""
        self._exchange.send(message)

    def close(self) -> None:
        """Stop following; the agent goes on."""
        self._closed = True
        self._exchange.close()

    def _next(self) -> Events | Alive | OtherJournal | End:
        assert self._offset is not None
        message = self._exchange.next_message(SILENCE_S)
        if message is None:
            raise HostUnreachable(
                self._exchange.host, "our program there ended before the run did", step="follow"
            )
        match message["type"]:
            case "events":
                header = self._exchange.parsed(EventsHeader, message)
                if header.offset != self._offset:
                    raise self._exchange.broken(
                        f"the journal from {header.offset} on instead of {self._offset}"
                    )
                data = self._exchange.raw(header.length)
                self._offset += header.length
                return Events(header.offset, data)
            case "alive":
                return self._exchange.parsed(Alive, message)
            case "other_journal":
                return OtherJournal()
            case "end":
                return self._exchange.parsed(End, message)
        raise self._exchange.broken(f"an unknown message while following: {message['type'][:40]!r}")


class Dialogue:
    """Asks one host. Every method opens a channel of its own, so they may be called from several threads.

    All raise `HostUnreachable`, `HostRefused` and `HostUnusable`.
    """

    def __init__(self, transport: Transport, spec: HostSpec) -> None:
        self._transport = transport
        self._spec = spec

    def launch(
        self,
        *,
        job: Mapping[str, Any],
        tree: Mapping[str, Content] | FileSet,
        queue: Sequence[Mapping[str, Any]],
        sealed: bool = True,
        secrets: Mapping[str, str] | None = None,
        follow_offset: int | None = 0,
        before: bytes = b"",
        session: Session | None = None,
        first: bool = False,
    ) -> Following:
        """Stage the files of `tree` (path in the run's folder → content) and start the agent; then follow it.

        `job` is the content of job.json and names the run. With `follow_offset` None the agent is only started: iterate
        to learn that it was. Launching a run that is already there is no error; `first` promises that it was never tried
        before, so that nothing of it is looked for. `before` and `session`: see `follow`."""
        files = tree if isinstance(tree, FileSet) else FileSet(tree)
        command = {
            "name": "launch", "run_id": job["run_id"], "job": job, "tree": files.tree, "queue": list(queue),
            "sealed": sealed, "secrets": dict(secrets or {}), "follow": follow_offset, "first": first,
            **_following(before, session),
        }  # fmt: skip
        exchange, hello = self._ask(command, files, unread_bytes=JOURNAL_UNREAD_BYTES)
        return Following(exchange, hello, launches=True, offset=follow_offset)

    def follow(
        self, run_id: str, offset: int, *, before: bytes = b"", session: Session | None = None
    ) -> Following:
        """Follow a run's journal from byte `offset` on.

        `before` are the bytes that we hold just in front of `offset`; where the host's journal has others there, it is
        another one, and `OtherJournal` is all that comes. With `session`, raises `HostUnusable` of the step
        `coordinate` when another session has the run."""
        command = {"name": "follow", "run_id": run_id, "offset": offset, **_following(before, session)}
        exchange, hello = self._ask(command, unread_bytes=JOURNAL_UNREAD_BYTES)
        return Following(exchange, hello, launches=False, offset=offset)

    def status(self, run_id: str) -> RunStatus:
        """Where the run stands."""
        return self._answer({"name": "status", "run_id": run_id}, RunStatus, "status")

    def cancel(self, run_id: str) -> int:
        """Cancel the run and wait until its workers are gone; returns the number of measurements that were made."""
        command = {"name": "cancel", "run_id": run_id}
        return self._answer(command, Cancelled, "cancelled", CANCEL_TIMEOUT_S).measurements

    def list_files(self, run_id: str) -> list[RemoteFile]:
        """The logs and collected files of a run. Paths that would lead out of the run's folder are never returned."""
        exchange, _ = self._ask({"name": "list", "run_id": run_id})
        try:
            listed = exchange.answer(FileList, "files", ANSWER_TIMEOUT_S).files
            for path, _size in listed:
                if not _stays_inside(path):
                    raise exchange.broken(f"a file outside the run's folder: {path[:200]!r}")
            return [RemoteFile(path, size) for path, size in listed]
        finally:
            exchange.close()

    def probe(self, modules: Sequence[str] = ()) -> tuple[Hello, Probe]:
        """What the host is and has: devices, interpreters, versions of `modules`, free disk space."""
        spec = self._spec
        command = {
            "name": "probe", "python": spec.python, "activate": spec.activate, "devices": spec.devices,
            "modules": list(modules), "env": {name: value for name, value in spec.env.items() if isinstance(value, str)},
        }  # fmt: skip
        exchange, hello = self._ask(command)
        try:
            details = exchange.answer(dict[str, Any], "probe", PROBE_TIMEOUT_S)
            return hello, exchange.parsed(Probe, {"type": "probe", **details, "details": details})
        finally:
            exchange.close()

    def runs(self) -> list[dict[str, Any]]:
        """The runs in the host's work folder, as the agent lists them."""
        return self._answer({"name": "runs"}, RunList, "runs").runs

    def gc(self, *, dry_run: bool, keep: Sequence[str] = (), home: Sequence[str] | None = None) -> Collected:
        """Remove what no run needs, except the runs of `keep` and, unless they are old, those that are not in `home`
        (whose results we have; None: every ended run may go). With `dry_run` only say what would go."""
        command = {
            "name": "gc",
            "dry_run": dry_run,
            "keep": list(keep),
            "home": None if home is None else list(home),
        }
        return self._answer(command, Collected, "gc")

    def converse(self, command: Mapping[str, Any], files: FileSet | None = None) -> tuple[Exchange, Hello]:
        """Begin a command whose answers the caller takes from the exchange, and closes it; `files` are put into the
        host's cache before."""
        return self._ask(command, files)

    def _answer(
        self, command: Mapping[str, Any], kind: type[T], name: str, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> T:
        exchange, _ = self._ask(command)
        try:
            return exchange.answer(kind, name, timeout_s)
        finally:
            exchange.close()

    def _ask(
        self, command: Mapping[str, Any], files: FileSet | None = None, *, unread_bytes: int | None = None
    ) -> tuple[Exchange, Hello]:
        """Open a channel, send the request, and see to it that the host has the agent and `files`."""
        if "run_id" in command:
            # Two entries may name one machine: each has its own part of the run there.
            command = {"host": self._spec.name, **command}
        sha256, agent = agent_bundle()
        needed = FileSet()
        needed.add(agent, sha256)
        needed = files.joined(needed) if files is not None else needed
        request = {
            "workdir": self._spec.workdir, "agent": sha256, "files": needed.announcement(), "command": command,
        }  # fmt: skip
        waiting = self._transport.take_waiting() if isinstance(self._transport, CalledAhead) else None
        if waiting is not None:
            exchange, stub = Exchange(waiting, self._spec.name), None
        else:
            argv = stub_command(self._spec.agent_python, self._spec.python)
            process = self._transport.spawn(argv, unread_bytes=unread_bytes)
            exchange, stub = Exchange(process, self._spec.name), stub_source()
        try:
            return exchange, exchange.begin(stub, request, needed)
        except BaseException:
            exchange.close()
            raise


def _following(before: bytes, session: Session | None) -> dict[str, Any]:
    return {"before": before.hex(), **(session.fields() if session is not None else {})}


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path
