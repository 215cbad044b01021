"""pyperf's JSON (`-o FILE`): a benchmark a case, every value of every process a sample.

Values are seconds a call; pyperf has divided them by the loops. Benchmarks of bytes or plain numbers become metrics.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from orchestrator.importers.reading import Found, Reading, Time, Wishes, cpu, number, without_none
from orchestrator.importers.source import Foreign, Source
from orchestrator.model import Status

TOOL = "pyperf"
_ENVIRONMENT = (
    "python_version", "python_implementation", "python_compiler", "platform", "cpu_model_name", "cpu_count", "cpu_config",
    "cpu_affinity", "aslr", "perf_version",
)  # fmt: skip
_UNITS = {"second": None, "byte": "bytes", "integer": "value"}


class _Run(Foreign):
    metadata: dict[str, Any] = Field(default_factory=dict)
    values: list[float] = Field(default_factory=list)


class _Benchmark(Foreign):
    metadata: dict[str, Any] = Field(default_factory=dict)
    runs: list[_Run]


class _Suite(Foreign):
    version: str
    benchmarks: list[_Benchmark]
    metadata: dict[str, Any] = Field(default_factory=dict)


def fits(source: Source) -> bool:
    """Whether it is a suite of pyperf."""
    value = source.json
    return isinstance(value, dict) and {"version", "benchmarks"} <= value.keys() and "context" not in value


def read(source: Source, wishes: Wishes) -> Found:
    """Every benchmark of a suite. Raises `FileError`."""
    suite = source.checked(_Suite, source.json)
    readings = [_reading(source, suite, number) for number in range(len(suite.benchmarks))]
    return Found(TOOL, readings, host=suite.metadata.get("hostname"), on_cpu=True)


def _reading(source: Source, suite: _Suite, position: int) -> Reading:
    benchmark = suite.benchmarks[position]
    said = {**suite.metadata, **benchmark.metadata}
    name, unit = said.get("name"), said.get("unit", "second")
    place = ("benchmarks", position)
    if not isinstance(name, str):
        raise source.wrong(f"benchmarks.{position} has no name", source.line_of(place))
    if unit not in _UNITS:
        raise source.wrong(f"benchmarks.{position} has the unit {unit!r:.40}", source.line_of(place))
    values = [value for run in benchmark.runs for value in run.values]
    calls = said.get("loops")
    time, metrics = None, {}
    if unit == "second" and values:
        time = Time.of_samples(
            "pyperf:wall", [v * 1e6 for v in values], calls if isinstance(calls, int) else None
        )
    elif values:
        metrics[str(_UNITS[unit])] = sorted(values)[len(values) // 2]
    empty = not values  # only calibrated, or every process failed
    durations = [number(run.metadata.get("duration")) for run in benchmark.runs]
    dates = [run.metadata.get("date") for run in benchmark.runs if run.metadata.get("date")]
    model = said.get("cpu_model_name")
    return Reading(
        payload=TOOL,
        params={"benchmark": name},
        name=name,
        time=time,
        status=Status.ERROR if empty else Status.OK,
        reason="it has no values" if empty else None,
        metrics=metrics,
        extra=without_none(
            statement=said.get("timeit_stmt"),
            local_date=dates[0] if dates else said.get("date"),
            processes=len([run for run in benchmark.runs if run.values]),
        ),
        device=cpu(model) if isinstance(model, str) else None,
        duration_s=sum(d for d in durations if d is not None) if any(durations) else None,
        environment={key: said[key] for key in _ENVIRONMENT if key in said},
    )
