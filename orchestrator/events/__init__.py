"""Folding the hosts' journals into measurements; pure (bytes in, values out)."""

from orchestrator.events.fold import Fold
from orchestrator.events.journal import BadLine, JournalLines, parse_line, parse_measurement
from orchestrator.events.missing import Expected, as_record, lacking, missing
from orchestrator.events.state import AgentState, Entry, HostState, Key, WorkerView

__all__ = [
    "AgentState",
    "BadLine",
    "Entry",
    "Expected",
    "Fold",
    "HostState",
    "JournalLines",
    "Key",
    "WorkerView",
    "as_record",
    "lacking",
    "missing",
    "parse_line",
    "parse_measurement",
]
