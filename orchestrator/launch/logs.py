"""A run's logs on a host, as they are and as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import HostUnreachable
from orchestrator.launch.dialogue import SILENCE_S, Dialogue
from orchestrator.launch.messages import Block


@dataclass(frozen=True)
class _LogHeader:
    """Announces `length` raw bytes of a worker's log."""

    worker: str
    length: Block


def stream_logs(
    dialogue: Dialogue,
    run_id: str,
    *,
    worker: str | None = None,
    tail: int | None = None,
    follow: bool = False,
) -> Iterator[tuple[str, bytes]]:
    """(worker, some of what it printed), in order for each worker.

    `worker` names one; `tail` is how many of the last lines of each come first (None: all); with `follow` it goes on
    until the run's agent is gone. Raises `HostError`."""
    command = {"name": "logs", "run_id": run_id, "worker": worker, "tail": tail, "follow": follow}
    exchange, _ = dialogue.converse(command)
    try:
        while True:
            message = exchange.next_message(SILENCE_S)
            if message is None:
                raise HostUnreachable(
                    exchange.host, "our program there ended before the logs did", step="logs"
                )
            if message["type"] == "log":
                header = exchange.parsed(_LogHeader, message)
                yield header.worker, exchange.raw(header.length)
            elif message["type"] == "end":
                return
            elif message["type"] != "alive":
                raise exchange.broken(f"an unknown message among logs: {message['type'][:40]!r}")
    finally:
        exchange.close()
