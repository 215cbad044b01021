"""Looks at a device while something is measured on it, and what they say of the number.

Rules (`judge`):

- `throttled`: a thermal slowdown, a hardware slowdown or a power brake was seen at any moment of the window.
- `throttled`: the software power cap was seen, *and* the SM clock fell during the window: over the looks at a busy
  device (6 at least) its median lies more than 10% below its maximum, and the median of the last third more than 10%
  below that of the first. A power cap alone is how big kernels run on big GPUs (an H200 runs large bf16 products at
  1485 of 1980 MHz, for hours): it is recorded, and nothing more. Nor do interleaved kernels that draw more and less
  make a fall.
- `contended`: a process that is not ours had a compute context on the device before, during or after.
- `clock_offset` (`offsets`): the backends of one case ran at different clocks that no limit explains.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from .nvml import EVENT_REASONS
from .smi import Reading

_IDLE = 0x1
_POWER_CAP = 0x4
_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80
_NOTABLE_DROP = 0.9
_ENOUGH_LOOKS = 6
_STEADY_LOOKS = 3


class DeviceWindow:
    """What was seen of one device between `begin` and `end`."""

    def __init__(self) -> None:
        self.reasons = 0
        self._limits_known = False
        self._busy = _Looks()
        self._idle = _Looks()
        self._memory: List[float] = []
        self._temperature: List[float] = []

    def add(self, reading: Reading) -> None:
        """Take in one look."""
        bits = reading.event_reasons or 0
        self._limits_known = self._limits_known or reading.event_reasons is not None
        self.reasons |= bits
        looks = self._idle if bits & _IDLE else self._busy
        for value, values in (
            (reading.sm_clock_mhz, looks.sm),
            (reading.power_w, looks.power),
            (reading.mem_clock_mhz, self._memory),
            (reading.temperature_c, self._temperature),
        ):
            if value is not None:
                values.append(value)

    @property
    def sm_clock_mhz(self) -> Optional[float]:
        """The median while it was busy; of all looks if it never was."""
        return _median(self._busy.sm or self._idle.sm)

    @property
    def mem_clock_mhz(self) -> Optional[float]:
        """The median."""
        return _median(self._memory)

    @property
    def power_w(self) -> Optional[float]:
        """The mean while it was busy; of all looks if it never was."""
        values = self._busy.power or self._idle.power
        return round(sum(values) / len(values), 1) if values else None

    @property
    def temperature_c(self) -> Optional[float]:
        """The highest."""
        return max(self._temperature, default=None)

    @property
    def throttled(self) -> bool:
        """See the module's rules."""
        if self.reasons & _SLOWDOWN:
            return True
        clocks = self._busy.sm
        if not self.reasons & _POWER_CAP or len(clocks) < _ENOUGH_LOOKS:
            return False
        third = len(clocks) // 3
        first, last = statistics.median(clocks[:third]), statistics.median(clocks[-third:])
        return statistics.median(clocks) < _NOTABLE_DROP * max(clocks) and last < _NOTABLE_DROP * first

    @property
    def steady_clock_mhz(self) -> Optional[float]:
        """The SM clock, if it can be held against another window's: three looks at a busy device, and no limit that
        set it. Under a power cap each kernel has the clock that its own power leaves it."""
        if (
            self.reasons & (_POWER_CAP | _SLOWDOWN)
            or not self._limits_known
            or len(self._busy.sm) < _STEADY_LOOKS
        ):
            return None
        return self.sm_clock_mhz


class _Looks:
    """Readings in the order they were taken."""

    def __init__(self) -> None:
        self.sm: List[float] = []
        self.power: List[float] = []


def judge(
    windows: Sequence[DeviceWindow], foreign_compute: Set[int], foreign: Set[int]
) -> Tuple[Dict[str, Any], List[str]]:
    """(telemetry as in results, reasons). Of several devices the slowest clocks, the highest power and temperature."""
    bits = 0
    for window in windows:
        bits |= window.reasons
    telemetry = {
        "sm_clock_mhz": _best(min, [window.sm_clock_mhz for window in windows]),
        "mem_clock_mhz": _best(min, [window.mem_clock_mhz for window in windows]),
        "power_w": _best(max, [window.power_w for window in windows]),
        "temperature_c": _best(max, [window.temperature_c for window in windows]),
        "throttle_reasons": [name for bit, name in EVENT_REASONS if bits & bit and bit != _IDLE],
        "foreign_pids": sorted(foreign),
    }
    reasons = ["throttled"] if any(window.throttled for window in windows) else []
    return telemetry, reasons + (["contended"] if foreign_compute else [])


def steady_clock_mhz(windows: Sequence[DeviceWindow]) -> Optional[float]:
    """Of several devices the slowest clock; None where one of them has none to compare."""
    clocks = [window.steady_clock_mhz for window in windows]
    return None if None in clocks else _best(min, clocks)


def _median(values: List[float]) -> Optional[float]:
    # A clock that was seen, not the mean of two.
    return statistics.median_low(values) if values else None


def _best(choose: Callable[[List[float]], float], values: Iterable[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
