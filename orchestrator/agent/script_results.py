"""What any benchmark program printed or wrote, as measurements: JSON lines, one JSON document, or CSV.

A row is a JSON object or a line of CSV. Its `backend`, `status`, `samples_us` and its time (`median_us`, `time_us`,
`time_ms` or `latency_ms`) are taken as such; the keys that tell rows apart form `row`; other numbers become metrics,
other values `extra`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import OrderedDict
from typing import (
    Any,
    BinaryIO,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

from .script_samples import SamplesError, Time, as_float, doubts, timing_of
from .wire import dump, finite, name_of

FORMATS = ("json_lines", "json", "csv")
LARGEST_DOCUMENT = 64 << 20
LONGEST_LINE = 16 << 20
_MOST_DIGITS = 4300  # what Python reads by default
_MOST_LEVELS = 100
_TOO_DEEP = f"it is nested deeper than {_MOST_LEVELS} levels"
_TIMES = (("median_us", 1.0), ("time_us", 1.0), ("time_ms", 1000.0), ("latency_ms", 1000.0))
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)

Row = Dict[str, Any]


class ResultsError(Exception):
    """The results cannot be read at all; the message is a measurement's reason."""


class Outcome(NamedTuple):
    """How the program ended: `status` is `ok` for exit code 0, and `reason` says why it is not."""

    status: str
    reason: Optional[str] = None


class Others(NamedTuple):
    """What the other executions of the case answer for: the backends that the case asks for, and which of these has
    reported a result under a name of its program's own, by `identity`."""

    asked: Collection[str]
    reported: Mapping[str, str]


def identity(measurement: Mapping[str, Any]) -> str:
    """What tells the results of a case apart: backend and row."""
    return dump([measurement["backend"], measurement.get("row")]).decode("ascii")


def measurements(
    rows: Sequence[Row],
    backend: str,
    keys: Sequence[str],
    outcome: Outcome,
    others: Others,
    target_rel_error: float,
) -> List[Dict[str, Any]]:
    """The measurements of one execution, in the order of the rows.

    Rows that the keys do not tell apart are one `error`, and so is one that names what another execution answers for: of
    two results with one name, the later would be dropped. When the program failed, a row without keys gets its status and
    keeps its values; rows with keys stand as they were printed, and one more measurement without a row says how it ended."""
    found: "OrderedDict[str, List[Dict[str, Any]]]" = OrderedDict()
    for row in rows:
        measurement = _measurement(row, backend, keys, target_rel_error)
        _keep_to_itself(measurement, backend, others)
        found.setdefault(identity(measurement), []).append(measurement)
    results = [_one_of(same, keys) for same in found.values()]
    failed = outcome.status != "ok"
    if failed:
        for measurement in results:
            if measurement["row"] is None and measurement["status"] in ("ok", "incorrect"):
                _fail(measurement, outcome.status, outcome.reason)
    if failed and not any(measurement["row"] is None for measurement in results):
        results.append({"backend": backend, "row": None, "status": outcome.status, "reason": outcome.reason})
    if not results:
        results.append(
            {"backend": backend, "row": None, "status": "error", "reason": "it ended without a result"}
        )
    return results


def read_rows(source: BinaryIO, form: str) -> List[Row]:
    """Every row of a file. Raises ResultsError."""
    if form == "json_lines":
        return list(_json_lines(source))
    text = source.read(LARGEST_DOCUMENT + 1)
    if len(text) > LARGEST_DOCUMENT:
        raise ResultsError(f"the results are longer than {LARGEST_DOCUMENT >> 20} MiB")
    if form == "csv":
        return _csv_rows(text.decode("utf-8-sig", "replace"))
    if form == "json":
        return _json_rows(text.decode("utf-8-sig", "replace"))
    raise ResultsError(f"unknown format of results: {form!r}")


class JsonLineFilter:
    """Lets through the lines of a stream that may be JSON objects, so that gigabytes of chatter take up no room.

    `left_out` counts those that were too long to be kept."""

    def __init__(self) -> None:
        self.left_out = 0
        self._line = bytearray()
        self._keep: Optional[bool] = None

    def feed(self, data: bytes) -> bytes:
        """What of `data`, and of the line before it, is worth keeping."""
        kept = bytearray()
        pieces = data.split(b"\n")
        for number, piece in enumerate(pieces):
            self._add(piece)
            if number < len(pieces) - 1:
                kept += self.flush()
        return bytes(kept)

    def flush(self) -> bytes:
        """The last line, ended."""
        line = bytes(self._line) + b"\n" if self._keep else b""
        self._line.clear()
        self._keep = None
        return line

    def _add(self, piece: bytes) -> None:
        if self._keep is None and piece.strip():
            self._keep = piece.lstrip()[:1] == b"{"
        if self._keep:
            self._line += piece
            if len(self._line) > LONGEST_LINE:
                self.left_out += 1
                self._line.clear()
                self._keep = False


def _json_lines(source: BinaryIO) -> Iterator[Row]:
    for line in source:
        if line.lstrip()[:1] != b"{":
            continue
        try:
            value = json.loads(line.decode("utf-8", "replace"), parse_int=_integer)
            _check_depth(value)
        except (RecursionError, ResultsError) as error:
            why = str(error) if isinstance(error, ResultsError) else _TOO_DEEP
            yield {"status": "error", "reason": f"a line of the results could not be read: {why}"}
        except ValueError:
            continue  # chatter that begins like an object
        else:
            if isinstance(value, dict):
                yield value


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ResultsError(f"an integer of {len(digits)} digits")
    return int(digits)


def _check_depth(value: Any) -> None:
    """Deeper values would be read here and then by nobody who reads our records."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner: List[Any] = []
        for item in level:
            if isinstance(item, (dict, list)):
                inner += item.values() if isinstance(item, dict) else item
        level = inner
        if not level:
            return
    raise ResultsError(_TOO_DEEP)


def _json_rows(text: str) -> List[Row]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"the results are no JSON: {error}") from error
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise ResultsError("the results are no JSON object and no list of objects")
    return rows


def _csv_rows(text: str) -> List[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="more_columns")
    try:
        return [{str(name).strip(): _cell(value) for name, value in row.items()} for row in reader]
    except csv.Error as error:
        raise ResultsError(f"the results are no CSV: line {reader.line_num}: {error}") from error


def _cell(value: Any) -> Any:
    """A cell's value: a number where it looks like one, nothing where it is empty."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        return value
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _measurement(row: Row, backend: str, keys: Sequence[str], target_rel_error: float) -> Dict[str, Any]:
    named = row.get("backend")
    status = row.get("status")
    measurement: Dict[str, Any] = {
        "backend": named if isinstance(named, str) and named else backend,
        "status": status if isinstance(status, str) and status else "ok",
        "reason": None,
        "reasons": [],
        "row": {key: finite(row[key])[0] for key in keys if key in row} or None,
        "timing": None,
        "samples_us": row.get("samples_us"),
        "metrics": {},
        "extra": {},
    }
    problems: List[str] = []
    used = {"backend", "status", "samples_us", *keys}
    try:
        time = _time(row)
        if time is not None:
            used.add(time.name)
        measurement["timing"] = timing_of(time, row.get("samples_us"))
        measurement["reasons"] = doubts(measurement["timing"], target_rel_error)
    except (ResultsError, SamplesError) as error:
        used.update(
            name for name, _ in _TIMES if isinstance(row.get(name), float) and not math.isfinite(row[name])
        )
        measurement.update(status="error", samples_us=None)
        problems.append(str(error))
    for name, value in row.items():
        if name not in used:
            _sort_in(name, value, measurement, problems)
    if measurement["status"] not in ("ok", "incorrect"):
        said = row.get("reason")
        if isinstance(said, str) and said:
            problems.insert(0, said)
        _fail(measurement, measurement["status"], None)
    if measurement["status"] == "incorrect":
        measurement.update(timing=None, samples_us=None)  # the time of a wrong answer is no time
    measurement["reason"] = "; ".join(problems) or None
    return measurement


def _sort_in(name: str, value: Any, measurement: Dict[str, Any], problems: List[str]) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value, wrong = finite(value, name)
        measurement["metrics"][name] = value
    elif value is not None or name not in dict(_TIMES):
        value, wrong = finite(value, name)
        measurement["extra"][name] = value
    else:
        return
    problems += wrong


def _time(row: Row) -> Optional[Time]:
    """A row's time, None without one. Raises ResultsError for what is no time."""
    for name, factor in _TIMES:
        value = row.get(name)
        if value is None:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ResultsError(f"{name} is no number: {value!r:.80}")
        if not math.isfinite(as_float(value) * factor):
            raise ResultsError(f"{name} is {name_of(as_float(value) * factor)}")
        if value <= 0:
            raise ResultsError(f"{name} is {value:g}: a time must be positive")
        return Time(name, value, factor)
    return None


def _keep_to_itself(measurement: Dict[str, Any], backend: str, others: Others) -> None:
    """Make a row that names what another execution of the case answers for an error of `backend`."""
    named = measurement["backend"]
    if named == backend:
        return
    before = others.reported.get(identity(measurement), backend)
    if named in others.asked:
        why = f"it printed a result of {named!r:.80}, for which the program is run by itself"
    elif before != backend:
        why = f"it printed a result of {named!r:.80}, and so did the execution for {before!r:.80}"
    else:
        return
    measurement.update(backend=backend, samples_us=None)
    _fail(measurement, "error", f"{why}: print the backend that is asked for, or none")


def _one_of(same: List[Dict[str, Any]], keys: Sequence[str]) -> Dict[str, Any]:
    """The measurement of rows with one identity: an error if there are several."""
    first = same[0]
    if len(same) == 1:
        return first
    apart = f"`keys: [{', '.join(keys)}]` does not tell" if keys else "there are no `keys` to tell"
    reason = f"{len(same)} rows, and {apart} them apart"
    said = [measurement["reason"] for measurement in same if measurement["reason"]]
    reason = "; ".join([reason, *dict.fromkeys(said)])
    return {"backend": first["backend"], "row": first["row"], "status": "error", "reason": reason}


def _fail(measurement: Dict[str, Any], status: str, reason: Optional[str]) -> None:
    """Give a row another status; a time that is no result any more stays visible among the metrics."""
    timing: Optional[Mapping[str, Any]] = measurement["timing"]
    if timing is not None:
        measurement["metrics"].setdefault("median_us", timing["median_us"])
    reasons = [text for text in (reason, measurement["reason"]) if text]
    measurement.update(status=status, timing=None, reason="; ".join(reasons) or None)
