"""google-benchmark's JSON (`--benchmark_out=FILE`): repetitions of one benchmark are the samples of a case.

`BM_Gemm<float>/M:64/128/threads:4` is payload `BM_Gemm<float>` with m=64, arg1=128, threads=4. `real_time` is the wall
time of an iteration, averaged over the iterations of a repetition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.importers.reading import (
    US,
    Found,
    Reading,
    Time,
    Wishes,
    cpu,
    number,
    scalar,
    utc,
    without_none,
)
from orchestrator.importers.source import Foreign, Source
from orchestrator.model import Status

TOOL = "google-benchmark"
_CLOCKS = {"real_time": "wall", "manual_time": "manual", "process_time": "wall"}
_COMPLEXITY = {"big_o", "rms"}
"""A formula over the sizes of a benchmark, and how well it fits: no result of a case."""
_SETTINGS = ("iterations", "repeats", "min_time", "min_warmup_time")
_NAMED = re.compile(r"([A-Za-z_]\w*):(.+)")
_AGGREGATE = re.compile(r"(.+)_(mean|median|stddev|cv)")
_NOT_COUNTERS = {
    "name", "run_name", "run_type", "repetitions", "repetition_index", "threads", "iterations", "real_time", "cpu_time",
    "time_unit", "family_index", "per_family_instance_index", "aggregate_name", "aggregate_unit", "error_occurred",
    "error_message", "skipped", "skip_message", "label", "big_o", "cpu_coefficient", "real_coefficient", "rms",
}  # fmt: skip
_ENVIRONMENT = (
    "executable", "num_cpus", "mhz_per_cpu", "cpu_scaling_enabled", "aslr_enabled", "library_version",
    "library_build_type", "caches",
)  # fmt: skip


class _Run(Foreign):
    name: str
    run_name: str | None = None
    run_type: str = "iteration"
    aggregate_name: str | None = None
    aggregate_unit: str = "time"
    iterations: int = 0
    real_time: float = 0.0
    cpu_time: float = 0.0
    time_unit: str = "ns"
    error_occurred: bool = False
    error_message: str | None = None
    skipped: bool = False
    skip_message: str | None = None
    label: str | None = None

    @property
    def of(self) -> str:
        return self.run_name or self.name


class _Report(Foreign):
    context: dict[str, Any]
    benchmarks: list[dict[str, Any]]


def fits(source: Source) -> bool:
    """Whether it is a report of google-benchmark."""
    value = source.json
    return isinstance(value, dict) and {"context", "benchmarks"} <= value.keys()


def read(source: Source, wishes: Wishes) -> Found:
    """Every benchmark of a report. Raises `FileError`."""
    report = source.checked(_Report, source.json)
    grouped: dict[str, list[tuple[_Run, dict[str, Any]]]] = {}
    for position, raw in enumerate(_told_plainly(report.benchmarks)):
        run = source.checked(_Run, raw, ("benchmarks", position))
        if run.time_unit not in US:
            line = source.line_of(("benchmarks", position, "time_unit"))
            raise source.wrong(
                f"benchmarks.{position}.time_unit: {run.time_unit!r:.20} is no unit of time", line
            )
        if not _COMPLEXITY & raw.keys():
            grouped.setdefault(run.of, []).append((run, raw))
    host = report.context.get("host_name")
    readings = [_reading(name, runs, report.context) for name, runs in grouped.items()]
    return Found(TOOL, readings, host=host if isinstance(host, str) else None, on_cpu=True)


def _told_plainly(benchmarks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Versions before 1.5 tell an aggregate by nothing but its name: `BM_x/8_mean` after `BM_x/8`."""
    names = {raw.get("name") for raw in benchmarks}
    for raw in benchmarks:
        name = raw.get("name")
        match = _AGGREGATE.fullmatch(name) if isinstance(name, str) and "run_type" not in raw else None
        if match and (match[1] in names or f"{match[1]}_stddev" in names):
            of = {"run_name": match[1], "run_type": "aggregate", "aggregate_name": match[2]}
            yield {**raw, **of, "aggregate_unit": "percentage" if match[2] == "cv" else "time"}
        else:
            yield raw


def _reading(name: str, runs: Sequence[tuple[_Run, dict[str, Any]]], context: dict[str, Any]) -> Reading:
    payload, params, clock = parse_name(name)
    single = [(run, raw) for run, raw in runs if run.run_type == "iteration"]
    failed = next((run for run, _ in runs if run.error_occurred or run.skipped), None)
    time, status, reason = None, Status.OK, None
    if failed is not None:
        status = Status.ERROR if failed.error_occurred else Status.UNSUPPORTED
        reason = failed.error_message or failed.skip_message or "the benchmark was skipped"
    elif single:
        samples = [run.real_time * US[run.time_unit] for run, _ in single]
        time = Time.of_samples(f"{TOOL}:{clock}", samples, calls_per_sample=single[0][0].iterations or None)
    else:
        time = _aggregated(runs, clock)
    first, raw = (single or list(runs))[0]
    counters = {
        key: _exact(value)
        for key, value in raw.items()
        if key not in _NOT_COUNTERS and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if counters.get("bytes_per_second") is not None:
        counters["gbps"] = (counters["bytes_per_second"] or 0.0) / 1e9
    cpu_us = [run.cpu_time * US[run.time_unit] for run, _ in single]
    processors, mhz = context.get("num_cpus"), context.get("mhz_per_cpu")
    return Reading(
        payload=payload,
        params=params,
        time=time,
        status=status,
        reason=reason,
        metrics=counters
        | ({"cpu_us": sorted(cpu_us)[len(cpu_us) // 2]} if cpu_us and status is Status.OK else {}),
        extra=without_none(
            label=first.label,
            local_date=_local(context.get("date")),
        ),
        device=cpu(f"{processors} CPUs at {mhz} MHz") if processors and mhz else None,
        started_at=utc(context.get("date")) if isinstance(context.get("date"), str) else None,
        environment={key: context[key] for key in _ENVIRONMENT if key in context},
    )


def _aggregated(runs: Sequence[tuple[_Run, dict[str, Any]]], clock: str) -> Time | None:
    """The time where only aggregates were reported: the median of the repetitions, else their mean."""
    by_name = {run.aggregate_name: run for run, _ in runs if run.aggregate_unit == "time"}
    for statistic in ("median", "mean"):
        if (run := by_name.get(statistic)) is not None:
            us = run.real_time * US[run.time_unit]
            return Time(f"{TOOL}:{clock}", us, is_mean=statistic == "mean", samples=run.iterations)
    return None


def parse_name(name: str) -> tuple[str, dict[str, Any], str]:
    """Payload, parameters and clock out of a benchmark's name."""
    head, *rest = _split(name)
    params: dict[str, Any] = {}
    clock, place, still_the_name = "wall", 0, True
    for part in rest:
        named = _NAMED.fullmatch(part)
        if part in _CLOCKS:
            clock, still_the_name = _CLOCKS[part], False
        elif named and named[1] not in _SETTINGS:
            params[named[1]] = scalar(named[2])
            place += named[1] != "threads"
            still_the_name = False
        elif named:
            still_the_name = False
        elif still_the_name and not isinstance(scalar(part), int | float):
            head = f"{head}/{part}"  # the method of a fixture
        else:
            params[f"arg{place}"] = scalar(part)
            place += 1
            still_the_name = False
    return head, params, clock


def _split(name: str) -> list[str]:
    """At slashes, but not within template arguments."""
    parts, depth = [""], 0
    for character in name:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _exact(value: float) -> float | None:
    """A counter; whole numbers stay as they are, also beyond 2^53."""
    return value if isinstance(value, int) and abs(value) < 2**63 else number(value)


def _local(date: Any) -> Any:
    return date if isinstance(date, str) and utc(date) is None else None
