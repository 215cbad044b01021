"""How soon a worker that does not want to end is ended: a cancelled run's devices are free within five seconds."""

from __future__ import annotations

import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

from orchestrator.agent import worker as workers
from orchestrator.agent.logs import LogFile, Redactor
from orchestrator.agent.spawning import execute
from orchestrator.agent.worker import Worker
from tests.support.waiting import wait_for

from .conftest import runs

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
KILLED_AFTER_S = 2.0


def test_a_deaf_worker_is_killed_two_seconds_after_it_was_told_to_end(tmp_path: Path) -> None:
    """The clock is ours: nothing happens before that, and it is all over right then."""
    with selectors.DefaultSelector() as selector:
        log = LogFile(str(tmp_path / "log"), Redactor([]))
        worker = Worker("cpu0-001", "nonce", selector, log, lambda *_: None)
        worker.start(
            lambda marks, output, keep: execute(
                [sys.executable, "-c", DEAF], {}, marks, None, str(tmp_path), output, keep
            )
        )

        def deaf() -> Any:
            worker.pump()
            return "deaf" in log.tail()

        wait_for(deaf)
        told = time.monotonic()
        worker.stop(politely=False)
        soon = worker.next_tick(told)
        assert workers.TERM_GRACE_S == KILLED_AFTER_S <= soon
        worker.tick(told + KILLED_AFTER_S / 2)
        assert runs(worker.pid)
        worker.tick(told + soon)
        wait_for(lambda: worker.tick(told + soon) or worker.returncode is not None)
        assert worker.returncode == -signal.SIGKILL
        wait_for(lambda: worker.tick(told + soon) or worker.gone)
