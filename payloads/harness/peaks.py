"""Dense peak rates of GPUs, to say what fraction of the hardware a result reaches.

From public tables that repeat vendors' figures (secondary sources; dense, so half of what is advertised with sparsity).
Ceilings measured on a card are lower and better; a record says where its peak came from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Optional

SOURCE = "secondary: public specification tables, dense"


@dataclass(frozen=True)
class Peak:
    """TFLOP/s (of integers: TOP/s) by precision, and device memory in TB/s."""

    tflops: Dict[str, float]
    memory_tbps: float


def _peak(
    memory: float,
    bf16: float,
    fp8: Optional[float] = None,
    nvfp4: Optional[float] = None,
    int8: Optional[float] = None,
) -> Peak:
    rates = {"bf16": bf16, "fp16": bf16, "fp8": fp8, "nvfp4": nvfp4, "int8": int8}
    return Peak({name: rate for name, rate in rates.items() if rate is not None}, memory)


# The first pattern that the device's name matches wins; slower variants of a name are left out on purpose.
_TABLE = (
    (r"\bH200\b(?! NVL)", _peak(4.8, 989, 1979, int8=1979)),
    (r"\bH100\b(?! (PCIe|NVL))", _peak(3.35, 989, 1979, int8=1979)),
    (r"\bGB200\b", _peak(8.0, 2500, 5000, 10000)),
    (r"\bB300\b", _peak(8.0, 2250, 4500, 13500)),
    (r"\bB200\b", _peak(8.0, 2250, 4500, 9000)),
    (r"RTX PRO 6000 Blackwell Server", _peak(1.597, 504, 1008, 2015)),
    (r"RTX PRO 6000 Blackwell(?! Max-Q)", _peak(1.79, 504, 1008, 2015)),
    (r"RTX 5090\b(?! (D|Laptop))", _peak(1.79, 210, 419, 1676)),
    (r"A100-SXM.*80GB", _peak(2.04, 312, int8=624)),
    (r"\bL40S\b", _peak(0.864, 362, 733, int8=733)),
)


def peak_of(device_name: str) -> Optional[Peak]:
    """The device's peaks, or None where they are not known (a MIG slice included)."""
    if "MIG" in device_name:
        return None
    for pattern, peak in _TABLE:
        if re.search(pattern, device_name):
            return peak
    return None


def metrics(
    median_us: float,
    device_name: str,
    flops: Optional[float],
    bytes_moved: Optional[float],
    precision: Optional[str],
) -> Dict[str, float]:
    """`tflops`, `gbps`, and where the peaks are known `peak_fraction` (of arithmetic) and `bandwidth_fraction`."""
    found: Dict[str, float] = {}
    peak = peak_of(device_name)
    if flops is not None:
        found["tflops"] = flops / median_us / 1e6
        rate = peak.tflops.get(precision or "") if peak else None
        if rate is not None:
            found["peak_fraction"] = found["tflops"] / rate
    if bytes_moved is not None:
        found["gbps"] = bytes_moved / median_us / 1e3
        if peak is not None:
            found["bandwidth_fraction"] = found["gbps"] / 1e3 / peak.memory_tbps
    return found
