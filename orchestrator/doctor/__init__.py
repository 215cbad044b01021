"""Can every host be used, and if not, how to fix it: checks, host by host."""

from __future__ import annotations

from .check import Check, HostHealth, State
from .examine import LIMIT_S, examine

__all__ = ["LIMIT_S", "Check", "HostHealth", "State", "examine"]
