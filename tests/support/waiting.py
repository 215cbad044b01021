"""Waiting for conditions with generous bounds, and doing things at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

BOUND_S = 60


def wait_for(condition: Callable[[], Any], what: str = "the condition to come true") -> Any:
    """The first true value of `condition`; `what` it stands for is told where it never comes."""
    deadline = time.monotonic() + BOUND_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.02)
    return value


def in_threads(tasks: Sequence[Callable[[], Any]]) -> None:
    """Everything at once, to the end. What a task raises is raised here."""
    problems: list[BaseException] = []

    def guarded(task: Callable[[], Any]) -> None:
        try:
            task()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * BOUND_S)
        assert not thread.is_alive()
    if problems:
        raise problems[0]
