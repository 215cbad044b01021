"""What makes two cases, two rows, two measurements the same: canonical JSON, case ids, rows and scopes as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from orchestrator.model import Params

CASE_ID_DIGITS = 16


def canonical_json(value: Any) -> str:
    """The one ASCII text of a JSON value: keys sorted, no spaces, `1` and `1.0` and `true` distinct.

    Raises `ValueError` for NaN, infinities, and what JSON does not know; `TypeError` for other types.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def case_id(payload: str, params: Params) -> str:
    """16 hex digits of the SHA-256 of the canonical JSON of payload name and typed parameters."""
    text = canonical_json({"params": dict(params), "payload": payload})
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:CASE_ID_DIGITS]


def canonical_row(row: Mapping[str, Any] | None) -> str:
    """A row as JSON that is the same for equal rows; empty for none. People read it, in comparisons."""
    return json.dumps(row, sort_keys=True, ensure_ascii=False) if row else ""


def scope(placement: str, host: str, uuid: str, model: str) -> str:
    """Where a placement wants one measurement of each kind: on a host, on one of its devices, or (`shard`) on any device
    of a model."""
    if placement == "replicate":
        return host
    return f"{host}\n{uuid}" if placement == "replicate_devices" else model


def host_of(scope: str) -> str:
    """The host of a scope of `replicate_devices`."""
    return scope.partition("\n")[0]
