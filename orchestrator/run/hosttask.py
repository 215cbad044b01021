"""What a host's thread is given to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.inventory import HostSpec
from orchestrator.launch.dialogue import Dialogue


@dataclass(frozen=True)
class HostTask:
    """Everything needed to start (or only to follow) a host's part of a run.

    `items` gives the cases to launch with, at the moment of the launch. `offset` bytes of its journal are here, the last
    of them `before`; the journal that the host has now begins at byte `base` of our copy. `begun`: the host may have its
    part already; `first`: it was never asked to take it. `eager`: a host that cannot be reached at first is not waited for. `at_end` is done on the host's link once its agent has ended, before that is told; it is given how to say what it does, and returns problems to tell of."""

    spec: HostSpec
    run_id: str
    job: Mapping[str, Any]
    tree: Mapping[str, bytes]
    items: Callable[[], Sequence[Mapping[str, Any]]]
    sealed: bool = True
    secrets: Mapping[str, str] = field(default_factory=dict)
    offset: int = 0
    before: bytes = b""
    base: int = 0
    begun: bool = False
    first: bool = False
    follow_only: bool = False
    eager: bool = False
    at_end: Callable[[Dialogue, Callable[[str], None]], Sequence[str]] | None = None
