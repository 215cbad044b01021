"""When the ratio of two times may be called a speed-up."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model import Accuracy, Measurement, Status, Verdict

FEW = "few_samples"


@dataclass(frozen=True)
class Speedup:
    """Time of the baseline over time of the backend. `doubts` is empty for one that may be trusted as it is:
    `suspect` (one of the times is, or has reasons against it), `unchecked` (nothing compared the outputs)."""

    value: float
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoSpeedup:
    """Why there is none. `comparable` is false when both have a time, but not two that may be divided."""

    why: str
    comparable: bool = True


def speedup(baseline: Measurement | None, measurement: Measurement | None) -> Speedup | NoSpeedup:
    """The speed-up of a measurement over its baseline: only between times of one run, timer, cache state and device model,
    and never with a time that is `invalid` or of a few samples."""
    if measurement is None or measurement.status is not Status.OK or measurement.timing is None:
        return NoSpeedup("no time")
    if baseline is None or baseline.status is not Status.OK or baseline.timing is None:
        return NoSpeedup("the baseline has no time")
    if baseline.run_id != measurement.run_id:  # another day's clocks and neighbours: `compare` weighs those
        return NoSpeedup(f"the baseline is of another run, {baseline.run_id}", comparable=False)
    for what, ours, theirs in (
        ("timer", measurement.timing.timer, baseline.timing.timer),
        ("cache", measurement.timing.cache, baseline.timing.cache),
        ("device", _model(measurement), _model(baseline)),
    ):
        if ours != theirs:
            return NoSpeedup(
                f"{what} {ours or 'unknown'}, the baseline's {theirs or 'unknown'}", comparable=False
            )
    pair = (measurement, baseline)
    for whose, m in (("it", measurement), ("the baseline", baseline)):
        if m.verdict is Verdict.INVALID:
            return NoSpeedup(f"{whose} is invalid", comparable=False)
        if FEW in m.reasons:  # nothing says how far off such a time is
            return NoSpeedup(f"{whose} has too few samples", comparable=False)
    doubts = []
    if any(m.verdict is not Verdict.VALID or m.reasons for m in pair):
        doubts.append("suspect")
    if not all(_is_checked(m.accuracy) for m in pair):
        doubts.append("unchecked")
    return Speedup(baseline.timing.median_us / measurement.timing.median_us, tuple(doubts))


def _model(measurement: Measurement) -> str:
    return measurement.device.model if measurement.device else ""


def _is_checked(accuracy: Accuracy | None) -> bool:
    return accuracy is not None and any(
        value is not None for value in (accuracy.cosine, accuracy.rel_error, accuracy.max_abs_error)
    )
