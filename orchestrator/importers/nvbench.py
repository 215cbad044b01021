"""nvbench's JSON (`--json FILE`, or `--jsonbin FILE` with the samples beside it): a state a case.

The time is the cold GPU time, the median where nvbench writes one, else the mean; nvbench flushes the L2 cache before each
of those calls. Numbers in its summaries are text, so that 64-bit integers stay exact. Times are seconds.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from orchestrator.importers.reading import Found, Reading, Time, Wishes, gpu, number, without_none
from orchestrator.importers.source import Foreign, Place, Source
from orchestrator.model import Device, Status, Telemetry

TOOL = "nvbench"
_SAMPLES = ("nv/json/bin:nv/cold/sample_times", "nv/json/bin:nv/cpu_only/sample_times")
_MOST_BYTES = 256 * 1024**2
_CLOCKS = {"nv/cold/time/gpu": "events", "nv/cpu_only/time/cpu": "cpu"}
_METRICS = {
    "nv/cold/time/cpu/median": ("cpu_median_us", 1e6), "nv/cold/time/cpu/mean": ("cpu_mean_us", 1e6),
    "nv/cold/time/gpu/mean": ("gpu_mean_us", 1e6), "nv/batch/time/gpu/mean": ("batch_mean_us", 1e6),
    "nv/cold/time/gpu/q1": ("q1_us", 1e6), "nv/cold/time/gpu/q3": ("q3_us", 1e6),
    "nv/cold/time/gpu/stdev/relative": ("relative_stdev", 1.0), "nv/cold/bw/item_rate": ("items_per_second", 1.0),
    "nv/cold/bw/global/bytes_per_second": ("gbps", 1e-9), "nv/cold/bw/global/utilization": ("peak_fraction", 1.0),
    "nv/cpu_only/time/cpu/mean": ("cpu_mean_us", 1e6), "nv/cpu_only/bw/global/bytes_per_second": ("gbps", 1e-9),
}  # fmt: skip


class _Value(Foreign):
    name: str
    type: str
    value: Any = None


class _Summary(Foreign):
    tag: str
    data: list[_Value] | None = None

    def get(self, name: str) -> Any:
        return next((value.value for value in self.data or () if value.name == name), None)


class _State(Foreign):
    name: str = ""
    device: int | None = None
    axis_values: list[_Value] | None = None
    summaries: list[_Summary] | None = None
    is_skipped: bool = False
    skip_reason: str | None = None


class _Benchmark(Foreign):
    name: str
    states: list[_State] | None = None


class _Gpu(Foreign):
    id: int
    name: str
    sm_version: int | None = None


class _Report(Foreign):
    devices: list[_Gpu] | None = None
    benchmarks: list[_Benchmark]
    meta: dict[str, Any] = Field(default_factory=dict)


def fits(source: Source) -> bool:
    """Whether it is a report of nvbench."""
    value = source.json
    return isinstance(value, dict) and {"devices", "benchmarks"} <= value.keys()


def read(source: Source, wishes: Wishes) -> Found:
    """Every state of every benchmark. Raises `FileError`."""
    report = source.checked(_Report, source.json)
    devices = {told.id: _device(told) for told in report.devices or ()}
    environment = _environment(report.meta)
    readings: list[Reading] = []
    remarks: list[str] = []
    for i, benchmark in enumerate(report.benchmarks):
        for j, state in enumerate(benchmark.states or ()):
            place = ("benchmarks", i, "states", j)
            readings.append(_reading(source, benchmark, state, place, devices, environment, remarks))
    return Found(TOOL, readings, remarks=list(dict.fromkeys(remarks)))


def _reading(
    source: Source,
    benchmark: _Benchmark,
    state: _State,
    place: Place,
    devices: Mapping[int, Device],
    environment: Mapping[str, Any],
    remarks: list[str],
) -> Reading:
    values = {summary.tag: summary.get("value") for summary in state.summaries or ()}
    metrics = {name: _scaled(values[tag], by) for tag, (name, by) in _METRICS.items() if tag in values}
    own = {tag: number(v) for tag, v in values.items() if not tag.startswith("nv/") and number(v) is not None}
    clock_hz = number(values.get("nv/cold/sm_clock_rate/mean"))
    params = {
        value.name: _typed(source, value, (*place, "axis_values", k))
        for k, value in enumerate(state.axis_values or ())
    }
    time = None if state.is_skipped else _time(source, values, state.summaries or (), remarks)
    return Reading(
        payload=benchmark.name,
        params=params,
        time=time,
        status=Status.UNSUPPORTED if state.is_skipped else Status.OK,
        reason=(state.skip_reason or "nvbench skipped it") if state.is_skipped else None,
        metrics=metrics | own,
        extra=without_none(
            walltime_s=number(values.get("nv/cold/walltime")),
        ),
        telemetry=Telemetry(sm_clock_mhz=clock_hz / 1e6) if clock_hz else None,
        device=None if state.device is None else devices.get(state.device),
        duration_s=number(values.get("nv/cold/walltime")),
        environment=environment,
    )


def _time(
    source: Source, values: Mapping[str, Any], summaries: Sequence[_Summary], remarks: list[str]
) -> Time | None:
    for tag, clock in _CLOCKS.items():
        cache = "cold" if clock == "events" else None
        samples = _samples(source, summaries, remarks) if f"{tag}/mean" in values else []
        if samples:
            return Time.of_samples(f"{TOOL}:{clock}", samples, calls_per_sample=1, cache=cache)
        for statistic in ("median", "mean"):
            if (seconds := values.get(f"{tag}/{statistic}")) is not None:
                us = _scaled(seconds, 1e6)
                size = number(values.get(f"{tag.rsplit('/time', 1)[0]}/sample_size"))
                return Time(
                    f"{TOOL}:{clock}", float("nan") if us is None else us, is_mean=statistic == "mean",
                    samples=int(size or 0), calls_per_sample=1, cache=cache,
                )  # fmt: skip
    return None


def _samples(source: Source, summaries: Sequence[_Summary], remarks: list[str]) -> list[float]:
    """The samples of the binary file that `--jsonbin` wrote beside this one, little-endian float32 seconds."""
    summary = next((s for s in summaries if s.tag in _SAMPLES), None)
    name = summary.get("filename") if summary else None
    if not isinstance(name, str):
        return []
    parts = [part for part in name.split("/") if part][
        -2:
    ]  # older versions wrote the path from where they ran
    file = source.path.parent.joinpath(*parts)
    try:
        if ".." in parts or not file.is_file() or file.stat().st_size > _MOST_BYTES:
            raise FileNotFoundError
        content = file.read_bytes()
    except OSError:
        remarks.append(f"the samples in {'/'.join(parts)} are not beside the file: the summaries were taken")
        return []
    read = array.array("f", content[: len(content) // 4 * 4])
    if sys.byteorder == "big":
        read.byteswap()
    return [seconds * 1e6 for seconds in read]


def _typed(source: Source, value: _Value, place: Place) -> Any:
    try:
        if value.type == "int64":
            return int(value.value)
        if value.type == "float64":
            return float(value.value)
    except (TypeError, ValueError):
        message = f"axis {value.name}: {value.value!r:.40} is no {value.type}"
        raise source.wrong(message, source.line_of(place)) from None
    return str(value.value)


def _scaled(value: Any, by: float) -> float | None:
    found = number(value)
    return None if found is None else found * by


def _device(told: _Gpu) -> Device:
    capability = (
        None if told.sm_version is None else f"{told.sm_version // 100}.{told.sm_version % 100 // 10}"
    )
    return gpu(told.name, told.id, capability)


def _environment(meta: Mapping[str, Any]) -> dict[str, Any]:
    version = meta.get("version")
    told = version.get("nvbench") if isinstance(version, Mapping) else None
    argv = meta.get("argv")
    return without_none(
nvbench=told.get("string") if isinstance(told, Mapping) else None,
nvbench_commit=told.get("git_sha") if isinstance(told, Mapping) else None,
argv=argv if isinstance(argv, list) else None,
)  # fmt: skip
