"""The scale format of NVFP4: float8 e4m3fn (bias 7, no infinities, NaN = 0x7f and 0xff), in numpy alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

MAX = 448.0


@lru_cache(maxsize=1)
def values() -> Any:
    """The 256 values by code, float32; codes 0x7f and 0xff are NaN."""
    import numpy as np

    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


def decode(codes: Any) -> Any:
    """Codes (uint8, any shape) to float32, exactly."""
    return values()[codes]


def encode(x: Any) -> Any:
    """Float32 to codes: round to nearest even, saturate at ±448 (infinities too), NaN stays NaN, the sign of zero stays."""
    import numpy as np

    x = np.asarray(x, dtype=np.float32)
    magnitude = np.minimum(np.abs(x), np.float32(MAX))
    # The step between neighbours is 2^(e-3), and 2^-9 below the smallest normal 2^-6; rint rounds ties to even.
    _, exponent = np.frexp(np.where(magnitude > 0, magnitude, np.float32(1)))
    step = np.ldexp(np.float32(1), np.maximum(exponent - 1, -6) - 3)
    rounded = np.rint(magnitude / step) * step
    codes = np.searchsorted(values()[:127], rounded).astype(np.uint8)
    codes = np.where(np.isnan(x), np.uint8(127), codes)
    return codes | (np.signbit(x).astype(np.uint8) << 7)
