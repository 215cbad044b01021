"""The table that nccl-tests print: a size a line, out of place and in place a row each.

Times are microseconds, averages over the iterations; bandwidths are GB/s. The ranks are one measurement on a gang of GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from orchestrator.importers.reading import Found, Reading, Time, Wishes, gpu, number, scalar, without_none
from orchestrator.importers.source import Source
from orchestrator.model import Device, Status

TOOL = "nccl"
_VERSION = re.compile(r"# nccl-tests version (\S+)(?: nccl-headers=(\d+) nccl-library=(\d+))?")
_STARTS = re.compile(r"# Collective test starting: (\S+)")
_SETTINGS = re.compile(r"# nThread \d+ nGpus \d+ ")
_RANK = re.compile(r"#\s+Rank\s+(\d+).* on\s+(\S+) device\s+(\d+) \[[0-9a-fA-Fx:]+\]\s+(.*)")
_LAUNCHER = re.compile(r"(\[\d+,\d+\]<std(out|err)>:|\d+:) ?")
"""What mpirun --tag-output and srun --label put before every line."""
_COLUMNS = ("size", "count", "type", "redop", "root")
_PLACES = ("out_of_place", "in_place")


@dataclass
class _Head:
    program: str | None = None
    settings: str | None = None
    version: dict[str, Any] = field(default_factory=dict)
    ranks: list[tuple[str, Device]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)


def fits(source: Source) -> bool:
    """Whether it is what such a test prints, perhaps below the lines of a launcher."""
    return any(
        _SETTINGS.match(line) or _STARTS.match(line) or _VERSION.match(line)
        for line in map(_unlabelled, source.lines[:500])
    )


def read(source: Source, wishes: Wishes) -> Found:
    """Every size of every table. Raises `FileError`."""
    head, readings, ended = _Head(), [], True
    for line, text in enumerate(map(_unlabelled, source.lines), 1):
        if text.lstrip().startswith("#"):
            if _starts(text) and not ended:
                raise source.wrong("a test begins before the one above has ended", line)
            head = _told(head, text)
            ended = ended or text.startswith("# Avg bus bandwidth")
        elif head.columns and re.match(r"\s*\d+\s+\d+\s", text):
            ended = False
            readings += _row(source, line, text.split(), head)
    if not ended:
        raise source.wrong("ends before the line `# Avg bus bandwidth` (was it cut off?)", len(source.lines))
    if not readings:
        raise source.wrong("holds no line of results", len(source.lines))
    return Found(TOOL, readings, host=head.ranks[0][0] if head.ranks else None)


def _unlabelled(text: str) -> str:
    match = _LAUNCHER.match(text)
    return text[match.end() :] if match else text


def _starts(text: str) -> bool:
    return bool(_STARTS.match(text) or _VERSION.match(text))


def _told(head: _Head, text: str) -> _Head:
    """The head with what a line that begins with # adds to it."""
    if match := _VERSION.match(text):
        return _Head(version=without_none(nccl_tests=match[1], nccl_headers=match[2], nccl=match[3]))
    if match := _STARTS.match(text):
        fresh = _Head(version=head.version) if head.columns else head
        fresh.program = match[1].rsplit("/", 1)[-1]
        return fresh
    if _SETTINGS.match(text):
        head = _Head(program=head.program, version=head.version) if head.columns else head
        head.settings = text[1:].strip()
    elif match := _RANK.match(text):
        head.ranks.append((match[2], gpu(match[4].strip(), int(match[3]))))
    elif text.lstrip("# ").startswith("size ") and "algbw" in text:
        head.columns = text.lstrip("# ").split()
    return head


def _row(source: Source, line: int, fields: list[str], head: _Head) -> list[Reading]:
    names = head.columns[: head.columns.index("timestamp")] if "timestamp" in head.columns else head.columns
    fixed = [name for name in names if name in _COLUMNS]
    measured = names[len(fixed) :]
    width = len(measured) // 2
    if len(fields) < len(fixed) + width:
        raise source.wrong(
            f"has {len(fields)} fields where the heading names {len(names)} (was it cut off?)", line
        )
    params = {name: scalar(text) for name, text in zip(fixed, fields, strict=False) if name != "count"}
    params = {"size_bytes": params.pop("size"), **params, "ranks": len(head.ranks) or None}
    readings = []
    for number_of_place, place in enumerate(_PLACES):
        start = len(fixed) + number_of_place * width
        values = dict(zip(measured[:width], fields[start : start + width], strict=False))
        if len(values) == width:
            readings.append(_reading(source, line, without_none(**params), place, values, head))
    return readings


def _reading(
    source: Source, line: int, params: dict[str, Any], place: str, values: dict[str, str], head: _Head
) -> Reading:
    timed = "cputime" if "cputime" in values else "time"
    us = number(values.get(timed))
    if us is None:
        raise source.wrong(f"{timed} is {values.get(timed)!r:.20}, not a number of microseconds", line)
    wrong = number(values.get("#wrong"))
    incorrect = bool(wrong)
    return Reading(
        payload=head.program or _from_name(source),
        params=params,
        row={"place": place},
        time=None
        if incorrect
        else Time(f"nccl-tests:{'cpu' if timed == 'cputime' else 'host'}", us, is_mean=True),
        status=Status.INCORRECT if incorrect else Status.OK,
        reason=f"{wrong:g} elements of the result are wrong" if incorrect else None,
        metrics=without_none(
            algbw_gbps=number(values.get("algbw")),
            busbw_gbps=number(values.get("busbw")),
            min_us=number(values.get("i_min")),
            max_us=number(values.get("i_max")),
            p99_us=number(values.get("i_p99")),
        ),
        extra=without_none(
            settings=head.settings,
            checked=wrong is not None,
            devices=[f"{host}:{device.index} {device.name}" for host, device in head.ranks] or None,
        ),
        device=head.ranks[0][1] if head.ranks else None,
        environment=head.version,
    )


def _from_name(source: Source) -> str:
    """Versions before 2.17 do not say which test it was: the file's name stands for it."""
    return source.path.stem
