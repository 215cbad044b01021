"""Two quantisers of the same numbers: how many codes differ, and by how many steps.

Kernels divide by approximate reciprocals, so that a value close to the middle between two codes may fall to the other
one. Such differences are rare and of one step; more, or larger ones, are a mistake.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from . import arrays, values

MOST_CODES = 0.005
MOST_SCALES = 0.005
SCALE_TOLERANCE = 1e-5


def objection(
    got: Any, expected: Any, sign_bit: int, scales: Tuple[Any, Any], scale_sign_bit: Optional[int] = None
) -> Tuple[Optional[str], Dict[str, Any]]:
    """(why the codes are not those of a right quantiser or None, facts for `extra`).

    Codes are integers (or an 8-bit float dtype) of sign and magnitude, the sign in bit `sign_bit`. `scales` are a pair
    too: codes themselves where `scale_sign_bit` is given, else float32 that may differ by rounding.
    """
    share, steps = difference(got, expected, sign_bit)
    facts: Dict[str, Any] = {"codes_that_differ": share}
    if scale_sign_bit is not None:
        scale_share, scale_steps = difference(scales[0], scales[1], scale_sign_bit)
    else:
        scale_share, scale_steps = _float_difference(*scales)
    facts["scales_that_differ"] = scale_share
    if scale_share > MOST_SCALES or scale_steps > 1:
        return "{:.3g}% of the scales differ from the reference's".format(100 * scale_share), facts
    if share > MOST_CODES or steps > 1:
        what = "{:.3g}% of the codes differ from the reference's, by up to {} steps"
        return what.format(100 * share, steps), facts
    return None, facts


def difference(got: Any, expected: Any, sign_bit: int) -> Tuple[float, int]:
    """(share of codes that differ, largest difference in steps); the two zeros are one code."""
    distance = abs(_ranks(got, sign_bit) - _ranks(values.like(_bits(expected), got), sign_bit))
    return float((distance != 0).sum()) / max(1, arrays.count(distance)), int(distance.max())


def _float_difference(got: Any, expected: Any) -> Tuple[float, int]:
    expected = values.like(expected, got)
    off = abs(got - expected) > SCALE_TOLERANCE * abs(expected)
    return float(off.sum()) / max(1, arrays.count(off)), int(bool(off.any()))


def _bits(codes: Any) -> Any:
    if arrays.is_tensor(codes):
        import torch

        return codes.view(torch.uint8)
    return codes.view("uint8")


def _ranks(codes: Any, sign_bit: int) -> Any:
    """Codes as integers in the order of what they stand for."""
    bits = _bits(codes)
    wide = bits.int() if arrays.is_tensor(bits) else bits.astype("int32")
    sign, magnitude = (wide >> sign_bit) & 1, wide & ((1 << sign_bit) - 1)
    return magnitude * (1 - 2 * sign)
