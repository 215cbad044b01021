"""The clocks of one case's backends, held against each other: times of different clocks are no comparison of kernels.

Backends take turns, so whatever moves the clock moves all of them alike. One that is measured apart (after a crash, or a
second time later in the run) may meet another clock: a hotter device, or clocks that somebody set meanwhile. If the SM
clocks of two backends of a case differ by more than 5%, both are `suspect: clock_offset`, and measured again together.

What a limit of the device explains is none of this. Under a power cap each kernel has the clock that its own power leaves
it, which belongs to the kernel as much as its time does; thermal and hardware slowdowns are `throttled` already. So only
windows without either are compared, of at least three looks at the busy device (`looks.DeviceWindow.steady_clock_mhz`).
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

Record = Dict[str, Any]

CLOCKS_DIFFER = 0.05


class CaseClocks:
    """Of one case: the records that wait until all clocks of an attempt are known, and the clocks of those before."""

    def __init__(self) -> None:
        self._held: List[Tuple[str, Record, float]] = []
        self._standing: Dict[str, float] = {}

    def hold(self, asked: str, record: Record, clock_mhz: float) -> None:
        """A record of the attempt that is on."""
        self._held.append((asked, record, clock_mhz))

    def judge(self) -> List[Tuple[str, Record]]:
        """(backend, record) of all that was held, in order; those at a clock of their own are suspect, with the others'
        clocks as evidence. A backend measured again is held against those that were not in doubt."""
        held, self._held = self._held, []
        now = {asked: clock_mhz for asked, _, clock_mhz in held}
        clocks = {**self._standing, **now}
        judged = []
        for asked, record, clock_mhz in held:
            others = {
                name: other for name, other in clocks.items() if name != asked and _differ(clock_mhz, other)
            }
            judged.append((asked, _doubted(record, clock_mhz, others) if others else record))
            if not others:
                self._standing[asked] = clock_mhz
        return judged


def _differ(one_mhz: float, other_mhz: float) -> bool:
    return abs(one_mhz - other_mhz) > CLOCKS_DIFFER * max(one_mhz, other_mhz)


def _doubted(record: Record, clock_mhz: float, others: Dict[str, float]) -> Record:
    verdict = "suspect" if record["verdict"] == "valid" else record["verdict"]
    evidence = {"sm_clock_mhz": clock_mhz, "others_mhz": others}
    return {
        **record,
        "verdict": verdict,
        "reasons": [*record["reasons"], "clock_offset"],
        "extra": {**record["extra"], "clock_offset": evidence},
    }
