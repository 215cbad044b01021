"""From axes to points: the cross product, pairs, what is added and what is left out, and how a point is called."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import FileError
from orchestrator.identity import canonical_json
from orchestrator.yamlfile import Document, Loc, kind, suggestion

from .where import Where, WhereError

MAX_POINTS = 100_000
IN_MATRIX = ("zip", "include", "exclude")
"""Keys that are no axes although they stand in `matrix`; they may as well stand beside it."""


@dataclass(frozen=True)
class Point:
    """Some parameters, or all of a case: `unnamed` are those that no label stands for."""

    params: Mapping[str, Any]
    labels: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    line: int | None = None

    @property
    def label(self) -> str:
        """Labels first, then `key=value` of every other parameter; empty without parameters."""
        return " ".join([*self.labels, *(f"{name}={shown(self.params[name])}" for name in self.unnamed)])

    def joined(self, other: Point) -> Point:
        """Both together."""
        return Point(
            {**self.params, **other.params},
            self.labels + other.labels,
            self.unnamed + other.unnamed,
            self.line or other.line,
        )


@dataclass(frozen=True)
class Axis:
    """Values that vary together; `name` is for messages."""

    name: str
    points: tuple[Point, ...]
    loc: Loc

    @property
    def parameters(self) -> dict[str, None]:
        """Every parameter that some value of this axis sets, in order."""
        return dict.fromkeys(name for point in self.points for name in point.params)


@dataclass
class Axes:
    """The case-making keys of one part of a sweep, read but not yet multiplied out."""

    document: Document
    axes: list[Axis] = field(default_factory=list)
    include: list[tuple[Any, Loc]] = field(default_factory=list)
    exclude: list[tuple[Any, Loc]] = field(default_factory=list)

    def read(self, section: Mapping[str, Any], loc: Loc = ()) -> None:
        """Take in `matrix`, `zip`, `include` and `exclude`, in the file's order. Raises `FileError`."""
        for key in section:
            value, here = section[key], (*loc, key)
            if key == "matrix":
                if not isinstance(value, dict) or not value:
                    raise self.document.error(f"matrix maps axes to lists of values; {_what(value)}", *here)
                self.read({name: v for name, v in value.items() if name in IN_MATRIX}, here)
                for name in value:
                    if name not in IN_MATRIX:
                        self.axes.append(self.read_axis(name, value[name], (*here, name)))
            elif key == "zip":
                self._read_zip(value, here)
            elif key in ("include", "exclude"):
                if not isinstance(value, list):
                    raise self.document.error(f"{key} is a list of entries, not {kind(value)}", *here)
                entries = self.include if key == "include" else self.exclude
                entries += [(entry, (*here, i)) for i, entry in enumerate(value)]

    def read_axis(self, name: str, values: Any, loc: Loc) -> Axis:
        """One axis: a list of values (a single value needs no list)."""
        if name == "label":
            raise self.document.error(
                "`label` names cases and is no axis: put it into a mapping, such as {m: 16, label: …}", *loc
            )
        if values is None or values == []:
            raise self.document.error(f"axis {name!r} is empty: no case would be left", *loc)
        listed = values if isinstance(values, list) else [values]
        points = [
            self.point({name: value}, (*loc, i) if isinstance(values, list) else loc)
            for i, value in enumerate(listed)
        ]
        self._refuse_repeats(f"axis {name!r}", points)
        return Axis(f"axis {name!r}", tuple(points), loc)

    def point(self, values: Mapping[str, Any], loc: Loc) -> Point:
        """Parameters from named values; a mapping spreads its keys, and a `label` names them all."""
        params: dict[str, Any] = {}
        labels: list[str] = []
        unnamed: list[str] = []
        for name, value in values.items():
            if name == "label":
                labels.append(self._label(value, loc))
                continue
            spread = value if isinstance(value, dict) else {name: value}
            if not spread:
                raise self.document.error(f"{name!r} has an empty mapping as a value", *loc)
            own = {key: inner for key, inner in spread.items() if key != "label"}
            if twice := next((key for key in own if key in params), None):
                raise self.document.error(f"parameter {twice!r} is given twice", *loc)
            params.update(own)
            if isinstance(value, dict) and "label" in value:
                labels.append(self._label(value["label"], loc))
            else:
                unnamed += own
        return Point(
            params, tuple(labels), () if "label" in values else tuple(unnamed), self.document.line(*loc)
        )

    def _label(self, value: Any, loc: Loc) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
            raise self.document.error(f"label is text, not {kind(value) if value != '' else 'empty'}", *loc)
        return shown(value)

    def _read_zip(self, value: Any, loc: Loc) -> None:
        groups = [(value, loc)] if isinstance(value, dict) else []
        if isinstance(value, list):
            groups = [(group, (*loc, i)) for i, group in enumerate(value)]
        if not groups:
            raise self.document.error(f"zip maps axes to lists of equal length; {_what(value)}", *loc)
        for group, here in groups:
            if not isinstance(group, dict) or not group:
                raise self.document.error(f"zip maps axes to lists of equal length; {_what(group)}", *here)
            for name, values in group.items():
                if not isinstance(values, list):
                    raise self.document.error(f"zip: {name!r} is a list, not {kind(values)}", *here, name)
                if not values:
                    raise self.document.error(f"axis {name!r} is empty: no case would be left", *here, name)
            lengths = {name: len(values) for name, values in group.items()}
            if len(set(lengths.values())) > 1:
                told = ", ".join(f"{name} has {n}" for name, n in lengths.items())
                raise self.document.error(f"zip pairs lists of equal length, but {told}", *here)
            count = next(iter(lengths.values()))
            first = next(iter(group))
            points = [
                self.point({name: values[i] for name, values in group.items()}, (*here, first, i))
                for i in range(count)
            ]
            self._refuse_repeats(f"zip of {', '.join(group)}", points)
            self.axes.append(Axis(f"zip of {', '.join(group)}", tuple(points), here))

    def _refuse_repeats(self, name: str, points: Sequence[Point]) -> None:
        seen: dict[str, Point] = {}
        for point in points:
            first = seen.setdefault(canonical_json(point.params), point)
            if first is not point:
                told = (
                    f"line {first.line}"
                    if first.line == point.line
                    else f"lines {first.line} and {point.line}"
                )
                raise FileError(
                    f"{name}: the value {shown(point.params)} is given twice ({told})",
                    path=self.document.path,
                    line=point.line,
                )

    # -- multiplying out ----------------------------------------------------------------------------------

    def points(self, loc: Loc = ()) -> list[Point]:
        """Every case: the cross product (the first axis varies slowest), less what `where` and `exclude` take away,
        and then what `include` adds. Without any axis and addition, the one case without parameters."""
        owner: dict[str, Axis] = {}
        for axis in self.axes:
            for name in axis.parameters:
                other = owner.setdefault(name, axis)
                if other is not axis:
                    message = f"parameter {name!r} comes from {other.name} and from {axis.name}"
                    raise self.document.error(message, *axis.loc)
        size = math.prod(len(axis.points) for axis in self.axes)
        if size > MAX_POINTS:
            raise self.document.error(f"{size} cases are more than the {MAX_POINTS} allowed", *loc, "matrix")
        added = [self._added(entry, loc) for entry, loc in self.include]
        extra = [point for point in added if point is not None]
        points = [] if extra and not self.axes else [_joined(choice) for choice in self._product()]
        known = list(dict.fromkeys([*owner, *(name for point in extra for name in point.params)]))
        for (entry, loc), point in zip(self.include, added, strict=True):
            if point is None:
                points = list(filter(self._predicate(entry["where"], known, loc), points))
        for entry, loc in self.exclude:
            points = self._without(points, entry, known, loc)
        return points + extra

    def _product(self) -> Iterable[tuple[Point, ...]]:
        return itertools.product(*(axis.points for axis in self.axes))

    def _added(self, entry: Any, loc: Loc) -> Point | None:
        """The case an `include` entry adds; None for one that only filters."""
        if not isinstance(entry, dict) or not entry:
            raise self.document.error(f"an entry of include is a mapping of parameters; {_what(entry)}", *loc)
        if "where" not in entry:
            return self.point(entry, loc)
        if len(entry) > 1:
            raise self.document.error(
                "an entry of include either adds a case (parameters) or keeps those that hold (`where` alone)",
                *loc,
            )
        return None

    def _without(self, points: list[Point], entry: Any, known: Sequence[str], loc: Loc) -> list[Point]:
        if not isinstance(entry, dict) or not entry:
            raise self.document.error(f"an entry of exclude is a mapping of parameters; {_what(entry)}", *loc)
        wanted = self.point({k: v for k, v in entry.items() if k not in ("where", "label")}, loc).params
        for name in wanted:
            if name not in known:
                hint = f"{suggestion(name, known)}; there are: {', '.join(known) or 'none'}"
                raise self.document.error(f"exclude: no parameter {name!r}{hint}", *loc)
        holds = self._predicate(entry["where"], known, loc) if "where" in entry else None
        # 16 and 16.0 are different parameters, 1 and true are too
        texts = {name: canonical_json(value) for name, value in wanted.items()}

        def excluded(point: Point) -> bool:
            if any(n not in point.params or canonical_json(point.params[n]) != t for n, t in texts.items()):
                return False
            if "label" in entry and entry["label"] not in (point.label, *point.labels):
                return False
            return holds is None or holds(point)

        return [point for point in points if not excluded(point)]

    def _predicate(self, text: Any, known: Sequence[str], loc: Loc) -> Callable[[Point], bool]:
        if not isinstance(text, str):
            raise self.document.error(
                f"where is an expression, such as `m <= 64`, not {kind(text)}", *loc, "where"
            )
        try:
            where = Where(text, known)
        except WhereError as exc:
            raise self.document.error(f"where: {exc}", *loc, "where") from None

        def holds(point: Point) -> bool:
            try:
                return where.holds(point.params)
            except WhereError as exc:
                raise self.document.error(f"where: {exc}, in case {point.label!r}", *loc, "where") from None

        return holds


def shown(value: Any) -> str:
    """A value in a label: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _joined(points: Iterable[Point]) -> Point:
    whole = Point({})
    for point in points:
        whole = whole.joined(point)
    return whole


def _what(value: Any) -> str:
    if value is None or value in ({}, []):
        return "here is nothing"
    return f"here is {kind(value)}"
