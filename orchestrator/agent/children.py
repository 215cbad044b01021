"""Which children this process has started itself, of those that stand in sessions of their own.

All others that it has there it adopted (`orphans`), and may end.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Callable, Iterator, Set

own: Set[int] = set()
"""PIDs of children that were started, until they have been waited for."""
starting = threading.Lock()
"""Held from before a child is started until it is in `own`."""


@contextlib.contextmanager
def start() -> Iterator[Callable[[int], None]]:
    """A child is started within; what is given is to be called with its PID. See that `own` loses it again."""
    with starting:
        yield own.add
