"""`--set axis=value`: another value for an axis of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.errors import FileError, UsageError
from orchestrator.yamlfile import Document, suggestion

from .axes import IN_MATRIX

MODEL_KEYS = ("preset", "tp", "tokens")
"""Settings of `model:` that may be replaced like axes."""


def apply_sets(sections: Sequence[dict[str, Any]], sets: Sequence[str]) -> None:
    """Replace axes in the given parts of a sweep, in place; the value of a setting is YAML, a list or a single value.

    Raises `UsageError` for an axis that no part has, and for a value that is no YAML or empty.
    """
    for setting in sets:
        name, value = _parse(setting)
        places = [
            (group, pairs) for section in sections for group, pairs in _groups(section) if name in group
        ]
        for group, pairs in places:
            count = len(group[name]) if isinstance(group[name], list) else 1
            if isinstance(value, list) or not pairs:
                group[name] = value if isinstance(value, list) else [value]
            else:
                group[name] = [value] * count
        models = [section["model"] for section in sections if isinstance(section.get("model"), dict)]
        if not places and name in MODEL_KEYS:
            for model in models:
                model[name] = value
        if not places and (name not in MODEL_KEYS or not models):
            raise UsageError(f"--set {setting}: {_unknown(name, sections)}")


def _parse(setting: str) -> tuple[str, Any]:
    name, equals, text = setting.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError(f"--set {setting}: is not axis=value, such as m=16 or 'm=[16, 64]'")
    try:
        value = Document("--set", text).data
    except FileError as exc:
        raise UsageError(f"--set {setting}: {exc.bare_message}") from None
    if value == [] or (value is None and not text.strip()):
        raise UsageError(f"--set {setting}: the axis would be empty, and no case left")
    return name, value


def _groups(section: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The mappings of a part that hold axes, and whether their lists are paired up."""
    matrix = section.get("matrix")
    if isinstance(matrix, dict):
        yield matrix, False
    for holder in (section, matrix):
        zipped = holder.get("zip") if isinstance(holder, dict) else None
        for group in zipped if isinstance(zipped, list) else [zipped]:
            if isinstance(group, dict):
                yield group, True


def _unknown(name: str, sections: Sequence[dict[str, Any]]) -> str:
    axes: dict[str, None] = {}
    for section in sections:
        for group, _pairs in _groups(section):
            axes.update(dict.fromkeys(axis for axis in group if axis not in IN_MATRIX))
            for axis, values in group.items():
                listed = values if isinstance(values, list) else [values]
                if axis not in IN_MATRIX and any(isinstance(v, dict) and name in v for v in listed):
                    return f"{name!r} is no axis of its own, the values of axis {axis!r} set it; replace that axis"
    return f"the sweep has no axis {name!r}{suggestion(name, axes)}; its axes: {', '.join(axes) or 'none'}"
