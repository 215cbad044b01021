"""vLLM's `vllm bench` JSON: `latency` and `throughput` (`--output-json`), `serve` (`--save-result`, also appended ones).

`latency` has the seconds of every iteration. `throughput` is one elapsed time. `serve` gives a row for each of its times
(the whole benchmark, first token, output token, between tokens, request), the samples where `--save-detailed` kept them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from orchestrator.importers.reading import Found, Reading, Time, Wishes, number, without_none
from orchestrator.importers.source import Foreign, Source

TOOL = "vllm"
_LATENCY = {"avg_latency", "latencies"}
_THROUGHPUT = {"elapsed_time", "num_requests", "requests_per_second"}
_SERVE = {"duration", "completed", "request_throughput"}
_TIMES = {"ttft": "ttfts", "tpot": None, "itl": "itls", "e2el": None}
_PARAMETERS = (
    "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "best_of", "label",
    "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "dataset_name",
)  # fmt: skip
_BULKY = {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "start_times"}


class _Latency(Foreign):
    avg_latency: float
    latencies: list[float]
    percentiles: dict[str, float] = Field(default_factory=dict)


class _Throughput(Foreign):
    elapsed_time: float
    num_requests: int
    total_num_tokens: int | None = None
    requests_per_second: float
    tokens_per_second: float | None = None


class _Serve(Foreign):
    duration: float
    completed: int
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None


def fits(source: Source) -> bool:
    """Whether it, or its first line, is such a result."""
    try:
        first = _documents(source)[0][1]
    except (ValueError, RecursionError, IndexError):
        return False
    return isinstance(first, dict) and any(keys <= first.keys() for keys in (_LATENCY, _THROUGHPUT, _SERVE))


def read(source: Source, wishes: Wishes) -> Found:
    """Every result. Raises `FileError`."""
    try:
        documents = _documents(source)
    except (ValueError, RecursionError):
        documents = [(1, source.json)]  # says what is wrong, and where
    readings: list[Reading] = []
    case = {} if wishes.names_case else {"file": source.path.stem}
    for line, value in documents:
        keys = value.keys() if isinstance(value, dict) else set()
        at = line if len(documents) > 1 else None
        if keys >= _LATENCY:
            readings.append(_latency(source.checked(_Latency, value, line=at), case))
        elif keys >= _THROUGHPUT:
            readings.append(_throughput(source.checked(_Throughput, value, line=at), case))
        elif keys >= _SERVE:
            readings += _serve(source.checked(_Serve, value, line=at), value)
        else:
            raise source.wrong("is no result of vllm bench latency, throughput or serve", line)
    return Found(TOOL, readings)


def _documents(source: Source) -> list[tuple[int, Any]]:
    """(line, value) of the one document, or of the one on each line that `--append-result` makes."""
    try:
        return [(1, json.loads(source.text))]
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
    return [(number, json.loads(line)) for number, line in enumerate(source.lines, 1) if line.strip()]


def _latency(told: _Latency, case: Mapping[str, Any]) -> Reading:
    """The file says nothing of the model or the lengths: where nobody else does, its name stands for the case."""
    return Reading(
        payload="vllm-latency",
        params=case,
        time=Time.of_samples("vllm:host", [seconds * 1e6 for seconds in told.latencies]),
        metrics={f"p{name}_us": value * 1e6 for name, value in told.percentiles.items()}
        | {"mean_us": told.avg_latency * 1e6},
    )


def _throughput(told: _Throughput, case: Mapping[str, Any]) -> Reading:
    return Reading(
        payload="vllm-throughput",
        params={**case, "num_requests": told.num_requests},
        time=Time("vllm:host", told.elapsed_time * 1e6, samples=1),
        metrics=without_none(
            requests_per_second=number(told.requests_per_second),
            tokens_per_second=number(told.tokens_per_second),
            total_num_tokens=told.total_num_tokens,
        ),
    )


def _serve(told: _Serve, value: Mapping[str, Any]) -> list[Reading]:
    params = {name: value[name] for name in _PARAMETERS if value.get(name) is not None}
    extra = {
        name: item
        for name, item in value.items()
        if name not in _BULKY
        and name not in _PARAMETERS
        and name != "backend"
        and isinstance(item, str | bool)
    }
    rates = {
        name: number(item) for name, item in value.items()
        if name.endswith(("_throughput", "_goodput")) or name in ("completed", "failed", "max_concurrent_requests")
    }  # fmt: skip
    backend = value.get("backend") or value.get("endpoint_type")
    samples = {
        "ttft": [s * 1e6 for s in told.ttfts or () if s > 0],
        "itl": [s * 1e6 for request in told.itls or () for s in request],
    }

    def reading(what: str, time: Time, metrics: Mapping[str, float | None]) -> Reading:
        return Reading(
            "vllm-serve", params, str(backend) if backend else None, row={"time": what}, time=time,
            label=str(value.get("model_id") or ""),
            metrics={k: v for k, v in metrics.items() if v is not None}, extra=extra,
        )  # fmt: skip

    whole = Time("vllm:client", told.duration * 1e6, samples=1)
    readings = [reading("duration", whole, rates)]
    for name in _TIMES:
        median = number(value.get(f"median_{name}_ms"))
        if median is None:
            continue
        time = Time("vllm:client", median * 1e3)
        if samples.get(name):
            time = Time.of_samples("vllm:client", samples[name])
        statistics = {
            f"{statistic}_us": (number(value[f"{statistic}_{name}_ms"]) or 0.0) * 1e3
            for statistic in _statistics(value, name)
        }
        readings.append(reading(name, time, statistics))
    return readings


def _statistics(value: Mapping[str, Any], name: str) -> list[str]:
    end = f"_{name}_ms"
    return [key.removesuffix(end) for key in value if key.endswith(end) and not key.startswith("median")]
