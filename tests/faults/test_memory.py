"""How much memory the controller needs for very many hosts. (The agent's bound is held in tests/agent/core.)"""

from __future__ import annotations

from pathlib import Path

from benchmarks.memory import CONTROLLER_MIB, controller_peak_mib


def test_64_hosts_with_2000_events_each_fit(tmp_path: Path) -> None:
    """Real connections, to an sshd whose commands make journals up as fast as they are taken."""
    assert controller_peak_mib(tmp_path, 64, 2000) < CONTROLLER_MIB
