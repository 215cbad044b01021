"""Is the output right? Compared with a reference, against limits that follow from the output's number format.

A wrong result never carries a time, so the limits are chosen to catch what benchmarks miss: a wrong layout (cosine), a
wrong scale factor (relative error; the cosine cannot see it), tiles never written (NaN poison, or one bad element).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from . import arrays, values
from .declare import Call

# Cosine that a right kernel reaches with this output dtype, inputs taken as they are (after any quantisation).
DEFAULT_MIN_COSINE = {
    "float64": 1 - 1e-9,
    "complex128": 1 - 1e-9,
    "float32": 0.99999,
    "complex64": 0.99999,
    "float16": 0.9995,
    "bfloat16": 0.999,
    # Rounding to 8 bits costs 0.0004 (three bits of mantissa) and 0.0013 (two) of it.
    "float8_e4m3fn": 0.998,
    "float8_e5m2": 0.995,
    "int8": 0.999,
    "uint8": 0.999,
    # What counts is exact.
    "bool": 0.99999,
    "int16": 0.99999,
    "uint16": 0.99999,
}
FALLBACK_MIN_COSINE = 0.99

# Indices, positions, counts: one beside the right one is wrong, however close it is to a large number.
EXACT = frozenset(("int32", "int64", "uint32", "uint64"))
EXACT_MIN_COSINE = 1 - 1e-9  # a cosine is only as exact as float64

# Squares of numbers beyond these leave the range of float64, or vanish in it.
LARGEST_SQUARED = 1e140
SMALLEST_SQUARED = 1e-140

# A single element may err by this many times the relative error that the whole may, in units of the reference's
# root mean square plus an eighth of its own size: rounding stays far below, also that of elements a hundred times as
# large as the others; an element that was left out does not.
OUTLIER_FACTOR = 8.0
OWN_SHARE = 1.0 / 8
# Below this share of the root mean square, an element's own size changes nothing that matters.
NOTABLE_ERROR = 0.02


@dataclass(frozen=True)
class Limits:
    """What counts as correct. `max_rel_error` bounds ‖out − ref‖ / ‖ref‖, `max_outlier` one element's error over the
    reference's root mean square plus an eighth of the element."""

    min_cosine: float
    max_rel_error: float
    max_outlier: float

    @classmethod
    def choose(cls, asked: Mapping[str, Any], dtype: str) -> "Limits":
        """Limits asked for (`min_cosine`, `max_rel_error`, `max_outlier`), else by dtype; one follows from the other. Whole
        numbers of 32 and 64 bits must be the reference's unless something is asked for."""
        if dtype in EXACT and not any(asked.get(name) is not None for name in cls.__dataclass_fields__):
            return cls(EXACT_MIN_COSINE, 0.0, 0.0)
        cosine = asked.get("min_cosine")
        rel_error = asked.get("max_rel_error")
        if cosine is None:
            cosine = DEFAULT_MIN_COSINE.get(dtype, FALLBACK_MIN_COSINE)
        if rel_error is None:
            # ‖a − b‖² = 2(1 − cos) for unit vectors: the same tolerance, said as a distance.
            rel_error = math.sqrt(max(0.0, 2 * (1 - float(cosine)))) + 1e-6
        outlier = asked.get("max_outlier")
        if outlier is None:
            outlier = max(OUTLIER_FACTOR * float(rel_error), 1e-4)
        return cls(float(cosine), float(rel_error), float(outlier))


@dataclass(frozen=True)
class Comparison:
    """Output against reference. `worst` is the largest error of an element over the reference's root mean square plus an
    eighth of the element itself; `zero` says that the reference is zero everywhere, which proves little, and `nothing`
    that the output is, though the reference is not; `unequal` counts integers that are not the reference's, also where
    they are too large for float64 to tell."""

    cosine: Optional[float]
    rel_error: Optional[float]
    max_abs_error: Optional[float]
    worst: Optional[float]
    elements: int
    non_finite: int
    zero: bool = False
    nothing: bool = False
    unequal: int = 0

    def objection(self, limits: Limits) -> Optional[str]:
        """Why the output is not correct, or None."""
        if self.non_finite:
            return "{} of {} output elements are NaN or infinite (not written, or overflowed)".format(
                self.non_finite, self.elements
            )
        if not self.elements:
            return "the output has no elements: there is nothing to check"
        if self.cosine is None or self.rel_error is None or self.worst is None:
            return "the output cannot be compared with the reference"
        if self.nothing:
            return "the output is zero everywhere, the reference is not"
        if limits.max_rel_error == 0 and self.rel_error > 0:
            return "it must equal the reference, and differs by up to {:.4g} (relative error {:.4g})".format(
                self.max_abs_error or 0.0, self.rel_error
            )
        if limits.max_rel_error == 0 and self.unequal:
            return "it must equal the reference, and {} of {} elements do not".format(
                self.unequal, self.elements
            )
        # "not above" instead of "below": nothing that is not a number passes.
        if not self.cosine >= limits.min_cosine:
            return "cosine {:.6f} is below {:.6g}: wrong layout or wrong kernel".format(
                self.cosine, limits.min_cosine
            )
        if not self.rel_error <= limits.max_rel_error:
            return "relative error {:.4g} is above {:.4g} at cosine {:.6f}: wrong scale".format(
                self.rel_error, limits.max_rel_error, self.cosine
            )
        if not self.worst <= limits.max_outlier:
            return "an element errs by {:.3g} times the root mean square (limit {:.3g}): part of the output is wrong".format(
                self.worst, limits.max_outlier
            )
        return None

    def record(self, reference: str, float_cosine: Optional[float] = None) -> Dict[str, Any]:
        """The `accuracy` field of a measurement."""
        return {
            "cosine": self.cosine,
            "rel_error": self.rel_error,
            "max_abs_error": self.max_abs_error,
            "reference": reference,
            "float_cosine": float_cosine,
        }


def objection_to_reported(found: Any, asked: Mapping[str, Any]) -> Optional[str]:
    """Why the accuracy that a payload reports by itself is not what the sweep asks for, or None. Where the sweep asks for
    nothing, the payload decides."""
    cosine, rel_error = (_reported(found or {}, name) for name in ("cosine", "rel_error"))
    least, most = asked.get("min_cosine"), asked.get("max_rel_error")
    for name, value in (("cosine", cosine), ("relative error", rel_error)):
        if value is not None and not math.isfinite(value):
            return "the {} that it reports is {}: its output cannot be right".format(name, value)
    if cosine is not None and least is not None and not cosine >= float(least):
        return "cosine {:.6f} is below {:.6g}".format(cosine, float(least))
    if rel_error is not None and most is not None and not rel_error <= float(most):
        return "relative error {:.4g} is above {:.4g}".format(rel_error, float(most))
    return None


def _reported(found: Mapping[str, Any], name: str) -> Optional[float]:
    value = found.get(name)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("accuracy.{} is {!r}: it must be a number".format(name, value)) from None


def compared_value(call: Call, output: Any) -> Any:
    """What of an output is held against the reference: None when there is no array in it, for then `value` would do the
    work that is to be timed (of a lazy or asynchronous object)."""
    output = values.whole(output)
    first = next(arrays.wholes(output), None)
    return arrays.dense(first if call.value is None or first is None else values.whole(call.value(output)))


def compare(output: Any, reference: Any) -> Comparison:
    """Compare arrays or tensors of one shape, in float64, slice by slice. Raises ValueError when shapes differ, the
    reference is no array, or not finite."""
    reference = values.whole(reference)
    if not (arrays.is_tensor(reference) or arrays.is_array(reference)):
        raise ValueError(
            "the reference is {}: it must be an array or a tensor".format(type(reference).__name__)
        )
    if values.sizes(output) != values.sizes(reference):
        raise ValueError(
            "the output's shape {} is not the reference's {}".format(
                values.sizes(output), values.sizes(reference)
            )
        )
    for what, value in (("output", output), ("reference", reference)):
        if not values.holds_numbers(value):
            raise ValueError(
                "the {} is of {}, which are no numbers: give Call.value".format(what, dtype_name(value))
            )
    reference = values.like(reference, output)
    if values.is_complex(output) != values.is_complex(reference):
        raise ValueError(
            "output is {}, reference {}: of complex numbers both must be".format(
                dtype_name(output), dtype_name(reference)
            )
        )
    scale = _scale(reference)
    dot = norm_out = norm_ref = norm_error = largest = 0.0
    elements = non_finite = 0
    for out, ref in zip(values.row_chunks(output), values.row_chunks(reference)):
        if scale != 1:
            out, ref = out * scale, ref * scale
        error = out - ref
        bad = int((~_isfinite(out)).sum())
        if int((~_isfinite(ref)).sum()):
            raise ValueError("the reference itself is not finite (inputs that are not, or an overflow)")
        elements += int(math.prod(values.sizes(out)))
        non_finite += bad
        if bad or not elements:
            continue
        dot += float((out * ref).sum())
        norm_out += float((out * out).sum())
        norm_ref += float((ref * ref).sum())
        norm_error += float((error * error).sum())
        largest = max(largest, float(abs(error).max()))
    if non_finite or not elements:
        return Comparison(None, None, None, None, elements, non_finite)
    if norm_ref == 0 or norm_out == 0:
        same = norm_error == 0
        return Comparison(
            1.0 if same else 0.0,
            0.0 if same else 1.0,
            largest / scale,
            0.0 if same else math.inf,
            elements,
            0,
            zero=norm_ref == 0,
            nothing=norm_out == 0 and norm_ref > 0,
        )
    cosine = max(-1.0, min(1.0, dot / math.sqrt(norm_out * norm_ref)))
    rms = math.sqrt(norm_ref / elements)
    worst = largest / rms
    if worst > NOTABLE_ERROR:
        worst = max(
            float((abs(out - ref) / (abs(ref) * OWN_SHARE + rms / scale)).max())
            for out, ref in zip(values.row_chunks(output), values.row_chunks(reference))
            if arrays.count(ref)
        )
    rel_error = math.sqrt(norm_error / norm_ref)
    return Comparison(
        cosine, rel_error, largest / scale, worst, elements, 0, unequal=_unequal(output, reference)
    )


def _unequal(output: Any, reference: Any) -> int:
    if not (values.is_whole(output) and values.is_whole(reference)):
        return 0
    if arrays.is_tensor(output):
        reference = reference.to(output.dtype)  # torch does not compare every kind with every other
    return int((values.plain(output) != values.plain(reference)).sum())


def _scale(reference: Any) -> float:
    """A power of two that brings extreme numbers to where their squares can be added up; 1 for all others."""
    if dtype_name(reference) not in ("float64", "complex128"):
        return 1.0
    peak = max(
        (float(abs(part).max()) for part in values.row_chunks(reference) if arrays.count(part)), default=0.0
    )
    if not math.isfinite(peak) or peak == 0 or SMALLEST_SQUARED < peak < LARGEST_SQUARED:
        return 1.0
    return 2.0 ** -max(-1000, min(1000, math.frexp(peak)[1]))


def _isfinite(value: Any) -> Any:
    if arrays.is_tensor(value):
        return value.isfinite()
    import numpy as np

    return np.isfinite(value)


def dtype_name(value: Any) -> str:
    """`bfloat16`, `float32` … of an array or tensor."""
    return str(value.dtype).replace("torch.", "")
